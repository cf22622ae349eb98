"""The next token of a text: the likeliest, or one drawn from the likeliest few.

A draw depends on the seed of its text, the position in it and the logits, and on nothing else: not
on the other rows of a batch, not on the mesh.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, UInt32

from chomp.errors import require

# Axes: B texts, V vocabulary.

MOST = 2**31 - 1  # more tokens than any vocabulary has


class TokenChoice(eqx.Module):
    """How a token is taken from logits: the likeliest, any, or one of a few.

    Which of the three is static, the numbers are traced: another temperature is the same program.
    """

    temperature: Any | None  # None: the likeliest token
    cut: tuple[Any, Any] | None  # top_k and top_p; None: any token

    @staticmethod
    def of(
        *, temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None
    ) -> "TokenChoice":
        """The choice by softmax(logits / temperature), cut to `top_k`, then to `top_p`.

        Temperature 0 is the likeliest token, whatever the cuts. `top_k` leaves exactly that many
        tokens (or the vocabulary), `top_p` the fewest of them, likeliest first, whose
        probabilities among those sum to at least `top_p`: the token that gets there is still in.
        Of equally likely tokens the lower id comes first.
        """
        _require_sensible(temperature, top_k, top_p)
        if temperature == 0.0:
            return TokenChoice(None, None)
        # The sum of all may round to less than 1 or more: only a p beyond it leaves everything.
        limit_p = np.asarray(2.0 if top_p in (None, 1.0) else top_p, np.float32)
        limit_k = np.asarray(min(top_k or MOST, MOST), np.int32)
        is_cut = top_k is not None or top_p is not None
        return TokenChoice(
            np.asarray(temperature, np.float32), (limit_k, limit_p) if is_cut else None
        )

    def __call__(
        self, logits: Float[Array, "B V"], seeds: UInt32[Array, " B"], position: Int[Array, ""]
    ) -> Int[Array, " B"]:
        """A token for each row, drawn for this position of the texts with these seeds."""
        # Whole over the vocabulary, which a mesh with a model axis leaves in pieces.
        logits = jax.reshard(logits, PartitionSpec(jax.typeof(logits).sharding.spec[0], None))
        if self.temperature is None:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        # From the largest down, so that a tiny temperature gives -inf and never inf - inf.
        scores = (logits - jnp.max(logits, axis=-1, keepdims=True)) / self.temperature
        noise = _gumbel_noise(seeds, position, logits.shape[-1])
        if self.cut is None:
            return jnp.argmax(scores + noise, axis=-1).astype(jnp.int32)
        tokens = jax.lax.broadcasted_iota(
            jnp.int32, scores.shape, 1, out_sharding=jax.typeof(scores).sharding
        )
        # One stable sort takes all three along: gathers would cost more, and need shardings told.
        falling, tokens, noise = jax.lax.sort((-scores, tokens, noise), dimension=1, num_keys=1)
        kept = kept_ranks(-falling, *self.cut)
        winner = jnp.argmax(jnp.where(kept, noise - falling, -jnp.inf), axis=-1, keepdims=True)
        ranks = jnp.arange(scores.shape[1])[None]
        return jnp.sum(jnp.where(ranks == winner, tokens, 0), axis=-1)


def kept_ranks(
    scores: Float[Array, "B V"], top_k: Int[Any, ""], top_p: Float[Any, ""]
) -> Bool[Array, "B V"]:
    """Which of the scores, largest first, may be drawn: the first few of each row."""
    is_in_k = jnp.arange(scores.shape[1])[None] < top_k
    weights = jax.nn.softmax(jnp.where(is_in_k, scores, -jnp.inf), axis=-1)
    # What lies before a token, and not a sum less its own part, which would round twice.
    before = jnp.pad(jnp.cumsum(weights, axis=-1)[:, :-1], ((0, 0), (1, 0)))
    return is_in_k & (before < top_p)


def _gumbel_noise(
    seeds: UInt32[Array, " B"], position: Int[Array, ""], vocab_size: int
) -> Float[Array, "B V"]:
    """The largest of score + noise is a draw from softmax(scores)."""

    def of_row(seed: UInt32[Array, ""]) -> Float[Array, " V"]:
        return jax.random.gumbel(jax.random.fold_in(jax.random.key(seed), position), (vocab_size,))

    return jax.vmap(of_row)(seeds)


def _require_sensible(temperature: float, top_k: int | None, top_p: float | None) -> None:
    require(
        0.0 <= temperature < float("inf") and (top_k is None or top_k > 0),
        f"temperature={temperature} and top_k={top_k}",
        allowed="a finite temperature of 0 or more; top_k above 0, or None",
        fix="use temperature=0 for the likeliest token, top_k=None to sample from all tokens",
    )
    require(
        top_p is None or 0.0 < top_p <= 1.0,
        f"top_p={top_p}",
        allowed="a probability above 0 and at most 1, or None",
        fix="use 0.9 to drop the least likely tenth, None to sample from all tokens",
    )
