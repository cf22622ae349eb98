"""The soft cap of logits: a smooth bound that keeps their order."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def soft_capped(logits: Float[Array, "*shape"], cap: float | None) -> Float[Array, "*shape"]:
    """cap * tanh(logits / cap): near 0 the logits, never beyond +-cap. No cap: as they are."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)
