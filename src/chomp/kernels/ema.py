"""The complex exponential moving average of Megalodon, for packed rows and for streams.

`reference_ema` is the specification: the recurrence, one token after another. The fast way works by
blocks and keeps no state per token. A token sees the tokens of its own block by taps K[tau] =
Re(sum_n g_n q_n^tau), and earlier blocks through the state at the start of its block. Everything
before the start of a document is masked. Masks are on the tokens read or on the tokens written,
never on pairs: packed rows go through a block half by half, by products all the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from chomp.errors import require
from chomp.kernels.platform import platform_of

# Axes: B batch, S sequence, D channels, N modes of a channel, M parts of all modes (2 N: real ones,
# imaginary ones), C blocks of a row, L tokens of a block (or taps), V of a piece of a block, W of
# half a piece, K pieces of all rows, T tokens of all blocks. In products t is a token written, s
# one read.


# ---- Modes, states and powers -------------------------------------------------------------------
#
# Complex numbers are pairs of float32 arrays: XLA vectorises those on a CPU, and a batched product
# of complex arrays makes cuBLAS reserve gigabytes.


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


def clamp_decay(decay: Float[Array, "D N"]) -> Float[Array, "D N"]:
    """`decay`, at least 0. By `where`, so that a decay of exactly 0 keeps its gradient."""
    return jnp.where(decay < 0, jnp.zeros_like(decay), decay)


def doubled_powers(modes: EmaModes, count: int) -> Pair:
    """q^1, q^2, q^4, ... of `count` exponents, each to about the last bit.

    A power of two times the angle is exact in float32, so the phase does not drift with the
    exponent; repeated squaring would lose one bit for each.
    """
    # All exponents at once, modes as one long axis: XLA for a CPU writes out an axis of 16, with
    # an exponential for each, which then takes LLVM as long as the rest of the average.
    decay, angle = (part.reshape(1, -1) for part in (clamp_decay(modes.decay), modes.angle))
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


# ---- The specification --------------------------------------------------------------------------


def reference_ema(
    x: Float[Array, "B S D"],
    modes: EmaModes,
    positions: Int[Array, "B S"],
    state: EmaState | None = None,
) -> tuple[Float[Array, "B S D"], EmaState]:
    """y_t = Re(sum_n g_n s_tn) of s_t = q s_{t-1} + x_t, and the last state.

    A token at position 0 forgets what was before it, also what `state` brings.
    """
    radius = jnp.exp(-clamp_decay(modes.decay))
    q = radius * jnp.cos(modes.angle), radius * jnp.sin(modes.angle)

    def step(state: EmaState, token: tuple[Array, Array]) -> tuple[EmaState, Array]:
        x, position = token
        kept = jnp.where((position > 0)[:, None, None], jnp.stack(state), 0)
        moved = times((q[0][None], q[1][None]), (kept[0], kept[1]))
        state = EmaState(moved.re + x[:, :, None], moved.im)
        given = times((modes.gain_re[None], modes.gain_im[None]), state)
        return state, given.re.sum(-1)

    start = empty_ema_state(x.shape[0], modes) if state is None else state
    last, y = jax.lax.scan(step, start, (x.transpose(1, 0, 2), positions.T))
    return y.transpose(1, 0, 2), last


# ---- Powers of q that all blocks share, with their gradients in closed form ---------------------
#
# A derivative by log q multiplies q^e by e, so every gradient is a sum over exponents of what the
# tables hold already. Automatic ones went through each doubling again, which was most of the
# compile time of the moving average.


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
    doubled = _concat(powers, powers)
    # Im(z) = Re(-i z) and -Im(z) = Re(i z): both parts of a power are one pass, begun in two ways.
    one, nothing = jnp.ones_like(modes.decay), jnp.zeros_like(modes.decay)
    into = _powers_table(_concat((one, nothing), (nothing, -one)), doubled, place[::-1])
    gain = _concat((modes.gain_re, modes.gain_im), (-modes.gain_im, modes.gain_re))
    out = _powers_table(times(gain, (doubled.re[0], doubled.im[0])), doubled, place)
    taps = jnp.einsum("dtm,dm->dt", into, gain.re, precision=jax.lax.Precision.HIGHEST)
    steps = [Pair(*each) for each in zip(powers.re[levels:], powers.im[levels:], strict=True)]
    return Tables(jax.lax.rev(taps, (1,)), into, out, steps)


def _concat(one: tuple[Array, Array], other: tuple[Array, Array]) -> Pair:
    return Pair(*(jnp.concatenate(parts, -1) for parts in zip(one, other, strict=True)))


def _parts(x: Float[Array, "*rows M"]) -> Pair:
    return Pair(*jnp.split(x, 2, axis=-1))


def _powers_table(
    start: Pair, doubled: Pair, exponents: Int[np.ndarray, " L"]
) -> Float[Array, "D L M"]:
    """Re(start q^e) of every exponent e: at most log2(L) factors, so as exact as those."""
    product = Pair(start.re[:, None], start.im[:, None])
    for bit in range((len(exponents) - 1).bit_length()):
        is_factor = ((exponents >> bit) % 2 == 1)[None, :, None]
        re = jnp.where(is_factor, doubled.re[bit, :, None], 1)
        product = times(product, (re, jnp.where(is_factor, doubled.im[bit, :, None], 0)))
    return product.re


_TablesSaved = tuple[EmaModes, Tables]


def _tables_forward(modes: EmaModes, length: int, blocks: int) -> tuple[Tables, _TablesSaved]:
    tables = block_tables(modes, length, blocks)
    return tables, (modes, tables)


def _tables_backward(
    length: int, blocks: int, saved: _TablesSaved, d_tables: Tables
) -> tuple[EmaModes]:
    """With z' for the gradient of z: (q^e)' adds e conj(q^e) (q^e)' to (log q)'.

    A tap is the real part of what `out` holds one token earlier, summed over the modes, and so are
    their gradients; the first tap is the gain alone.
    """
    modes, tables = saved
    power, of_power = (_parts(jax.lax.rev(x, (1,))) for x in (tables.into, d_tables.into))
    of_taps = jax.lax.pad(d_tables.taps, np.float32(0), [(0, 0, 0), (-1, 1, 0)])[:, :, None]
    of_out = _parts(d_tables.out)
    of_out = Pair(of_out.re + of_taps, -of_out.im)
    exponent = jnp.asarray(np.arange(length, dtype=np.float32)[None, :, None])
    read = _parts(tables.out[:, :1])  # g q
    moved = _times_conj(Pair(read.re, -read.im), of_out)
    pairs = zip(of_power, moved, strict=True)
    of_log = _times_conj(power, Pair(*(exponent * a + (exponent + 1) * b for a, b in pairs)))
    of_step = _times_conj(tables.steps[0], d_tables.steps[0])
    of_gain = _times_conj(power, of_out)
    of_gain = _times_conj(_parts(tables.into[:, length - 2]), Pair(*(x.sum(1) for x in of_gain)))
    of_decay = -of_log.re.sum(1) - length * of_step.re
    of_modes = EmaModes(
        decay=jnp.where(modes.decay < 0, 0, of_decay),
        angle=of_log.im.sum(1) + length * of_step.im,
        gain_re=of_gain.re + d_tables.taps[:, :1],
        gain_im=of_gain.im,
    )
    return (of_modes,)


def _times_conj(a: Pair, b: Pair) -> Pair:
    """conj(a) b."""
    return times((a.re, -a.im), b)


block_tables.defvjp(_tables_forward, _tables_backward)


# ---- States carried over blocks: a linear recurrence with one step per block --------------------
#
# Its gradient is the same recurrence run backwards, so neither way of running it is differentiated.


States = tuple[Float[Array, "C B D N"], Float[Array, "C B D N"]]
Factor = tuple[Float[Array, "D N"], Float[Array, "D N"]]
# A factor f, and f^2, f^4, ... up to the number of blocks. Gradients are those of f alone.
Factors = list[Factor]
Keeps = Bool[Array, "C B"] | None


@jax.custom_vjp
def scan_states(added: States, factors: Factors, keeps: Keeps) -> States:
    """h_c = added_c + f h_{c-1}, the second term only where `keeps` says so (None: always)."""
    # A loop on a CPU, where XLA would fuse the doublings into one pass that computes each anew.
    return _scan_states(added, factors, keeps, is_backwards=False)


def _scan_states(added: States, factors: Factors, keeps: Keeps, *, is_backwards: bool) -> States:
    by = scan_by_loop if platform_of(added[0]) == "cpu" else scan_by_doubling
    return by(added, factors, keeps, is_backwards=is_backwards)


def scan_by_loop(
    added: States, factors: Factors, keeps: Keeps, *, is_backwards: bool = False
) -> States:
    """`scan_states`, one block after another; backwards, from each block to the one before it."""
    factor = factors[0][0][None], factors[0][1][None]

    def step(state: Pair, block: tuple[tuple[Array, Array], Array | None]) -> tuple[Pair, Pair]:
        (re, im), keep = block
        moved = times(factor, _kept(state, keep))
        state = Pair(re + moved.re, im + moved.im)
        return state, state

    start = Pair(*(jnp.zeros_like(part[0]) for part in added))
    states = jax.lax.scan(step, start, (added, keeps), reverse=is_backwards)[1]
    return states.re, states.im


def scan_by_doubling(
    added: States, factors: Factors, keeps: Keeps, *, is_backwards: bool = False
) -> States:
    """`scan_states` in log2(C) passes: what came over 1, 2, 4, ... blocks. Few kernels on a GPU."""
    state = Pair(*added)
    for doubling in range((added[0].shape[0] - 1).bit_length()):
        re, im = factors[doubling]
        count = -(2**doubling) if is_backwards else 2**doubling
        earlier = Pair(*(_delay_axis0(part, count) for part in state))
        moved = times((re[None, None], im[None, None]), _kept(earlier, keeps))
        # Without the barrier XLA recomputes a pass in each pass that reads it twice.
        re, im = jax.lax.optimization_barrier((state.re + moved.re, state.im + moved.im))
        state = Pair(re, im)
        keeps = None if keeps is None else keeps & _delay_axis0(keeps, count)
    return state.re, state.im


def _delay_axis0(x: Array, count: int) -> Array:
    """`x` moved by `count` along its first axis, or back; nothing (0, False) comes in."""
    others = [(0, 0, 0)] * (x.ndim - 1)
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [(count, -count, 0), *others])


def _kept(state: Pair, keep: Bool[Array, "..."] | None) -> Pair:
    if keep is None:
        return state
    return Pair(*(jnp.where(keep[..., None, None], part, 0) for part in state))


_ScanSaved = tuple[States, Factors, Keeps]


def _scan_forward(added: States, factors: Factors, keeps: Keeps) -> tuple[States, _ScanSaved]:
    states = scan_states(added, factors, keeps)
    return states, (states, factors, keeps)


def _scan_backward(saved: _ScanSaved, gradient: States) -> tuple[States, Factors, None]:
    states, factors, keeps = saved
    conjugates = [(re, -im) for re, im in factors]
    # Backwards, block c goes on to c - 1 where c keeps it: the flags, too, move by one.
    flags = None if keeps is None else _delay_axis0(keeps, -1)
    reached = Pair(*_scan_states(gradient, conjugates, flags, is_backwards=True))
    before = _kept(Pair(*(_delay_axis0(part, 1) for part in states)), keeps)
    d_tap = times(reached, (before.re, -before.im))
    first = (d_tap.re.sum((0, 1)), d_tap.im.sum((0, 1)))
    others = [(jnp.zeros_like(re), jnp.zeros_like(im)) for re, im in factors[1:]]
    return (reached.re, reached.im), [first, *others], None


scan_states.defvjp(_scan_forward, _scan_backward)


# ---- The nearest taps: sums over a few tokens, no products --------------------------------------
#
# Within pieces of `TAPS` tokens, so that documents cost one comparison per tap.


TAPS = 8


# Automatic gradients are sums over tokens of shifted arrays, which XLA for a CPU does one number at
# a time: seven milliseconds a tap (2 x 1024 x 1024, November 2026).
@jax.custom_vjp
def near_taps(
    x: Float[Array, "B T D"], taps: Float[Array, "D L"], reach: Int[Array, "B T"]
) -> Float[Array, "B T D"]:
    """sum of taps[tau] x_{t-tau} over tau up to `reach` of t, at most its place in its piece.

    T is a multiple of the number of taps, and so long is a piece.
    """
    y = x * taps[:, 0][None, None]
    for tau in range(1, taps.shape[1]):
        y = y + jnp.where((reach >= tau)[:, :, None], _shift(x, tau), 0) * taps[:, tau][None, None]
    return y


def _shift(x: Array, count: int) -> Array:
    """`x` that many tokens later, or earlier; zeros come in."""
    return jax.lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0), (count, -count, 0), (0, 0, 0)])


_TapsSaved = tuple[Array, Array, Array]


def _taps_forward(x: Array, taps: Array, reach: Array) -> tuple[Array, _TapsSaved]:
    return near_taps(x, taps, reach), (x, taps, reach)


def _taps_backward(saved: _TapsSaved, gradient: Array) -> tuple[Array, Array, None]:
    x, taps, reach = saved
    of_x = gradient * taps[:, 0][None, None]
    for tau in range(1, taps.shape[1]):
        read = jnp.where((reach >= tau)[:, :, None], gradient, 0)
        of_x = of_x + _shift(read, -tau) * taps[:, tau][None, None]
    return of_x, _tap_grads(x, gradient, reach, taps.shape[1]), None


def _tap_grads(x: Array, gradient: Array, reach: Array, length: int) -> Array:
    """Gradients of the taps: first over the pairs of a piece, then over the pieces."""
    x, gradient = (part.reshape(-1, length, x.shape[2]) for part in (x, gradient))
    reach = reach.reshape(-1, length)
    ones = jnp.ones(x.shape[0], x.dtype)

    def d_tap(tau: int) -> Array:
        pairs = (
            jnp.where((reach[:, t] >= tau)[:, None], x[:, t - tau] * gradient[:, t], 0)
            for t in range(tau, length)
        )
        return jnp.einsum("k,kd->d", ones, sum(pairs), precision=jax.lax.Precision.HIGHEST)

    return jnp.stack([d_tap(tau) for tau in range(length)], 1)


near_taps.defvjp(_taps_forward, _taps_backward)


# ---- Whole rows, block by block -----------------------------------------------------------------


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
    return _einsum("dks,dst->dkt", read, _toeplitz(taps, 0)).reshape(x.shape)


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
    given = _einsum("dks,dst->dkt", read, _toeplitz(taps, width)[:, :width]).reshape(x.shape)
    place = np.arange(x.shape[2], dtype=np.int32)[None] % (2 * width) - width
    return jnp.where((positions > place)[None], given, 0)


def _toeplitz(taps: Float[Array, "D V"], start: int) -> Float[Array, "D V V"]:
    """taps[t - s] of a token s read and a token t written; 0 where t is before s or `start`.

    By a product with zeros and ones: a gather would be a scatter in the backward pass.
    """
    place = np.arange(taps.shape[1])
    distance = place[None] - place[:, None]
    is_tap = (distance[None] == place[:, None, None]) & (place >= start)[None, None]
    return _einsum("dv,vst->dst", taps, jnp.asarray(is_tap, taps.dtype))


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
    added = row_major(_einsum("dkl,dlm->dkm", read, tables.into))
    added = row_major(added.reshape(channels, batch, -1, 2, modes).transpose(2, 1, 0, 3, 4))
    re, im = (_delayed(added[:, :, :, part], state and state[part]) for part in range(2))
    keeps = None if keeps is None else jnp.concatenate([jnp.ones_like(keeps[:1]), keeps[:-1]])
    return Pair(*scan_states((re, im), [tuple(step) for step in tables.steps], keeps))


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
    given = _einsum("dtm,dkm->dkt", tables.out, rows.reshape(shape[0], -1, rows.shape[3]))
    if positions is not None:
        place = np.arange(length, dtype=np.int32)[None]
        given = jnp.where((positions.reshape(-1, length) > place)[None], given, 0)
    return given.reshape(shape)


def _einsum(letters: str, a: Array, b: Array) -> Array:
    # On a GPU float32 products would otherwise be made of TF32's ten bits.
    return jnp.einsum(letters, a, b, precision=jax.lax.Precision.HIGHEST)


# ---- The two entries: rows of documents, and a stream -------------------------------------------
#
# Both run on each device's own rows and channels. Only the input is kept for the backward pass.


Positions = Int[Array, "#B S"] | Int[np.ndarray, "#B S"]
# Padding at a row's end belongs to its last document, whatever that is.
_NO_START = np.int32(2**30)
_EXACT = jax.lax.Precision.HIGHEST


def complex_ema(
    x: Float[Array, "B S D"], modes: EmaModes, positions: Positions | None = None
) -> Float[Array, "B S D"]:
    """y_t = Re(sum_n g_n s_tn) of s_t = q s_{t-1} + x_t, in float32, back in x's dtype.

    `positions` are each token's place in its own document, counting from 0, where the states are
    fresh; one line serves all rows, None means that a row is one document. The backward pass makes
    everything again from `x`. On a mesh rows and channels may be cut, the sequence not.
    """
    run = jax.checkpoint(_rows)
    sharding = jax.typeof(x).sharding
    if positions is not None:
        positions = jnp.broadcast_to(jnp.asarray(positions, jnp.int32), x.shape[:2])
    if sharding.mesh.empty:
        return run(x, modes, positions)
    rows, channels = _mesh_axes(sharding)
    place = partial(_reshard, mesh=sharding.mesh)
    of_modes, of_positions = P(channels, None), P(rows, None)
    sharded = jax.shard_map(
        _on_rows(run, rows),
        mesh=sharding.mesh,
        in_specs=(sharding.spec, of_modes, None if positions is None else of_positions),
        out_specs=sharding.spec,
    )
    positions = None if positions is None else place(positions, of_positions)
    return sharded(x, EmaModes(*(place(part, of_modes) for part in modes)), positions)


def continued_ema(
    x: Float[Array, "B S D"], modes: EmaModes, state: EmaState
) -> tuple[Float[Array, "B S D"], EmaState]:
    """The moving average of what comes after all that `state` has seen, and the state after it.

    One token costs one step of the recurrence; more are taken by blocks.
    """
    run = _next_token if x.shape[1] == 1 else _stream
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty:
        return run(x, modes, state)
    rows, channels = _mesh_axes(sharding)
    place = partial(_reshard, mesh=sharding.mesh)
    of_modes, of_state = P(channels, None), P(rows, channels, None)
    sharded = jax.shard_map(
        _on_rows(run, rows),
        mesh=sharding.mesh,
        in_specs=(sharding.spec, of_modes, of_state),
        out_specs=(sharding.spec, of_state),
    )
    modes = EmaModes(*(place(part, of_modes) for part in modes))
    return sharded(x, modes, EmaState(*(place(part, of_state) for part in state)))


def _on_rows(run: Callable[..., Any], rows: Any) -> Callable[..., Any]:
    """`run` with modes that count as another set on each device's rows: gradients are added up."""
    names = () if rows is None else (rows,) if isinstance(rows, str) else tuple(rows)

    def local(x: Array, modes: EmaModes, other: Any) -> Any:
        return run(
            x, EmaModes(*(jax.lax.pcast(part, names, to="varying") for part in modes)), other
        )

    return local if names else run


def _rows(x: Array, modes: EmaModes, positions: Array | None) -> Array:
    tokens = x.shape[1]
    length = block_length(x)
    tables = block_tables(modes, length, -(-tokens // length))
    if positions is not None:
        more = [(0, 0, 0), (0, -tokens % length, 0)]
        positions = jax.lax.pad(positions, _NO_START, more)
    y, _ = ema_of_blocks(_whole_blocks(x, length), tables, positions, None)
    return y[:, :tokens].astype(x.dtype)


def _stream(x: Array, modes: EmaModes, state: EmaState) -> tuple[Array, EmaState]:
    tokens = x.shape[1]
    length = block_length(x)
    blocks = -(-tokens // length)
    tables = block_tables(modes, length, blocks)
    padded = _whole_blocks(x, length)
    y, starts = ema_of_blocks(padded, tables, None, state)
    # The last block may be cut short: its states end where its own tokens do.
    rest = tokens - (blocks - 1) * length
    into = tables.into[:, length - rest :]
    own = jnp.einsum("btd,dtm->bdm", padded[:, -length:][:, :rest], into, precision=_EXACT)
    own_re, own_im = jnp.split(own, 2, axis=2)
    # q^rest by its last factor and the power before, which the table ends with.
    past = Pair(*(part[None] for part in jnp.split(into[:, 0], 2, axis=1)))
    moved = times(times(past, _factor(modes)), Pair(starts.re[-1], starts.im[-1]))
    return y[:, :tokens].astype(x.dtype), EmaState(moved.re + own_re, moved.im + own_im)


def _next_token(x: Array, modes: EmaModes, state: EmaState) -> tuple[Array, EmaState]:
    moved = times(_factor(modes), state)
    state = EmaState(moved.re + x.astype(moved.re.dtype).transpose(0, 2, 1), moved.im)
    given = times((modes.gain_re[None], modes.gain_im[None]), state)
    return given.re.sum(-1)[:, None].astype(x.dtype), state


def _factor(modes: EmaModes) -> Pair:
    """q, with an axis for the batch."""
    return doubled_powers(modes, 1)


def _whole_blocks(x: Array, length: int) -> Array:
    """`x` in float32, filled up to whole blocks."""
    fill = [(0, 0, 0), (0, -x.shape[1] % length, 0), (0, 0, 0)]
    return jax.lax.pad(x.astype(jnp.float32), np.float32(0), fill)


def _reshard(x: Array, spec: P, *, mesh: Any) -> Array:
    return jax.reshard(x, NamedSharding(mesh, spec))


def _mesh_axes(sharding: NamedSharding) -> tuple[Any, Any]:
    """Over which mesh axes the rows are cut, and the channels."""
    rows, sequence, channels = sharding.spec
    require(
        sequence is None,
        f"a moving average over x cut as {sharding.spec}",
        allowed="cuts of the rows and of the channels",
        fix="reshard x so that the second axis, the sequence, is whole",
    )
    return rows, channels
