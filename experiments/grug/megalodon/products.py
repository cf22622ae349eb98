"""Products of activations and weights on a mesh, and what stands between two of them.

FSDP and tensor parallelism by hand: a weight's shards over `data` are collected for its product,
and again in the backward pass; its cut over `model` stays.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float
from jaxtyping import PRNGKeyArray as Key

from chomp.kernels.layers import projection
from chomp.mesh import BATCH_AXES
from experiments.grug.megalodon.weights import own_key

# Axes: B batch, S sequence, D width of what goes in, E of what comes out.

# Where activations lie: rows over the batch axes, what is cut of a width over `model`.
ROWS, COLUMNS = P(BATCH_AXES, None, None), P(BATCH_AXES, None, "model")


def made_again(make: Callable[..., Any], *given: Array) -> Any:
    """`make(*given)`, of which the backward pass keeps `given` alone, and weights as they lie.

    For what passes over arrays once or twice: to make that again is cheaper than to keep it, in
    stacks of all layers.
    """
    return jax.checkpoint(make)(*given)


def product(
    x: Float[Array, "B S D"], weight: Float[Array, "D E"], cut: P, out: P
) -> Float[Array, "B S E"]:
    """`x` times a weight, the latter cut as `cut` for it; the result lies as `out`."""

    def projected(x: Array) -> Array:
        x = jax.reshard(x, P(BATCH_AXES, None, cut[0]))
        return projection(x, jax.reshard(weight, cut), out_sharding=out)

    return made_again(projected, x)


# Into columns that need no exchange, out of them with a sum.
def into_columns(x: Float[Array, "B S D"], weight: Float[Array, "D E"]) -> Float[Array, "B S E"]:
    """`x` times a weight whose outputs are cut over `model`."""
    return product(x, weight, P(None, "model"), COLUMNS)


def out_of_columns(x: Float[Array, "B S D"], weight: Float[Array, "D E"]) -> Float[Array, "B S E"]:
    """`x` times a weight whose inputs are cut over `model`, the parts added up."""
    return product(x, weight, P("model", None), ROWS)


def dropped(x: Array, rate: float, key: Key | None, what: str) -> Array:
    """`x` with a part of it 0 and the rest as much larger; `what` tells one place from another."""
    if key is None or rate == 0.0:
        return x
    spec = jax.typeof(x).sharding.spec
    keep = jax.random.bernoulli(own_key(key, what), 1.0 - rate, x.shape, out_sharding=spec)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def biased(x: Float[Array, "B S E"], bias: Float[Array, " E"]) -> Float[Array, "B S E"]:
    """`x` and a bias, added in float32.

    A bias's gradient is a sum over all positions, which bfloat16 gets wrong by 10 % at 8,192 of
    them and by more at more.
    """
    return x.astype(jnp.float32) + bias[None, None].astype(jnp.float32)


def activated(x: Float[Array, "B S E"], bias: Float[Array, " E"]) -> Float[Array, "B S E"]:
    """SiLU of x and a bias, back in x's dtype."""
    return jax.nn.silu(biased(x, bias)).astype(x.dtype)
