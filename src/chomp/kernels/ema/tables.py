"""Powers of q that all blocks of a row share, with their gradients in closed form.

A derivative by log q multiplies q^e by e, so every gradient is a sum over exponents of what the
tables hold already. Derived ones went through each doubling again, which was most of what the
moving average took to compile.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from chomp.kernels.ema.modes import EmaModes, Pair, doubled_powers, times

# Axes: D channels, N modes of a channel, M parts of all modes (2 N: real ones, imaginary ones),
# L tokens of a block.


class Tables(NamedTuple):
    """What a block needs of each channel."""

    taps: Float[Array, "D L"]  # K[0] .. K[L-1] of K[tau] = Re(sum_n g_n q_n^tau)
    into: Float[Array, "D L M"]  # q^(L-1-t): what a token adds to the states at its block's end
    out: Float[Array, "D L M"]  # g q^(t+1): what a token reads of the states at its block's start
    steps: list[Pair]  # q^L, q^2L, q^4L, ...; gradients are those of the first alone


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def block_tables(modes: EmaModes, length: int, blocks: int) -> Tables:
    """Tables for rows of `blocks` blocks of `length` tokens, a power of two."""
    levels, place = length.bit_length() - 1, np.arange(length)
    powers = doubled_powers(modes, levels + max(1, (blocks - 1).bit_length()))
    # Also what keeps XLA on a CPU from making cosines for every entry of the tables.
    doubled = _beside(powers, powers)
    # Im(z) = Re(-i z) and -Im(z) = Re(i z): both parts of a power are one pass, begun in two ways.
    one, nothing = jnp.ones_like(modes.decay), jnp.zeros_like(modes.decay)
    into = _products(_beside((one, nothing), (nothing, -one)), doubled, place[::-1])
    gain = _beside((modes.gain_re, modes.gain_im), (-modes.gain_im, modes.gain_re))
    out = _products(times(gain, (doubled.re[0], doubled.im[0])), doubled, place)
    taps = jnp.einsum("dtm,dm->dt", into, gain.re, precision=jax.lax.Precision.HIGHEST)
    steps = [Pair(*each) for each in zip(powers.re[levels:], powers.im[levels:], strict=True)]
    return Tables(jax.lax.rev(taps, (1,)), into, out, steps)


def _beside(one: tuple[Array, Array], other: tuple[Array, Array]) -> Pair:
    return Pair(*(jnp.concatenate(parts, -1) for parts in zip(one, other, strict=True)))


def _parts(x: Float[Array, "*rows M"]) -> Pair:
    return Pair(*jnp.split(x, 2, axis=-1))


def _products(
    start: Pair, doubled: Pair, exponents: Int[np.ndarray, " L"]
) -> Float[Array, "D L M"]:
    """Re(start q^e) of every exponent e: at most log2(L) factors, so as exact as those."""
    product = Pair(start.re[:, None], start.im[:, None])
    for bit in range((len(exponents) - 1).bit_length()):
        is_factor = ((exponents >> bit) % 2 == 1)[None, :, None]
        re = jnp.where(is_factor, doubled.re[bit, :, None], 1)
        product = times(product, (re, jnp.where(is_factor, doubled.im[bit, :, None], 0)))
    return product.re


_Saved = tuple[EmaModes, Tables]


def _forward(modes: EmaModes, length: int, blocks: int) -> tuple[Tables, _Saved]:
    tables = block_tables(modes, length, blocks)
    return tables, (modes, tables)


def _backward(length: int, blocks: int, saved: _Saved, slopes: Tables) -> tuple[EmaModes]:
    """With z' for the gradient of z: (q^e)' adds e conj(q^e) (q^e)' to (log q)'.

    A tap is the real part of what `out` holds one token earlier, summed over the modes, and so are
    their gradients; the first tap is the gain alone.
    """
    modes, tables = saved
    power, of_power = (_parts(jax.lax.rev(x, (1,))) for x in (tables.into, slopes.into))
    of_taps = jax.lax.pad(slopes.taps, np.float32(0), [(0, 0, 0), (-1, 1, 0)])[:, :, None]
    of_out = _parts(slopes.out)
    of_out = Pair(of_out.re + of_taps, -of_out.im)
    exponent = jnp.asarray(np.arange(length, dtype=np.float32)[None, :, None])
    read = _parts(tables.out[:, :1])  # g q
    turned = _turned_back(Pair(read.re, -read.im), of_out)
    pairs = zip(of_power, turned, strict=True)
    of_log = _turned_back(power, Pair(*(exponent * a + (exponent + 1) * b for a, b in pairs)))
    of_step = _turned_back(tables.steps[0], slopes.steps[0])
    of_gain = _turned_back(power, of_out)
    of_gain = _turned_back(_parts(tables.into[:, length - 2]), Pair(*(x.sum(1) for x in of_gain)))
    of_decay = -of_log.re.sum(1) - length * of_step.re
    of_modes = EmaModes(
        decay=jnp.where(modes.decay < 0, 0, of_decay),
        angle=of_log.im.sum(1) + length * of_step.im,
        gain_re=of_gain.re + slopes.taps[:, :1],
        gain_im=of_gain.im,
    )
    return (of_modes,)


def _turned_back(a: Pair, b: Pair) -> Pair:
    """conj(a) b."""
    return times((a.re, -a.im), b)


block_tables.defvjp(_forward, _backward)
