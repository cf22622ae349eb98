"""Experts on several devices without a drop: rows are exchanged in rounds until all have been.

Each round has room for the same few rows, so a device never holds more than `capacity_factor`
times its own, however uneven the choice is: what is uneven costs rounds. There are as many as the
fullest way between two devices needs, one or two where the experts are balanced.

The backward pass goes through the same rounds and makes the products again: to keep those of all
rounds would be the room that rounds are there to save.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from chomp.kernels.moe.dispatch import Dispatch, exchanged_dispatch, ranks_to_send
from chomp.kernels.moe.one_device import (
    TOKEN_AXES,
    WIDTH_AXIS,
    ExpertWeights,
    Slopes,
    Way,
    experts_backward,
    experts_forward,
)

# Axes: T tokens, D model width, K experts of a token; all of one device.


def forward_in_rounds(
    way: Way,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
    chosen: Int[Array, "T K"],
) -> Float[Array, "T D"]:
    """The output of every token in float32, before the sum over the width; inside shard_map."""

    def part(dispatch: Dispatch) -> Array:
        return experts_forward(way, dispatch, x, weights, experts)[0]

    return _added_up(way, part, jnp.zeros(x.shape, jnp.float32), chosen, weights)


def backward_in_rounds(
    way: Way,
    x: Float[Array, "T D"],
    weights: Float[Array, "T K"],
    experts: ExpertWeights,
    chosen: Int[Array, "T K"],
    by_output: Float[Array, "T D"],
) -> Slopes:
    """Its derivatives in float32, none of them added up over devices."""

    def part(dispatch: Dispatch) -> Slopes:
        _, products = experts_forward(way, dispatch, x, weights, experts)
        return experts_backward(way, dispatch, x, weights, experts, products, by_output)

    nothing = jax.tree.map(
        lambda each: jnp.zeros(each.shape, jnp.float32), Slopes(x, weights, experts)
    )
    return _added_up(way, part, nothing, chosen, weights)


def _added_up(
    way: Way,
    part: Callable[[Dispatch], Any],
    nothing: Any,
    chosen: Int[Array, "T K"],
    weights: Float[Array, "T K"],
) -> Any:
    """The sum of `part` over the dispatches of all rounds; `nothing` is the sum of none."""
    ranks = ranks_to_send(chosen, weights, way.num_experts, way.num_devices)
    capacity = way.capacity(chosen.size)
    # As many on every device: one that went on alone would wait for the others for ever. Devices
    # that share a width have the same tokens.
    rounds = -(-jax.lax.pmax(ranks.most, TOKEN_AXES) // capacity)

    def add(number: Int[Array, ""], sums: Any) -> Any:
        dispatch = exchanged_dispatch(
            chosen,
            ranks,
            way.num_experts,
            num_devices=way.num_devices,
            capacity=capacity,
            first=number * capacity,
        )
        return jax.tree.map(lambda a, b: a + b.astype(jnp.float32), sums, part(dispatch))

    axes = (*TOKEN_AXES, WIDTH_AXIS)
    start = jax.tree.map(lambda zeros: jax.lax.pcast(zeros, axes, to="varying"), nothing)
    return jax.lax.fori_loop(0, rounds, add, start)
