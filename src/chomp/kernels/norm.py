"""Root-mean-square normalisation, in float32 whatever comes in."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Axes: D the axis that is normalised.


def rms_norm(
    x: Float[Array, "*rows D"], scale: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """x / rms(x) times a learned scale, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    scale = jnp.broadcast_to(scale.astype(jnp.float32), x.shape)
    return (x32 * inverse_rms * scale).astype(x.dtype)
