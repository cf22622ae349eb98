"""Gradients cut to a global norm that is summed in float32, whatever they are kept in."""

from typing import Any

import jax
import jax.numpy as jnp
import optax


def clip_by_norm(max_norm: float) -> optax.GradientTransformation:
    """Gradients times max_norm / norm where their norm over all weights is larger.

    Not optax's: of bfloat16 gradients it sums the squares in bfloat16, where the sum stands still
    from 256 equal terms on, so that a model of many tensors would be cut too little.
    """

    def clipped(updates: Any, params: Any) -> Any:
        del params
        norm = optax.tree.norm(jax.tree.map(lambda g: g.astype(jnp.float32), updates))
        is_small = norm < max_norm
        return jax.tree.map(
            lambda g: jnp.where(is_small, g, (g / norm.astype(g.dtype)) * max_norm), updates
        )

    return optax.stateless(clipped)
