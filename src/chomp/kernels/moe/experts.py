"""The experts of a layer at work: each token through those it chose, and the sum by weight.

The derivatives are written out around `shard_map`, as those of the loss are: every sum over devices
stands here. What is kept for them is the input and the products before the activation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
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
    to_rows,
    to_tokens,
    weights_to_rows,
    weights_to_tokens,
)
from chomp.kernels.moe.grouped import (
    GroupedBackend,
    grouped_backend,
    grouped_matmul,
    grouped_outer,
)
from chomp.kernels.moe.reference import activated
from chomp.kernels.platform import platform_of

# Axes: B batch, S sequence, D model width, E experts, F expert width, K experts of a token;
# of one device: T tokens, M rows sorted by expert.

# Over these, tokens are cut; over `model`, the width of every expert.
_TOKEN_AXES = ("replica", "data", EXPERT_AXIS)
_WIDTH_AXIS = "model"


class ExpertWeights(NamedTuple):
    """The matrices of all experts of a layer; `gate` for SwiGLU alone."""

    up: Float[Array, "E D F"]
    gate: Float[Array, "E D F"] | None
    down: Float[Array, "E F D"]


class Routed(NamedTuple):
    """What the experts made of the tokens, and how much weight found no room."""

    output: Float[Array, "B S D"]
    dropped_weight: Float[Array, ""]


@dataclass(frozen=True)
class _Way:
    """How to do it, all of it known while tracing."""

    num_experts: int
    capacity_factor: float
    backend: GroupedBackend
    num_devices: int = 1  # that share the experts
    is_meshed: bool = False

    def summed(self, x: Array, *axes: str) -> Array:
        """The sum over devices along mesh axes."""
        return jax.lax.psum(x, axes) if self.is_meshed else x


def routed_experts(
    x: Float[Array, "B S D"],
    chosen: Int[Array, "B S K"],
    weights: Float[Array, "B S K"],
    experts: ExpertWeights,
    *,
    capacity_factor: float,
    backend: GroupedBackend | None = None,
) -> Routed:
    """Each token through its chosen experts, added up by `weights` (float32).

    Where one device has all experts nothing is dropped, whatever `capacity_factor` says. Where the
    mesh shares them out, a device sends another at most that many times an even share.
    """
    sharding, num_experts = jax.typeof(x).sharding, experts.up.shape[0]
    devices = _size(sharding.mesh, EXPERT_AXIS)
    require_divides("mesh.expert", devices, "model.num_experts", num_experts)
    rows = chosen.size // math.prod(_size(sharding.mesh, axis) for axis in _TOKEN_AXES)
    if devices > 1:
        rows = devices * capacity_of(rows, devices, capacity_factor)
    widths = (x.shape[2], experts.up.shape[2] // _size(sharding.mesh, _WIDTH_AXIS))
    backend = backend or grouped_backend(platform_of(x), x.dtype, rows, *widths)
    way = _Way(num_experts, capacity_factor, backend, devices, not sharding.mesh.empty)
    if way.is_meshed:
        tokens = P(_TOKEN_AXES, None, None)
        x, chosen, weights = (jax.reshard(each, tokens) for each in (x, chosen, weights))
        experts = jax.tree.map(jax.reshard, experts, _weight_specs(experts))
    require(
        weights.dtype == jnp.float32,
        given=f"weights of experts in {weights.dtype}",
        allowed="float32",
        fix="route in float32 whatever the compute dtype is",
    )
    return Routed(*_routed(x, weights, experts, chosen, way))


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _routed(x: Array, weights: Array, experts: ExpertWeights, chosen: Array, way: _Way) -> Any:
    return _forward(x, weights, experts, chosen, way)[0]


def _forward(x: Array, weights: Array, experts: ExpertWeights, chosen: Array, way: _Way) -> Any:
    run = partial(_local_forward, way)
    output, dropped, kept = _on_every_device(
        run, way, (x, weights, experts, chosen), out=("tokens", "scalar", "kept")
    )
    return (output, dropped), (x, weights, experts, kept)


def _backward(way: _Way, saved: Any, slopes: Any) -> Any:
    x, weights, experts, kept = saved
    run, by_output = partial(_local_backward, way), slopes[0]
    by_x, by_weights, by_experts = _on_every_device(
        run,
        way,
        (x, weights, experts, kept, by_output),
        out=("tokens", "tokens", "experts"),
    )
    return by_x, by_weights, by_experts, None


_routed.defvjp(_forward, _backward)


class _Kept(NamedTuple):
    """What the forward pass leaves to the backward pass on a device."""

    dispatch: Dispatch
    up: Float[Array, "M F"]
    gate: Float[Array, "M F"] | None


def _local_forward(
    way: _Way, x: Array, weights: Array, experts: ExpertWeights, chosen: Array
) -> tuple[Array, Array, _Kept]:
    shape, x, weights = x.shape, _flat(x), _flat(weights)
    dispatch = _dispatch(way, _flat(chosen), weights)
    multiply = partial(grouped_matmul, sizes=dispatch.sizes, backend=way.backend)
    rows = to_rows(dispatch, x)
    up = multiply(rows, experts.up)
    gate = None if experts.gate is None else multiply(rows, experts.gate)
    # Weighed before the last product and not after it: the sum over a token's rows is then the
    # plain transpose of the copies, and no output has to be kept for the gradient of its weight.
    inner = activated(up, gate) * _column(weights_to_rows(dispatch, weights), up)
    output = to_tokens(dispatch, multiply(inner, experts.down), x.shape[0])
    dropped = jnp.sum(jnp.where(is_kept(dispatch, x.shape[0]), 0.0, weights))
    return (
        way.summed(output, _WIDTH_AXIS).reshape(shape),
        way.summed(dropped, *_TOKEN_AXES),
        _Kept(dispatch, up, gate),
    )


def _local_backward(
    way: _Way, x: Array, weights: Array, experts: ExpertWeights, kept: _Kept, by_output: Array
) -> tuple[Array, Array, ExpertWeights]:
    shape, x, weights, dispatch = x.shape, _flat(x), _flat(weights), kept.dispatch
    multiply = partial(grouped_matmul, sizes=dispatch.sizes, backend=way.backend, is_turned=True)
    outer = partial(grouped_outer, sizes=dispatch.sizes, backend=way.backend)
    rows, by_rows = to_rows(dispatch, x), to_rows(dispatch, _flat(by_output))
    inner, activation_backward = jax.vjp(activated, kept.up, kept.gate)
    scale = _column(weights_to_rows(dispatch, weights), inner)
    by_weighed = multiply(by_rows, experts.down)
    by_down = outer(inner * scale, by_rows)
    by_row_weight = jnp.sum((by_weighed * inner).astype(jnp.float32), axis=1)
    by_up, by_gate = activation_backward(by_weighed * scale)
    by_x_rows, by_w_gate = multiply(by_up, experts.up), None
    if experts.gate is not None:
        by_x_rows += multiply(by_gate, experts.gate)
        by_w_gate = outer(rows, by_gate)
    by_experts = ExpertWeights(outer(rows, by_up), by_w_gate, by_down)
    by_x = to_tokens(dispatch, by_x_rows, x.shape[0])
    by_weights = weights_to_tokens(dispatch, by_row_weight, x.shape[0])
    return (
        way.summed(by_x, _WIDTH_AXIS).reshape(shape),
        way.summed(by_weights, _WIDTH_AXIS).reshape(*shape[:2], -1),
        # Not over `expert`: what the others sent is in these rows.
        jax.tree.map(lambda each: way.summed(each, "replica", "data"), by_experts),
    )


def _dispatch(way: _Way, chosen: Int[Array, "T K"], weights: Float[Array, "T K"]) -> Dispatch:
    if way.num_devices == 1:
        return local_dispatch(chosen, way.num_experts)
    return exchanged_dispatch(
        chosen,
        weights,
        way.num_experts,
        num_devices=way.num_devices,
        capacity=capacity_of(chosen.size, way.num_devices, way.capacity_factor),
    )


def _on_every_device(
    local: Callable[..., Any], way: _Way, arguments: tuple[Any, ...], out: tuple[str, ...]
) -> Any:
    """`local` on every device's part: tokens cut over rows, experts over experts and width."""
    if not way.is_meshed:
        return local(*arguments)
    specs = {
        "tokens": P(_TOKEN_AXES, None, None),
        "scalar": P(),
        "experts": _weight_specs(arguments[2]),
        "kept": _kept_specs(way, arguments[2]),
    }
    last = ("tokens",) if "kept" in out else ("kept", "tokens")
    return jax.shard_map(
        local,
        in_specs=tuple(specs[name] for name in ("tokens", "tokens", "experts", *last)),
        out_specs=tuple(specs[name] for name in out),
        # Kernels do not say over which axes their results vary.
        check_vma=way.backend != "mosaic",
    )(*arguments)


# Trees of specs stand in for trees of arrays, which types cannot say.
def _weight_specs(experts: ExpertWeights) -> Any:
    into: Any = P(EXPERT_AXIS, None, _WIDTH_AXIS)
    out: Any = P(EXPERT_AXIS, _WIDTH_AXIS, None)
    return ExpertWeights(into, None if experts.gate is None else into, out)


def _kept_specs(way: _Way, experts: ExpertWeights) -> Any:
    """Each device's own arrays, one after the other."""
    own: Any = P(_TOKEN_AXES)
    wide: Any = P(_TOKEN_AXES, _WIDTH_AXIS)
    exchange = None if way.num_devices == 1 else Exchange(own, own)
    return _Kept(Dispatch(own, own, own, exchange), wide, None if experts.gate is None else wide)


def _size(mesh: Any, axis: str) -> int:
    return int(mesh.shape.get(axis, 1))


def _flat(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def _column(values: Float[Array, " M"], like: Array) -> Array:
    return values[:, None].astype(like.dtype)
