"""Rotary positions: a position becomes an angle, so scores depend on distances alone."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from chomp.errors import require

# Axes: B batch, S sequence, H heads, K head width.


def rotary(
    x: Float[Array, "B S H K"], positions: Int[Array, " S"], *, theta: float
) -> Float[Array, "B S H K"]:
    """`x` with pair (i, i + K/2) of each head turned by position * theta^(-2i/K).

    Angles are float32: in bfloat16, positions past 256 would share them.
    """
    width = x.shape[-1]
    require(
        width % 2 == 0,
        given=f"heads of width {width}",
        allowed="even widths: rotary positions turn pairs",
        fix=f"set model.head_dim={width + 1}, or num_heads so that hidden_dim / num_heads is even",
    )
    half = width // 2
    rate = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions.astype(jnp.float32)[:, None] * rate[None, :]
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    left, right = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)
