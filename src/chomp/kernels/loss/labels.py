"""What each position is asked to predict."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

# Axes: B batch, S sequence.


def next_tokens(token_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """The token to the right of each position; 0 at the end of the row, where nothing follows."""
    # A pad, not jnp.roll: under JAX 0.11 a slice of one element forgets its sharding, and a roll of
    # a single row on an explicit mesh is refused.
    zero = jnp.zeros((), token_ids.dtype)
    return jax.lax.pad(token_ids, zero, ((0, 0, 0), (-1, 1, 0)))
