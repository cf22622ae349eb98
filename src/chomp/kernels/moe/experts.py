"""The experts of a layer at work: each token through those it chose, and the sum by weight.

The derivatives are written out around `shard_map`, as those of the loss are: every sum over devices
stands here. What is kept for them is the input and the products before the activation; in rounds,
the input alone.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from chomp.errors import require, require_divides
from chomp.kernels.moe.dispatch import (
    EXPERT_AXIS,
    Dispatch,
    Exchange,
    capacity_of,
    exchanged_dispatch,
    is_kept,
    local_dispatch,
    ranks_to_send,
)
from chomp.kernels.moe.grouped import GroupedBackend, grouped_backend
from chomp.kernels.moe.one_device import (
    TOKEN_AXES,
    WIDTH_AXIS,
    ExpertWeights,
    Products,
    Slopes,
    Way,
    experts_backward,
    experts_forward,
)
from chomp.kernels.moe.rounds import backward_in_rounds, forward_in_rounds
from chomp.kernels.platform import platform_of

# Axes: B batch, S sequence, D model width, E experts, F expert width, K experts of a token;
# of one device: T tokens, M rows sorted by expert.


class Routed(NamedTuple):
    """What the experts made of the tokens, and how much weight found no room."""

    output: Float[Array, "B S D"]
    dropped_weight: Float[Array, ""]


def routed_experts(
    x: Float[Array, "B S D"],
    chosen: Int[Array, "B S K"],
    weights: Float[Array, "B S K"],
    experts: ExpertWeights,
    *,
    capacity_factor: float,
    may_drop: bool = True,
    backend: GroupedBackend | None = None,
) -> Routed:
    """Each token through its chosen experts, added up by `weights` (float32).

    Where one device has all experts nothing is dropped. Where the mesh shares them out, a device
    sends another at most `capacity_factor` times an even share of its rows at once; what is left is
    dropped, the lowest weights, or goes in further rounds unless it `may_drop`.
    """
    sharding, num_experts = jax.typeof(x).sharding, experts.up.shape[0]
    devices = _size(sharding.mesh, EXPERT_AXIS)
    require_divides("mesh.expert", devices, "model.num_experts", num_experts)
    require(
        weights.dtype == jnp.float32,
        f"weights of experts in {weights.dtype}",
        allowed="float32",
        fix="route in float32 whatever the compute dtype is",
    )
    way = Way(
        num_experts,
        capacity_factor,
        may_drop,
        backend or _backend(x, chosen, experts, capacity_factor),
        devices,
        not sharding.mesh.empty,
    )
    if way.is_meshed:
        tokens = P(TOKEN_AXES, None, None)
        x, chosen, weights = (jax.reshard(each, tokens) for each in (x, chosen, weights))
        experts = jax.tree.map(jax.reshard, experts, _weight_specs(experts))
    return Routed(*_routed(x, weights, experts, chosen, way))


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _routed(x: Array, weights: Array, experts: ExpertWeights, chosen: Array, way: Way) -> Any:
    return _forward(x, weights, experts, chosen, way)[0]


def _forward(x: Array, weights: Array, experts: ExpertWeights, chosen: Array, way: Way) -> Any:
    output, dropped, kept = _on_every_device(
        partial(_local_forward, way),
        way,
        (x, weights, experts, chosen),
        given=("tokens", "tokens", "experts", "tokens"),
        made=("tokens", "scalar", "kept"),
    )
    return (output, dropped), (x, weights, experts, kept)


def _backward(way: Way, saved: Any, slopes: Any) -> Any:
    by_x, by_weights, by_experts = _on_every_device(
        partial(_local_backward, way),
        way,
        (*saved, slopes[0]),
        given=("tokens", "tokens", "experts", "kept", "tokens"),
        made=("tokens", "tokens", "experts"),
    )
    return by_x, by_weights, by_experts, None


_routed.defvjp(_forward, _backward)


class _Kept(NamedTuple):
    """What the forward pass leaves to the backward pass on a device, if it is one exchange."""

    dispatch: Dispatch
    products: Products


def _local_forward(
    way: Way, x: Array, weights: Array, experts: ExpertWeights, chosen: Array
) -> tuple[Array, Array, Any]:
    shape, dtype, own = x.shape, x.dtype, (_flat(x), _flat(weights), experts)
    kept: Any = chosen
    if way.is_in_rounds:
        output = forward_in_rounds(way, *own, _flat(chosen))
        dropped = jnp.float32(0)
    else:
        dispatch = _dispatch(way, _flat(chosen), own[1])
        output, products = experts_forward(way, dispatch, *own)
        lost = jnp.sum(jnp.where(is_kept(dispatch, own[0].shape[0]), 0.0, own[1]))
        dropped, kept = way.summed(lost, *TOKEN_AXES), _Kept(dispatch, products)
    return way.summed(output.astype(dtype), WIDTH_AXIS).reshape(shape), dropped, kept


def _local_backward(
    way: Way, x: Array, weights: Array, experts: ExpertWeights, kept: Any, by_output: Array
) -> Slopes:
    shape, own = x.shape, (_flat(x), _flat(weights), experts)
    if way.is_in_rounds:
        found = backward_in_rounds(way, *own, _flat(kept), _flat(by_output))
    else:
        found = experts_backward(way, kept.dispatch, *own, kept.products, _flat(by_output))
    by_experts = jax.tree.map(lambda slope, each: slope.astype(each.dtype), found.experts, experts)
    return Slopes(
        way.summed(found.x.astype(x.dtype), WIDTH_AXIS).reshape(shape),
        way.summed(found.weights, WIDTH_AXIS).reshape(*shape[:2], -1),
        # Not over `expert`: what the others sent is in these rows.
        jax.tree.map(lambda each: way.summed(each, "replica", "data"), by_experts),
    )


def _dispatch(way: Way, chosen: Int[Array, "T K"], weights: Float[Array, "T K"]) -> Dispatch:
    if way.num_devices == 1:
        return local_dispatch(chosen, way.num_experts)
    ranks = ranks_to_send(chosen, weights, way.num_experts, way.num_devices)
    capacity = way.capacity(chosen.size)
    return exchanged_dispatch(
        chosen, ranks, way.num_experts, num_devices=way.num_devices, capacity=capacity
    )


def _on_every_device(
    local: Callable[..., Any],
    way: Way,
    arguments: tuple[Any, ...],
    *,
    given: tuple[str, ...],
    made: tuple[str, ...],
) -> Any:
    """`local` on every device's part: tokens cut over rows, experts over experts and width."""
    if not way.is_meshed:
        return local(*arguments)
    tokens: Any = P(TOKEN_AXES, None, None)
    specs = {
        "tokens": tokens,
        "scalar": P(),
        "experts": _weight_specs(arguments[2]),
        "kept": tokens if way.is_in_rounds else _kept_specs(way, arguments[2]),
    }
    return jax.shard_map(
        lambda *own: tuple(local(*own)),
        in_specs=tuple(specs[name] for name in given),
        out_specs=tuple(specs[name] for name in made),
        # Kernels do not say over which axes their results vary.
        check_vma=way.backend != "mosaic",
    )(*arguments)


# Trees of specs stand in for trees of arrays, which types cannot say.
def _weight_specs(experts: ExpertWeights) -> Any:
    into: Any = P(EXPERT_AXIS, None, WIDTH_AXIS)
    out: Any = P(EXPERT_AXIS, WIDTH_AXIS, None)
    return ExpertWeights(into, None if experts.gate is None else into, out)


def _kept_specs(way: Way, experts: ExpertWeights) -> Any:
    """Each device's own arrays, one after the other."""
    own: Any = P(TOKEN_AXES)
    wide: Any = P(TOKEN_AXES, WIDTH_AXIS)
    exchange = None if way.num_devices == 1 else Exchange(own, own)
    products = Products(wide, None if experts.gate is None else wide)
    return _Kept(Dispatch(own, own, own, exchange), products)


def _backend(
    x: Float[Array, "B S D"], chosen: Int[Array, "B S K"], experts: ExpertWeights, factor: float
) -> GroupedBackend:
    """The way to multiply as many rows as one device has at once."""
    mesh = jax.typeof(x).sharding.mesh
    rows = chosen.size // math.prod(_size(mesh, axis) for axis in TOKEN_AXES)
    if (devices := _size(mesh, EXPERT_AXIS)) > 1:
        rows = devices * capacity_of(rows, devices, factor)
    widths = (x.shape[2], experts.up.shape[2] // _size(mesh, WIDTH_AXIS))
    return grouped_backend(platform_of(x), x.dtype, rows, *widths)


def _size(mesh: Any, axis: str) -> int:
    return int(mesh.shape.get(axis, 1))


def _flat(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])
