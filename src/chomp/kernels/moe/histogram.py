"""How many tokens have a value in each of a fixed number of bins: counts that add up exactly.

Bins are of equal width in x / (1 + |x|), which takes every number to between -1 and 1: fine around
0, where quantiles are looked for, and never out of range.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

# Axes: B batch, S sequence, E experts, N bins.

NUM_BINS = 1024


def histogram(values: Float[Array, "B S E"], is_counted: Bool[Array, "B S"]) -> Int[Array, "E N"]:
    """For every expert, the counted tokens in each bin, over all devices."""
    squashed = values / (1.0 + jnp.abs(values))
    bins = jnp.clip((squashed + 1.0) * (NUM_BINS / 2), 0.0, NUM_BINS - 1.0).astype(jnp.int32)
    # Past the last expert and so nowhere: what is not counted.
    numbers = jnp.arange(values.shape[2], dtype=jnp.int32)[None, None]
    experts = jnp.where(is_counted[..., None], numbers, values.shape[2])
    sharding = jax.typeof(values).sharding
    if sharding.mesh.empty:
        return _counts(bins, experts)
    rows = P(*sharding.spec[:2], None)
    axes = tuple(
        name for part in rows for name in ((part,) if isinstance(part, str) else part or ())
    )
    return jax.shard_map(
        lambda *local: jax.lax.psum(_counts(*local), axes) if axes else _counts(*local),
        in_specs=(rows, rows),
        out_specs=P(None, None),
    )(bins, jax.reshard(experts, rows))


def upper_quantile(counts: Int[Array, "*L E N"], above: Float[Array, "*L"]) -> Float[Array, "*L E"]:
    """The value that `above` of the counted tokens exceed, by interpolation inside its bin."""
    at_least = jnp.flip(jnp.cumsum(jnp.flip(counts, -1), axis=-1), -1).astype(jnp.float32)
    wanted = above[..., None, None]
    # The last bin that still has that many from it on; there are as many in the first as at all.
    number = jnp.maximum(jnp.sum(at_least >= wanted, axis=-1) - 1, 0)
    bins = jnp.arange(NUM_BINS).reshape(*(1,) * number.ndim, NUM_BINS)
    is_it = bins == number[..., None]
    here = jnp.sum(jnp.where(is_it, counts, 0), axis=-1).astype(jnp.float32)
    from_here = jnp.sum(jnp.where(is_it, at_least, 0.0), axis=-1)
    part = jnp.clip((from_here - wanted[..., 0]) / jnp.maximum(here, 1.0), 0.0, 1.0)
    squashed = (number.astype(jnp.float32) + part) * (2.0 / NUM_BINS) - 1.0
    squashed = jnp.clip(squashed, -1.0 + 1.0 / NUM_BINS, 1.0 - 1.0 / NUM_BINS)
    return squashed / (1.0 - jnp.abs(squashed))


def _counts(bins: Int[Array, "B S E"], experts: Int[Array, "B S E"]) -> Int[Array, "E N"]:
    empty = jnp.zeros((bins.shape[2], NUM_BINS), jnp.int32)
    return empty.at[experts.reshape(-1), bins.reshape(-1)].add(1, mode="drop")
