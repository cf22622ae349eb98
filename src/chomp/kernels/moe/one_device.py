"""What one device does for the rows of one dispatch: products, activation, and their derivatives.

Both ways are sums over assignments: those of several dispatches add up, and so sums are float32
here and rounded by who has added up all of them. Sums over the width are left to the caller too.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from chomp.kernels.moe.dispatch import (
    EXPERT_AXIS,
    Dispatch,
    capacity_of,
    to_rows,
    to_tokens,
    weights_to_rows,
    weights_to_tokens,
)
from chomp.kernels.moe.grouped import GroupedBackend, grouped_matmul, grouped_outer
from chomp.kernels.moe.reference import activated

# Axes: T tokens, D model width, E experts, F expert width, K experts of a token, M rows sorted by
# expert. In `ExpertWeights` of all devices, elsewhere of one.

# Mesh axes: over these tokens are cut, over the last the width of every expert.
TOKEN_AXES = ("replica", "data", EXPERT_AXIS)
WIDTH_AXIS = "model"


class ExpertWeights(NamedTuple):
    """The matrices of all experts of a layer; `gate` for SwiGLU alone."""

    up: Float[Array, "E D F"]
    gate: Float[Array, "E D F"] | None
    down: Float[Array, "E F D"]


@dataclass(frozen=True)
class Way:
    """How to do it, all of it known while tracing."""

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


class Slopes(NamedTuple):
    """Derivatives by what the experts were given."""

    x: Float[Array, "T D"]
    weights: Float[Array, "T K"]
    experts: ExpertWeights


def experts_forward(
    way: Way,
    dispatch: Dispatch,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
) -> tuple[Float[Array, "T D"], Products]:
    """The part of every token's output that comes of this dispatch, in float32."""
    multiply = partial(grouped_matmul, sizes=dispatch.sizes, backend=way.backend)
    rows = to_rows(dispatch, x)
    up = multiply(rows, experts.up)
    gate = None if experts.gate is None else multiply(rows, experts.gate)
    # Weighed before the last product and not after it: the sum over a token's rows is then the
    # plain transpose of the copies, and no output has to be kept for the gradient of its weight.
    inner = activated(up, gate) * _column(weights_to_rows(dispatch, weights), up)
    return to_tokens(dispatch, multiply(inner, experts.down), x.shape[0]), Products(up, gate)


def experts_backward(
    way: Way,
    dispatch: Dispatch,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
    products: Products,
    by_output: Float[Array, "T D"],
) -> Slopes:
    """The part of every derivative that comes of this dispatch; experts' in their own dtype."""
    multiply = partial(grouped_matmul, sizes=dispatch.sizes, backend=way.backend, is_turned=True)
    outer = partial(grouped_outer, sizes=dispatch.sizes, backend=way.backend)
    rows, by_rows = to_rows(dispatch, x), to_rows(dispatch, by_output)
    inner, activation_backward = jax.vjp(activated, *products)
    scale = _column(weights_to_rows(dispatch, weights), inner)
    by_weighed = multiply(by_rows, experts.down)
    by_down = outer(inner * scale, by_rows)
    by_row_weight = jnp.sum((by_weighed * inner).astype(jnp.float32), axis=1)
    by_up, by_gate = activation_backward(by_weighed * scale)
    by_x_rows, by_w_gate = multiply(by_up, experts.up), None
    if experts.gate is not None:
        by_x_rows += multiply(by_gate, experts.gate)
        by_w_gate = outer(rows, by_gate)
    return Slopes(
        to_tokens(dispatch, by_x_rows, x.shape[0]),
        weights_to_tokens(dispatch, by_row_weight, x.shape[0]),
        ExpertWeights(outer(rows, by_up), by_w_gate, by_down),
    )


def _column(values: Float[Array, " M"], like: Array) -> Array:
    return values[:, None].astype(like.dtype)
