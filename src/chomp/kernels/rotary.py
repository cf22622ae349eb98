"""Rotary positions: a position becomes an angle, so scores depend on distances alone.

The angles are the same in every layer, and for queries and keys: a model makes them once
(`rotary_angles`) and turns its heads by them (`rotate`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from chomp.errors import require

# Axes: B batch, S sequence, H heads, K head width, P pairs of a head (K = 2 P).


class Angles(NamedTuple):
    """Cosine and sine of the angle of every position and pair, in float32."""

    cos: Float32[Array, "#B S P"]
    sin: Float32[Array, "#B S P"]


def require_pairs(width: int) -> None:
    """Raise `ConfigError` unless heads of that width can be turned in pairs."""
    require(
        width % 2 == 0,
        given=f"heads of width {width}",
        allowed="even widths: rotary positions turn pairs",
        fix=f"set model.head_dim={width + 1}, or num_heads so that hidden_dim / num_heads is even",
    )


def rotary_angles(
    positions: Int[Array, "#B S"] | Int[Array, " S"], *, width: int, theta: float
) -> Angles:
    """Angles position * theta^(-2i/K) for pair i of heads of `width` K.

    One line of positions serves every row. Float32: in bfloat16, positions past 256 would share
    their angles.
    """
    require_pairs(width)
    half = width // 2
    rate = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    rows = positions if positions.ndim == 2 else positions[None]
    angle = rows.astype(jnp.float32)[:, :, None] * rate[None, None, :]
    return Angles(jnp.cos(angle), jnp.sin(angle))


# The gradient of a turn is the turn back. Said here, because the derived one takes more passes:
# forward and backward in bfloat16 took 6.0 ms against 2.5 (16 x 256 rows of four heads of 64 on two
# CPU cores, November 2026).
@jax.custom_vjp
def rotate(x: Float[Array, "B S H K"], angles: Angles) -> Float[Array, "B S H K"]:
    """`x` with pair (i, i + K/2) of each head turned by its angle. Angles get no gradient."""
    # Halves that change places by a reversal are read in one pass. Two halves put together by a
    # concatenation were three passes in the backward pass on a GPU, 1.8 of 57 ms of a step at 124M.
    halves = x.reshape(*x.shape[:3], 2, -1).astype(jnp.float32)
    cos, sin = (part[:, :, None, None, :] for part in angles)
    sign = jnp.asarray([-1.0, 1.0], jnp.float32)[None, None, None, :, None]
    turned = halves * cos + jax.lax.rev(halves, (3,)) * (sin * sign)
    return turned.astype(x.dtype).reshape(x.shape)


def _rotate_forward(x: Array, angles: Angles) -> tuple[Array, Angles]:
    return rotate(x, angles), angles


def _rotate_backward(angles: Angles, gradient: Array) -> tuple[Array, None]:
    return rotate(gradient, Angles(angles.cos, -angles.sin)), None


rotate.defvjp(_rotate_forward, _rotate_backward)
