"""The modes of a complex moving average, the state they leave behind, and powers of their factors.

Complex numbers are pairs of float32 arrays: XLA vectorises those on a CPU, and a batched product of
complex arrays makes cuBLAS reserve gigabytes.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

# Axes: B batch, D channels, N modes of a channel.


class Pair(NamedTuple):
    """Complex numbers as their two parts."""

    re: Float[Array, "..."]
    im: Float[Array, "..."]


class EmaModes(NamedTuple):
    """What each mode keeps of its state per token, and what it gives: q and g of channel and mode.

    q = exp(-decay + i angle): the decay itself, as a |q| near 1 would round away what is left of it
    to 1. A decay below 0 counts as 0 and gets no gradient; g = gain_re + i gain_im includes the
    factor of the input.
    """

    decay: Float[Array, "D N"]
    angle: Float[Array, "D N"]
    gain_re: Float[Array, "D N"]
    gain_im: Float[Array, "D N"]


class EmaState(NamedTuple):
    """The modes' states s after the last token seen: s_t = q s_{t-1} + x_t."""

    re: Float[Array, "B D N"]
    im: Float[Array, "B D N"]


def empty_ema_state(batch: int, modes: EmaModes) -> EmaState:
    """States that have seen nothing."""
    zeros = jnp.zeros((batch, *modes.decay.shape), modes.decay.dtype)
    return EmaState(zeros, zeros)


def times(a: tuple[Array, Array], b: tuple[Array, Array]) -> Pair:
    """The complex product of two pairs of one rank."""
    return Pair(a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])


def clamped(decay: Float[Array, "D N"]) -> Float[Array, "D N"]:
    """`decay`, at least 0. By `where`, so that a decay of exactly 0 keeps its gradient."""
    return jnp.where(decay < 0, jnp.zeros_like(decay), decay)


def doubled_powers(modes: EmaModes, count: int) -> Pair:
    """q^1, q^2, q^4, ... of `count` exponents, each to about the last bit.

    A power of two times the angle is exact in float32, so the phase does not drift with the
    exponent; repeated squaring would lose one bit for each.
    """
    # All exponents at once, modes as one long axis: XLA for a CPU writes out an axis of 16, with
    # an exponential for each, which then takes LLVM as long as the rest of the average.
    decay, angle = (part.reshape(1, -1) for part in (clamped(modes.decay), modes.angle))
    exponents = jnp.asarray(2.0 ** np.arange(count), decay.dtype)[:, None]
    size, turn = jnp.exp(-exponents * decay), exponents * angle
    powers = Pair(size * jnp.cos(turn), size * jnp.sin(turn))
    return Pair(*(part.reshape(count, *modes.decay.shape) for part in powers))


def row_major(x: Array) -> Array:
    """`x`, its last axis contiguous in memory, and its gradient too.

    XLA takes a transposition for a view, and then every pass over it strides: forward and backward
    of packed rows took 414 ms against 138 (2 x 1024 x 1024, two CPU cores, November 2026).
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
