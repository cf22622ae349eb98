"""Layers applied one after another by a scan, and what the backward pass recomputes.

Derived, the backward pass of a scan keeps the weights of all layers and fills a second stack with
their gradients. Here, where blocks are recomputed, a layer's gradient takes the place of its
weights, which nobody needs any more: one stack less in the dtype that is computed in.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from chomp.kernels.layers import Remat, remat

Stream = Float[Array, "..."]  # what goes from layer to layer
Apply = Callable[[Stream, Any], tuple[Stream, Any]]


def scanned(apply: Apply, x: Stream, layers: Any, policy: Remat) -> tuple[Stream, Any]:
    """`x` after all layers, and what each gave besides, stacked.

    `apply(x, layer)` is one of them; every array of `layers` has them in front. With `block` remat
    layers are floating point and give nothing besides.
    """
    if policy == "block":
        return _with_gradients_in_place(lambda x, layer: apply(x, layer)[0], x, layers), None
    return jax.lax.scan(remat(apply, policy), x, layers)


def _with_gradients_in_place(
    apply: Callable[[Stream, Any], Stream], x: Stream, layers: Any
) -> Stream:
    """`x` after all layers, of which only each one's input is kept for the backward pass."""

    @jax.custom_vjp
    def result(x: Stream, layers: Any) -> Stream:
        return jax.lax.scan(lambda x, layer: (apply(x, layer), None), x, layers)[0]

    def forward(x: Stream, layers: Any) -> tuple[Stream, Any]:
        out, inputs = jax.lax.scan(lambda x, layer: (apply(x, layer), x), x, layers)
        return out, (inputs, layers)

    def backward(kept: Any, slope: Stream) -> tuple[Stream, Any]:
        inputs, layers = kept

        def one_layer(carry: tuple[Stream, Any], own: Any) -> tuple[tuple[Stream, Any], None]:
            (slope, stacks), (index, x) = carry, own
            layer = jax.tree.map(lambda stack: _at(stack, index), stacks)
            slope, gradient = jax.vjp(apply, x, layer)[1](slope)
            # From here on this place of the stack is a gradient: layers come in reverse, once.
            put = jax.lax.dynamic_update_index_in_dim
            stacks = jax.tree.map(lambda stack, own: put(stack, own, index, 0), stacks, gradient)
            return (slope, stacks), None

        places = jnp.arange(len(inputs))
        last, _ = jax.lax.scan(one_layer, (slope, layers), (places, inputs), reverse=True)
        return last

    result.defvjp(forward, backward)
    return result(x, layers)


def _at(stack: Array, index: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(stack, index, keepdims=False)
