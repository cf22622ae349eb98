"""Which rows an expert works on: tokens copied to their experts, and results brought back.

Both ways are linear maps, and each is the other's transpose: a copy for every chosen expert, and
the sum of what came of the copies. So the backward pass brings gradients by the same two.

With experts on several devices, every device sends each of them at most `capacity` rows at once,
those of the highest weights first. What is left is dropped, which makes its part of the sum zero,
or goes in another round.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from chomp.errors import require

# Axes: T tokens, K experts of a token, A = T K assignments, M rows, E experts, D model width,
# N devices that share the experts. All of one device; rows are sorted by expert.

EXPERT_AXIS = "expert"
_MAX_KEY = 2**31 - 1


class Ranks(NamedTuple):
    """Where a device's assignments go, and which of them go first."""

    device: Int[Array, " A"]
    rank: Int[Array, " A"]  # among those for the same device
    most: Int[Array, ""]  # with a weight, for any one device


class Exchange(NamedTuple):
    """How rows lie on the plan: N buckets in the order of senders, or sorted by expert."""

    order: Int[Array, " M"]  # place in the buckets of each sorted row
    place: Int[Array, " M"]  # and back


class Dispatch(NamedTuple):
    """Where the rows of one device's experts come from, and where their results go."""

    assignment: Int[Array, " M"]  # that a row was made for, before an exchange; A: for none
    row: Int[Array, " A"]  # of each assignment, before an exchange; M: dropped
    sizes: Int[Array, " E"]  # rows of each expert of this device
    exchange: Exchange | None  # None: this device has all experts


def local_dispatch(chosen: Int[Array, "T K"], num_experts: int) -> Dispatch:
    """All assignments, sorted by expert; nothing is dropped."""
    experts = chosen.reshape(-1)
    order = _sorted_by(experts, num_experts)
    return Dispatch(order, _inverse(order), _counts(experts, num_experts), None)


def ranks_to_send(
    chosen: Int[Array, "T K"], weights: Float[Array, "T K"], num_experts: int, num_devices: int
) -> Ranks:
    """The order in which this device's assignments go to where their experts are."""
    devices = chosen.reshape(-1) // (num_experts // num_devices)
    # By device, the highest weights first; the number decides among equals, so nothing is chance.
    numbers = jnp.arange(chosen.size, dtype=jnp.int32)
    _, _, ranked = jax.lax.sort((devices, -weights.reshape(-1), numbers), num_keys=3)
    starts = jnp.cumsum(sent := _counts(devices, num_devices)) - sent
    rank = numbers - starts[devices[ranked]]
    # What weighs nothing, as padding does, comes last and need not go at all.
    weighty = _counts(jnp.where(weights.reshape(-1) > 0, devices, num_devices), num_devices)
    return Ranks(devices, jnp.zeros_like(rank).at[ranked].set(rank), jnp.max(weighty))


def exchange_dispatch(
    chosen: Int[Array, "T K"],
    ranks: Ranks,
    num_experts: int,
    *,
    num_devices: int,
    capacity: int,
    first: Int[Array, ""] | int = 0,
) -> Dispatch:
    """What this device's experts get from all devices along the expert axis, inside shard_map.

    A bucket of `capacity` rows goes to each device, of the ranks from `first` on; empty places hold
    zeros and go to its first expert.
    """
    experts, count = chosen.reshape(-1), chosen.size
    own = num_experts // num_devices
    numbers, place = jnp.arange(count, dtype=jnp.int32), ranks.rank - first
    is_sent = (place >= 0) & (place < capacity)
    row = jnp.where(is_sent, ranks.device * capacity + place, num_devices * capacity)
    empty = jnp.full(num_devices * capacity, count, jnp.int32)
    assignment = empty.at[row].set(numbers, mode="drop")
    wanted = jnp.take(experts % own, assignment, mode="fill", fill_value=0)
    received = _exchange(wanted, num_devices)
    order = _sorted_by(received, own)
    exchange = Exchange(order, _inverse(order))
    return Dispatch(assignment, row, _counts(received, own), exchange)


def capacity_of(assignments: int, num_devices: int, factor: float) -> int:
    """Rows that one device may send another: `factor` times an even share, at most all.

    Rounded up to a multiple of 8, which kernels for the products want.
    """
    require(
        factor > 0,
        f"model.capacity_factor={factor}",
        allowed="above 0; 1 is room for an even share",
        fix="1.25 leaves room for a quarter more",
    )
    return min(assignments, math.ceil(factor * assignments / num_devices / 8) * 8)


def to_rows(dispatch: Dispatch, x: Float[Array, "T D"]) -> Float[Array, "M D"]:
    """A copy of each token for every expert that it goes to."""
    copies = dispatch.row.shape[0] // x.shape[0]
    # Past the last assignment lies past the last token, which is read as zeros.
    return _send(dispatch, _take(x, dispatch.assignment // copies, dispatch))


def weights_to_rows(dispatch: Dispatch, weights: Float[Array, "T K"]) -> Float[Array, " M"]:
    """The weight of each row; 0 where nothing was sent."""
    return _send(dispatch, _take(weights.reshape(-1), dispatch.assignment, dispatch))


def to_tokens(dispatch: Dispatch, rows: Float[Array, "M D"], count: int) -> Float[Array, "T D"]:
    """For each of `count` tokens the sum of its rows, in float32."""
    parts = _take(_send_back(dispatch, rows), dispatch.row, dispatch)
    return jnp.sum(parts.reshape(count, -1, rows.shape[1]).astype(jnp.float32), axis=1)


def weights_to_tokens(
    dispatch: Dispatch, values: Float[Array, " M"], count: int
) -> Float[Array, "T K"]:
    """A number of each row, brought back to where its weight came from; 0 if it was dropped."""
    return _take(_send_back(dispatch, values), dispatch.row, dispatch).reshape(count, -1)


def is_kept(dispatch: Dispatch, count: int) -> Bool[Array, "T K"]:
    """Whether each assignment of `count` tokens found room."""
    return (dispatch.row < dispatch.assignment.shape[0]).reshape(count, -1)


def _send(dispatch: Dispatch, rows: Array) -> Array:
    if dispatch.exchange is None:
        return rows
    return _exchange(rows, _num_devices())[dispatch.exchange.order]


def _send_back(dispatch: Dispatch, rows: Array) -> Array:
    if dispatch.exchange is None:
        return rows
    return _exchange(rows[dispatch.exchange.place], _num_devices())


def _exchange(rows: Array, num_devices: int) -> Array:
    """Bucket i to device i, and from each device the bucket that it had for this one."""
    buckets = rows.reshape(num_devices, -1, *rows.shape[1:])
    return jax.lax.all_to_all(buckets, EXPERT_AXIS, 0, 0).reshape(rows.shape)


def _num_devices() -> int:
    return int(jax.lax.axis_size(EXPERT_AXIS))


def _take(values: Array, index: Array, dispatch: Dispatch) -> Array:
    if dispatch.exchange is None:  # then there is a row for every assignment
        return values.at[index].get(mode="promise_in_bounds")
    return jnp.take(values, index, axis=0, mode="fill", fill_value=0)


def _sorted_by(keys: Int[Array, " A"], num_keys: int) -> Int[Array, " A"]:
    """The places of `keys` in the order of the keys, equal ones as they stood."""
    count = keys.shape[0]
    if num_keys * count > _MAX_KEY:
        return jnp.argsort(keys, stable=True).astype(jnp.int32)
    # Key and place in one number: a GPU sorts single numbers three times as fast as pairs.
    packed = keys.astype(jnp.int32) * count + jnp.arange(count, dtype=jnp.int32)
    return jnp.sort(packed) % count


def _inverse(order: Int[Array, " M"]) -> Int[Array, " M"]:
    numbers = jnp.arange(order.shape[0], dtype=jnp.int32)
    return jnp.zeros_like(order).at[order].set(numbers, unique_indices=True)


def _counts(keys: Int[Array, " A"], num_keys: int) -> Int[Array, " E"]:
    return jnp.sum(keys[:, None] == jnp.arange(num_keys)[None], axis=0, dtype=jnp.int32)
