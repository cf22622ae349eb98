"""Activations times weights: one product, or several of the same activations.

On a CPU a product runs over one axis of tokens: a weight's gradient that sums over two makes XLA
turn one factor around first. Forward and backward of the base model took 0.30 s of CPU for 0.33 at
the quickstart's size, 1.85 for 2.03 at width 256 (two cores, November 2026).

On a GPU several products are one. One of three times the width takes less than three times the time
while widths are small, and the backward pass writes one gradient of the activations instead of
adding three. At 124M on an H200 a step took 58.9 ms against 59.6 (November 2026).
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from chomp.kernels.platform import platform_of

# Axes: B batch, S sequence, D width of the activations, E width of a projection.


def projections(
    x: Float[Array, "B S D"], *weights: Float[Array, "D _"]
) -> tuple[Float[Array, "B S _"], ...]:
    """`x @ weight` for each weight, cut over columns as the weight is; D is whole everywhere."""
    mesh, (batch, sequence, _) = jax.typeof(x).sharding.mesh, jax.typeof(x).sharding.spec
    if mesh.empty:
        return tuple(jnp.einsum("bsd,de->bse", x, weight) for weight in weights)
    if platform_of(x) == "cpu":
        # There a product takes what its size says, and putting together and apart costs 1 to 3 % of
        # a step (quickstart's size, two cores, November 2026).
        out = P(batch, sequence, jax.typeof(weights[0]).sharding.spec[1])
        return tuple(projection(x, weight, out_sharding=out) for weight in weights)
    return side_by_side(x, *weights)


def projection(
    x: Float[Array, "B S D"], weight: Float[Array, "D E"], *, out_sharding: P
) -> Float[Array, "B S E"]:
    """`x @ weight`, cut over devices as `out_sharding` says; a cut D is added up."""
    batch, sequence, width = jax.typeof(x).sharding.spec
    if platform_of(x) != "cpu" or sequence is not None:
        return jnp.einsum("bsd,de->bse", x, weight, out_sharding=out_sharding)
    tokens = jnp.reshape(x, (-1, x.shape[2]), out_sharding=P(batch, width))
    flat = P(out_sharding[0], out_sharding[2])
    out = jnp.einsum("td,de->te", tokens, weight, out_sharding=flat)
    return jnp.reshape(out, (*x.shape[:2], -1), out_sharding=out_sharding)


def side_by_side(
    x: Float[Array, "B S D"], *weights: Float[Array, "D _"]
) -> tuple[Float[Array, "B S _"], ...]:
    """`projections` as one product: each device lays its own columns of the weights together."""
    mesh, columns = jax.typeof(x).sharding.mesh, jax.typeof(weights[0]).sharding.spec[1]
    if mesh.empty:
        return _one_product(x, *weights)
    batch, sequence, _ = jax.typeof(x).sharding.spec
    return jax.shard_map(
        _one_product,
        mesh=mesh,
        in_specs=(P(batch, sequence, None), *(P(None, columns),) * len(weights)),
        out_specs=(P(batch, sequence, columns),) * len(weights),
    )(x, *weights)


def _one_product(x: Array, *weights: Array) -> tuple[Array, ...]:
    together = jnp.einsum("bsd,de->bse", x, jnp.concatenate(weights, axis=1))
    # `split`, not slices: its gradient is one concatenation, theirs a sum of padded arrays.
    return tuple(jax.lax.split(together, [weight.shape[1] for weight in weights], axis=2))
