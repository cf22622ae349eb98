"""The experts: each token through the few that were chosen for it, on one device or several."""

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
    exchange_dispatch,
    is_kept,
    local_dispatch,
    ranks_to_send,
    to_rows,
    to_tokens,
    weights_to_rows,
    weights_to_tokens,
)
from chomp.kernels.moe.matmul import GroupedBackend, grouped_backend, grouped_matmul, grouped_outer
from chomp.kernels.platform import platform_of

# Axes: B batch, S sequence, T tokens, D model width, E experts, F expert width, K experts of a
# token, M rows of a dispatch.


def activate(
    up: Float[Array, "... F"], gate: Float[Array, "... F"] | None
) -> Float[Array, "... F"]:
    """relu² of `up`, or with a gate `up` times its SiLU."""
    return jnp.square(jax.nn.relu(up)) if gate is None else up * jax.nn.silu(gate)


def mixture_of_experts(
    x: Float[Array, "T D"],
    chosen: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    w_up: Float[Array, "E D F"],
    w_gate: Float[Array, "E D F"] | None,
    w_down: Float[Array, "E F D"],
) -> Float[Array, "T D"]:
    """For each token, the outputs of its chosen experts, added up by weight."""
    up = jnp.einsum("td,edf->tef", x, w_up)
    gate = None if w_gate is None else jnp.einsum("td,edf->tef", x, w_gate)
    outputs = jnp.einsum("tef,efd->ted", activate(up, gate), w_down)
    is_chosen = jax.nn.one_hot(chosen, w_up.shape[0], dtype=weights.dtype)
    probs = jnp.sum(is_chosen * weights[..., None], axis=1)
    return jnp.einsum("ted,te->td", outputs, probs.astype(x.dtype))


# ---- One device's part --------------------------------------------------------------------------


# Mesh axes: over these tokens are cut, over the last the width of every expert.
TOKEN_AXES = ("replica", "data", EXPERT_AXIS)
WIDTH_AXIS = "model"


class ExpertWeights(NamedTuple):
    """The matrices of all experts of a layer; `gate` for SwiGLU alone."""

    up: Float[Array, "E D F"]
    gate: Float[Array, "E D F"] | None
    down: Float[Array, "E F D"]


@dataclass(frozen=True)
class MoEPlan:
    """How the experts are computed: all of it known while tracing."""

    num_experts: int
    capacity_factor: float
    may_drop: bool
    backend: GroupedBackend
    num_devices: int = 1  # that share the experts
    is_meshed: bool = False

    @property
    def is_in_rounds(self) -> bool:
        """Whether rows are exchanged until all of them have been."""
        return self.num_devices > 1 and not self.may_drop

    def capacity(self, assignments: int) -> int:
        """Rows that a device with so many assignments sends another at once."""
        return capacity_of(assignments, self.num_devices, self.capacity_factor)

    def summed(self, x: Array, *axes: str) -> Array:
        """The sum over devices along mesh axes."""
        return jax.lax.psum(x, axes) if self.is_meshed else x


class Products(NamedTuple):
    """What the backward pass needs of the forward pass, beside its input."""

    up: Float[Array, "M F"]
    gate: Float[Array, "M F"] | None


class Grads(NamedTuple):
    """Derivatives by what the experts were inputs."""

    x: Float[Array, "T D"]
    weights: Float[Array, "T K"]
    experts: ExpertWeights


def experts_forward(
    plan: MoEPlan,
    dispatch: Dispatch,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
) -> tuple[Float[Array, "T D"], Products]:
    """The part of every token's output that comes of this dispatch, in float32."""
    multiply = partial(grouped_matmul, sizes=dispatch.sizes, backend=plan.backend)
    rows = to_rows(dispatch, x)
    up = multiply(rows, experts.up)
    gate = None if experts.gate is None else multiply(rows, experts.gate)
    # Weighed before the last product and not after it: the sum over a token's rows is then the
    # plain transpose of the copies, and no output has to be kept for the gradient of its weight.
    inner = activate(up, gate) * _column(weights_to_rows(dispatch, weights), up)
    return to_tokens(dispatch, multiply(inner, experts.down), x.shape[0]), Products(up, gate)


def experts_backward(
    plan: MoEPlan,
    dispatch: Dispatch,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
    products: Products,
    d_output: Float[Array, "T D"],
) -> Grads:
    """The part of every derivative that comes of this dispatch; experts' in their own dtype."""
    multiply = partial(grouped_matmul, sizes=dispatch.sizes, backend=plan.backend, transpose=True)
    outer = partial(grouped_outer, sizes=dispatch.sizes, backend=plan.backend)
    rows, d_rows = to_rows(dispatch, x), to_rows(dispatch, d_output)
    inner, activation_backward = jax.vjp(activate, *products)
    scale = _column(weights_to_rows(dispatch, weights), inner)
    d_weighed = multiply(d_rows, experts.down)
    d_down = outer(inner * scale, d_rows)
    d_row_weight = jnp.sum((d_weighed * inner).astype(jnp.float32), axis=1)
    d_up, d_gate = activation_backward(d_weighed * scale)
    d_x_rows, d_w_gate = multiply(d_up, experts.up), None
    if experts.gate is not None:
        d_x_rows += multiply(d_gate, experts.gate)
        d_w_gate = outer(rows, d_gate)
    return Grads(
        to_tokens(dispatch, d_x_rows, x.shape[0]),
        weights_to_tokens(dispatch, d_row_weight, x.shape[0]),
        ExpertWeights(outer(rows, d_up), d_w_gate, d_down),
    )


def _column(values: Float[Array, " M"], like: Array) -> Array:
    return values[:, None].astype(like.dtype)


# ---- Several devices without a drop: rounds of exchange -----------------------------------------
#
# Each round has room for the same few rows, so a device never holds more than `capacity_factor`
# times its own, however uneven the choice: an uneven choice costs rounds. There are as many rounds
# as the fullest pair of devices needs, one or two where the experts are balanced.
#
# The backward pass goes through the same rounds and computes the products again: keeping those of
# all rounds would take the memory that rounds are there to save.


def forward_in_rounds(
    plan: MoEPlan,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
    chosen: Int[Array, "T K"],
) -> Float[Array, "T D"]:
    """The output of every token in float32, before the sum over the width; inside shard_map."""

    def part(dispatch: Dispatch) -> Array:
        return experts_forward(plan, dispatch, x, weights, experts)[0]

    return _sum_rounds(plan, part, jnp.zeros(x.shape, jnp.float32), chosen, weights)


def backward_in_rounds(
    plan: MoEPlan,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
    chosen: Int[Array, "T K"],
    d_output: Float[Array, "T D"],
) -> Grads:
    """Its derivatives in float32, none of them added up over devices."""

    def part(dispatch: Dispatch) -> Grads:
        _, products = experts_forward(plan, dispatch, x, weights, experts)
        return experts_backward(plan, dispatch, x, weights, experts, products, d_output)

    nothing = jax.tree.map(
        lambda each: jnp.zeros(each.shape, jnp.float32), Grads(x, weights, experts)
    )
    return _sum_rounds(plan, part, nothing, chosen, weights)


def _sum_rounds(
    plan: MoEPlan,
    part: Callable[[Dispatch], Any],
    nothing: Any,
    chosen: Int[Array, "T K"],
    weights: Float[Array, "T K"],
) -> Any:
    """The sum of `part` over the dispatches of all rounds; `nothing` is the sum of none."""
    ranks = ranks_to_send(chosen, weights, plan.num_experts, plan.num_devices)
    capacity = plan.capacity(chosen.size)
    # As many on every device: one that went on alone would wait for the others for ever. Devices
    # that share a width have the same tokens.
    rounds = -(-jax.lax.pmax(ranks.most, TOKEN_AXES) // capacity)

    def add(number: Int[Array, ""], sums: Any) -> Any:
        dispatch = exchange_dispatch(
            chosen,
            ranks,
            plan.num_experts,
            num_devices=plan.num_devices,
            capacity=capacity,
            first=number * capacity,
        )
        return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), sums, part(dispatch))

    axes = (*TOKEN_AXES, WIDTH_AXIS)
    start = jax.tree.map(lambda zeros: jax.lax.pcast(zeros, axes, to="varying"), nothing)
    return jax.lax.fori_loop(0, rounds, add, start)


# ---- The entry ----------------------------------------------------------------------------------


class Routed(NamedTuple):
    """What the experts computed for the tokens, and how much weight found no room."""

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
    plan = MoEPlan(
        num_experts,
        capacity_factor,
        may_drop,
        backend or _backend(x, chosen, experts, capacity_factor),
        devices,
        not sharding.mesh.empty,
    )
    if plan.is_meshed:
        tokens = P(TOKEN_AXES, None, None)
        x, chosen, weights = (jax.reshard(each, tokens) for each in (x, chosen, weights))
        experts = jax.tree.map(jax.reshard, experts, _weight_specs(experts))
    return Routed(*_routed(x, weights, experts, chosen, plan))


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _routed(x: Array, weights: Array, experts: ExpertWeights, chosen: Array, plan: MoEPlan) -> Any:
    return _forward(x, weights, experts, chosen, plan)[0]


def _forward(x: Array, weights: Array, experts: ExpertWeights, chosen: Array, plan: MoEPlan) -> Any:
    output, dropped, kept = _on_every_device(
        partial(_local_forward, plan),
        plan,
        (x, weights, experts, chosen),
        inputs=("tokens", "tokens", "experts", "tokens"),
        results=("tokens", "scalar", "kept"),
    )
    return (output, dropped), (x, weights, experts, kept)


def _backward(plan: MoEPlan, saved: Any, grads: Any) -> Any:
    d_x, d_weights, d_experts = _on_every_device(
        partial(_local_backward, plan),
        plan,
        (*saved, grads[0]),
        inputs=("tokens", "tokens", "experts", "kept", "tokens"),
        results=("tokens", "tokens", "experts"),
    )
    return d_x, d_weights, d_experts, None


_routed.defvjp(_forward, _backward)


class _Residuals(NamedTuple):
    """What the forward pass leaves to the backward pass on a device, if it is one exchange."""

    dispatch: Dispatch
    products: Products


def _local_forward(
    plan: MoEPlan, x: Array, weights: Array, experts: ExpertWeights, chosen: Array
) -> tuple[Array, Array, Any]:
    shape, dtype, own = x.shape, x.dtype, (_flat(x), _flat(weights), experts)
    kept: Any = chosen
    if plan.is_in_rounds:
        output = forward_in_rounds(plan, *own, _flat(chosen))
        dropped = jnp.float32(0)
    else:
        dispatch = _dispatch(plan, _flat(chosen), own[1])
        output, products = experts_forward(plan, dispatch, *own)
        lost = jnp.sum(jnp.where(is_kept(dispatch, own[0].shape[0]), 0.0, own[1]))
        dropped, kept = plan.summed(lost, *TOKEN_AXES), _Residuals(dispatch, products)
    return plan.summed(output.astype(dtype), WIDTH_AXIS).reshape(shape), dropped, kept


def _local_backward(
    plan: MoEPlan, x: Array, weights: Array, experts: ExpertWeights, kept: Any, d_output: Array
) -> Grads:
    shape, own = x.shape, (_flat(x), _flat(weights), experts)
    if plan.is_in_rounds:
        found = backward_in_rounds(plan, *own, _flat(kept), _flat(d_output))
    else:
        found = experts_backward(plan, kept.dispatch, *own, kept.products, _flat(d_output))
    d_experts = jax.tree.map(lambda grad, each: grad.astype(each.dtype), found.experts, experts)
    return Grads(
        plan.summed(found.x.astype(x.dtype), WIDTH_AXIS).reshape(shape),
        plan.summed(found.weights, WIDTH_AXIS).reshape(*shape[:2], -1),
        # Not over `expert`: what the others sent is in these rows.
        jax.tree.map(lambda each: plan.summed(each, "replica", "data"), d_experts),
    )


def _dispatch(plan: MoEPlan, chosen: Int[Array, "T K"], weights: Float[Array, "T K"]) -> Dispatch:
    if plan.num_devices == 1:
        return local_dispatch(chosen, plan.num_experts)
    ranks = ranks_to_send(chosen, weights, plan.num_experts, plan.num_devices)
    capacity = plan.capacity(chosen.size)
    return exchange_dispatch(
        chosen, ranks, plan.num_experts, num_devices=plan.num_devices, capacity=capacity
    )


def _on_every_device(
    local: Callable[..., Any],
    plan: MoEPlan,
    arguments: tuple[Any, ...],
    *,
    inputs: tuple[str, ...],
    results: tuple[str, ...],
) -> Any:
    """`local` on every device's part: tokens cut over rows, experts over experts and width."""
    if not plan.is_meshed:
        return local(*arguments)
    tokens: Any = P(TOKEN_AXES, None, None)
    specs = {
        "tokens": tokens,
        "scalar": P(),
        "experts": _weight_specs(arguments[2]),
        "kept": tokens if plan.is_in_rounds else _residual_specs(plan, arguments[2]),
    }
    return jax.shard_map(
        lambda *own: tuple(local(*own)),
        in_specs=tuple(specs[name] for name in inputs),
        out_specs=tuple(specs[name] for name in results),
        # Kernels do not say over which axes their results vary.
        check_vma=plan.backend != "mosaic",
    )(*arguments)


# Trees of specs stand in for trees of arrays, which types cannot say.
def _weight_specs(experts: ExpertWeights) -> Any:
    into: Any = P(EXPERT_AXIS, None, WIDTH_AXIS)
    out: Any = P(EXPERT_AXIS, WIDTH_AXIS, None)
    return ExpertWeights(into, None if experts.gate is None else into, out)


def _residual_specs(plan: MoEPlan, experts: ExpertWeights) -> Any:
    """Each device's own arrays, one after the other."""
    own: Any = P(TOKEN_AXES)
    wide: Any = P(TOKEN_AXES, WIDTH_AXIS)
    exchange = None if plan.num_devices == 1 else Exchange(own, own)
    products = Products(wide, None if experts.gate is None else wide)
    return _Residuals(Dispatch(own, own, own, exchange), products)


def _backend(
    x: Float[Array, "B S D"], chosen: Int[Array, "B S K"], experts: ExpertWeights, factor: float
) -> GroupedBackend:
    """The backend for as many rows as one device has at once."""
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
