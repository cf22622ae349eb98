"""Keys and values kept while decoding, so that a new token costs one position, not the prefix."""

from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Int

from chomp.errors import require_at_most

# Axes: B batch, S new positions, T cached positions, G key-value heads, K head width.


class KeyValueCache(NamedTuple):
    """What one layer has seen: `length` positions; the rest is zeros behind the causal mask."""

    k: Float[Array, "B T G K"]
    v: Float[Array, "B T G K"]
    length: Int[Array, ""]

    def extended(self, k: Float[Array, "B S G K"], v: Float[Array, "B S G K"]) -> "KeyValueCache":
        """The cache with S more positions, which must fit behind those it has.

        Only S itself can be checked here: `length` is known on the device alone, and a write past
        the end would land on the last positions instead.
        """
        require_at_most("new positions", k.shape[1], "the cache's length", self.k.shape[1])
        return KeyValueCache(
            jax.lax.dynamic_update_slice_in_dim(self.k, k, self.length, axis=1),
            jax.lax.dynamic_update_slice_in_dim(self.v, v, self.length, axis=1),
            self.length + k.shape[1],
        )
