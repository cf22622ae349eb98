"""Rotary positions: a position becomes an angle, so scores depend on distances alone.

The angles are the same in every layer, and for queries and keys: a model makes them once
(`rotary_angles`) and turns its heads by them (`rotate`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from chomp.errors import require
from chomp.kernels.platform import platform_of

# Axes: B batch, S sequence, H heads, K head width, P pairs of a head (K = 2 P).


Positions = Int[Array, "#B S"] | Int[Array, " S"] | Int[np.ndarray, "#B S"]


class Angles(NamedTuple):
    """Cosine and sine of the angle of every position and pair, in float32."""

    cos: Float32[Array, "#B S P"]
    sin: Float32[Array, "#B S P"]


def require_pairs(width: int) -> None:
    """Raise `ConfigError` unless heads of that width can be turned in pairs."""
    require(
        width % 2 == 0,
        f"heads of width {width}",
        allowed="even widths: rotary positions turn pairs",
        fix=f"set model.head_dim={width + 1}, or num_heads so that hidden_dim / num_heads is even",
    )


def rotary_angles(positions: Positions, *, width: int, theta: float) -> Angles:
    """Angles position * theta^(-2i/K) for pair i of heads of `width` K.

    One line of positions serves every row. Float32: in bfloat16, positions past 256 would share
    their angles. Positions that are known while tracing (numpy) become constants, made in float64:
    otherwise XLA on a CPU computes cosines again for every head of every layer, 110 of 1030 ms of a
    step (256 wide, four layers, two cores, November 2026).
    """
    require_pairs(width)
    half = width // 2
    rows = positions if positions.ndim == 2 else positions[None]
    if isinstance(rows, np.ndarray):
        angle = rows[:, :, None] * theta ** (-np.arange(half) / half)
        return Angles(
            jnp.asarray(np.cos(angle), jnp.float32), jnp.asarray(np.sin(angle), jnp.float32)
        )
    rate = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    turn = rows.astype(jnp.float32)[:, :, None] * rate[None, None, :]
    return Angles(jnp.cos(turn), jnp.sin(turn))


# The gradient of a turn is the turn back. Said here, because the derived one takes more passes:
# forward and backward in bfloat16 took 6.0 ms against 2.5 (16 x 256 rows of four heads of 64 on two
# CPU cores, November 2026).
@jax.custom_vjp
def rotate(x: Float[Array, "B S H K"], angles: Angles) -> Float[Array, "B S H K"]:
    """`x` with pair (i, i + K/2) of each head turned by its angle. Angles get no gradient."""
    return (by_halves if platform_of(x) == "cpu" else by_reversal)(x, angles)


def by_halves(x: Float[Array, "B S H K"], angles: Angles) -> Float[Array, "B S H K"]:
    """`rotate`, each half turned for itself: on a CPU 0.14 ms against 0.44 (November 2026)."""
    cos, sin = (part[:, :, None, :] for part in angles)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


def by_reversal(x: Float[Array, "B S H K"], angles: Angles) -> Float[Array, "B S H K"]:
    """`rotate` in one pass over `x`: its halves change places by a reversal, which XLA fuses.

    By halves it was three passes in the backward pass on an H200, 1.8 of 57 ms of a step at 124M
    (November 2026).
    """
    cos, sin = (part[:, :, None, None, :] for part in angles)
    halves = x.astype(jnp.float32).reshape(*x.shape[:3], 2, -1)
    sign = jnp.asarray([-1.0, 1.0], jnp.float32)[None, None, None, :, None]
    turned = halves * cos + jax.lax.rev(halves, (3,)) * (sin * sign)
    return turned.astype(x.dtype).reshape(x.shape)


def _rotate_forward(x: Array, angles: Angles) -> tuple[Array, Angles]:
    return rotate(x, angles), angles


def _rotate_backward(angles: Angles, gradient: Array) -> tuple[Array, None]:
    return rotate(gradient, Angles(angles.cos, -angles.sin)), None


rotate.defvjp(_rotate_forward, _rotate_backward)
