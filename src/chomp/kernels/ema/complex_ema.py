"""The two ways into the complex moving average: of rows of documents, and of a stream.

Either runs on each device's own rows and channels; what is kept for the backward pass is the input.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from chomp.errors import require
from chomp.kernels.ema.blocks import block_length, ema_of_blocks
from chomp.kernels.ema.modes import EmaModes, EmaState, Pair, doubled_powers, times
from chomp.kernels.ema.tables import block_tables

# Axes: B batch, S sequence, D channels, N modes of a channel.

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
    rows, channels = _cuts(sharding)
    place = partial(_placed, mesh=sharding.mesh)
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
    rows, channels = _cuts(sharding)
    place = partial(_placed, mesh=sharding.mesh)
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


def _placed(x: Array, spec: P, *, mesh: Any) -> Array:
    return jax.reshard(x, NamedSharding(mesh, spec))


def _cuts(sharding: NamedSharding) -> tuple[Any, Any]:
    """Over which mesh axes the rows are cut, and the channels."""
    rows, sequence, channels = sharding.spec
    require(
        sequence is None,
        f"a moving average over x cut as {sharding.spec}",
        allowed="cuts of the rows and of the channels",
        fix="reshard x so that the second axis, the sequence, is whole",
    )
    return rows, channels
