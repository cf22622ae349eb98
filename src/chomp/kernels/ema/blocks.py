"""The moving average of whole rows, block by block, with no state kept per token.

A token sees the tokens of its own block by taps K[tau] = Re(sum_n g_n q_n^tau), and those of
earlier blocks through the states at its block's start. Where a document starts, everything earlier
is masked. Each mask is one on the tokens read or on the tokens written, never on pairs of them:
packed rows go through a block half by half, which takes products all the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from chomp.kernels.ema.carry import carried
from chomp.kernels.ema.modes import EmaState, Pair, row_major
from chomp.kernels.ema.near import TAPS, near_taps
from chomp.kernels.ema.tables import Tables
from chomp.kernels.platform import platform_of

# Axes: B batch, C blocks of a row, D channels, N modes of a channel, M parts of all modes (2 N),
# L tokens of a block, V of a piece of a block, W of half a piece, K pieces of all rows, T tokens of
# all blocks.
# In products t is a token written, s one read.

# Longer blocks make fewer states (2 N / L per token), shorter ones smaller tables (2 N L). With
# tables made by doubling, forward and backward of 2 x 1024 x 1024 took 137 ms by blocks of 32 on
# two cores, 159 by 64, 165 by 16; a GPU passes over all states once for each doubling, so there are
# to be few (November 2026).
CPU_BLOCK, BLOCK = 32, 64
SHORT_ROW = 4096


def block_length(x: Float[Array, "B S D"]) -> int:
    """Tokens of a block for these rows: a power of two."""
    # A loop over blocks adds a rounding for each: rows of many tokens are to have few.
    is_short = platform_of(x) == "cpu" and x.shape[1] <= SHORT_ROW
    most = CPU_BLOCK if is_short else BLOCK
    return min(most, max(TAPS, 1 << (x.shape[1] - 1).bit_length()))


def ema_of_blocks(
    x: Float[Array, "B T D"],
    tables: Tables,
    positions: Int[Array, "B T"] | None,
    state: EmaState | None,
) -> tuple[Float[Array, "B T D"], Pair]:
    """The moving average of rows of whole blocks, and the states at the start of each block."""
    # Channels first: the products are batched over them. One transposition in, one out.
    channels = row_major(x.transpose(2, 0, 1))
    states = states_at_starts(channels, tables, positions, state)
    y = read_states(states, tables, positions, channels.shape)
    if positions is None:
        y = y + within_blocks(channels, tables.taps)
        return row_major(y).transpose(1, 2, 0), states
    width = TAPS
    while width < tables.taps.shape[1]:
        y = y + from_first_halves(channels, tables.taps[:, : 2 * width], positions)
        width *= 2
    place = jnp.asarray(np.arange(x.shape[1], dtype=np.int32)[None] % TAPS)
    near = near_taps(x, tables.taps[:, :TAPS], jnp.minimum(positions, place))
    return near + row_major(y).transpose(1, 2, 0), states


def within_blocks(x: Float[Array, "D B T"], taps: Float[Array, "D L"]) -> Float[Array, "D B T"]:
    """What the tokens of every block give to those of the same block, all of one document."""
    read = x.reshape(x.shape[0], -1, taps.shape[1])
    return _product("dks,dst->dkt", read, _apart(taps, 0)).reshape(x.shape)


def from_first_halves(
    x: Float[Array, "D B T"], taps: Float[Array, "D V"], positions: Int[Array, "B T"]
) -> Float[Array, "D B T"]:
    """What the second half of every piece of V tokens gets from the piece's first half.

    Tokens that may be read are those of the document open at the first half's end; tokens that may
    read are those whose document came over from there.
    """
    width = taps.shape[1] // 2
    read = x.reshape(x.shape[0], -1, 2, width)[:, :, 0]
    last = positions.reshape(-1, 2 * width)[:, width - 1 : width]
    read = jnp.where((last >= width - 1 - np.arange(width, dtype=np.int32)[None])[None], read, 0)
    # Zeros for the first half: cheaper than to put the results of the second in their places.
    given = _product("dks,dst->dkt", read, _apart(taps, width)[:, :width]).reshape(x.shape)
    place = np.arange(x.shape[2], dtype=np.int32)[None] % (2 * width) - width
    return jnp.where((positions > place)[None], given, 0)


def _apart(taps: Float[Array, "D V"], start: int) -> Float[Array, "D V V"]:
    """taps[t - s] of a token s read and a token t written; 0 where t is before s or `start`.

    By a product with zeros and ones: a gather would be a scatter in the backward pass.
    """
    place = np.arange(taps.shape[1])
    distance = place[None] - place[:, None]
    is_tap = (distance[None] == place[:, None, None]) & (place >= start)[None, None]
    return _product("dv,vst->dst", taps, jnp.asarray(is_tap, taps.dtype))


def states_at_starts(
    x: Float[Array, "D B T"],
    tables: Tables,
    positions: Int[Array, "B T"] | None,
    state: EmaState | None,
) -> Pair:
    """The states at the start of every block, [C, B, D, N]."""
    channels, batch, _ = x.shape
    length, modes = tables.taps.shape[1], tables.into.shape[2] // 2
    read, keeps = x.reshape(channels, -1, length), None
    if positions is not None:
        last = positions.reshape(-1, length)[:, -1:]
        read = jnp.where(
            (last >= length - 1 - np.arange(length, dtype=np.int32)[None])[None], read, 0
        )
        keeps = (last >= length).reshape(batch, -1).T
    added = row_major(_product("dkl,dlm->dkm", read, tables.into))
    added = row_major(added.reshape(channels, batch, -1, 2, modes).transpose(2, 1, 0, 3, 4))
    re, im = (_delayed(added[:, :, :, part], state and state[part]) for part in range(2))
    keeps = None if keeps is None else jnp.concatenate([jnp.ones_like(keeps[:1]), keeps[:-1]])
    return Pair(*carried((re, im), [tuple(step) for step in tables.steps], keeps))


def _delayed(
    added: Float[Array, "C B D N"], first: Float[Array, "B D N"] | None
) -> Float[Array, "C B D N"]:
    """What the block before each one added; before the first one, what a stream brings."""
    start = jnp.zeros_like(added[:1]) if first is None else first[None]
    return jnp.concatenate([start, added[:-1]])


def read_states(
    states: Pair,
    tables: Tables,
    positions: Int[Array, "B T"] | None,
    shape: tuple[int, ...],
) -> Float[Array, "D B T"]:
    """What the tokens read of the states at their block's start, `shape` being the result's."""
    length = tables.taps.shape[1]
    rows = row_major(row_major(jnp.concatenate(states, 3)).transpose(2, 1, 0, 3))
    given = _product("dtm,dkm->dkt", tables.out, rows.reshape(shape[0], -1, rows.shape[3]))
    if positions is not None:
        place = np.arange(length, dtype=np.int32)[None]
        given = jnp.where((positions.reshape(-1, length) > place)[None], given, 0)
    return given.reshape(shape)


def _product(letters: str, a: Array, b: Array) -> Array:
    # On a GPU float32 products would otherwise be made of TF32's ten bits.
    return jnp.einsum(letters, a, b, precision=jax.lax.Precision.HIGHEST)
