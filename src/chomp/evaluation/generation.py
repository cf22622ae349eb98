"""Generated text: how a token is chosen, and prompts of any lengths continued side by side.

A draw depends on the seed of its text, the position in it and the logits, and on nothing else: not
on the other rows of a batch, not on the mesh.

A model's cache has one position for all rows, so prompts begin together: the part that all have is
prefilled, and a longer prompt's tokens are fed while shorter ones are already being continued. No
row is padded in front, so any model with `init_cache` and `decode_step` writes exactly what it
would write for that prompt alone, up to the rounding of other shapes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, UInt32

from chomp.errors import require, require_at_most
from chomp.mesh import batch_shards, place_batch

# Axes: B texts, V vocabulary, T positions of the longest, S positions of a piece, E tokens that
# end a text.

MOST = 2**31 - 1  # more tokens than any vocabulary has
Ids = Int[Array | np.ndarray, "B T"]
# Prompts go into the cache by so many tokens at once, what is left over by one. That is
# L / CHUNK + CHUNK / 2 steps for L tokens: the fewest at L = 512.
CHUNK = 32
# No cache is shorter: texts of a few tokens share one program.
MIN_LENGTH = 64


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


class Rows(NamedTuple):
    """The texts of a batch; a row that has ended changes no more."""

    ids: Ids
    prompt_length: Int[Array | np.ndarray, " B"]
    length: Int[Array | np.ndarray, " B"]  # with the prompt, without an end
    limit: Int[Array | np.ndarray, " B"]  # the length at which a text is cut
    seed: UInt32[Array | np.ndarray, " B"]
    ended: Bool[Array | np.ndarray, " B"]


class Generation:
    """Texts that continue `prompts`, as far as `advance` was asked to take them.

    For a caller that ends texts by what they say: advance a little, read `texts`, `stop` some,
    until `is_done`. Compiled once for each batch size and length, both rounded up to powers of
    two; no prompt's own length and no number of a choice makes another program. Prompts of like
    length go together best: what one has more than the shortest is fed token by token.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        *,
        mesh: Mesh,
        max_tokens: int,
        end_ids: Sequence[int],
        seeds: Sequence[int],
        choice: TokenChoice,
    ) -> None:
        length = _cache_length(model, prompts, max_tokens)
        self._rows = _rows(prompts, seeds, max_tokens, length, batch_shards(mesh))
        self._fixed = model, choice, np.asarray(end_ids, np.int32)
        self._num_texts, self._mesh = len(prompts), mesh
        # The last position that every prompt has: the first new token comes after it.
        self._reached = min(map(len, prompts)) - 1
        self._position = self._reached // CHUNK * CHUNK
        self._cache: Any = None

    @property
    def texts(self) -> list[list[int]]:
        """The new ids of each prompt so far, without the id that ended them."""
        rows = self._rows
        spans = zip(rows.ids, rows.prompt_length, rows.length, strict=True)
        return [ids[start:end].tolist() for ids, start, end in spans][: self._num_texts]

    @property
    def is_done(self) -> bool:
        """Whether every text has ended."""
        return bool(np.all(self._rows.ended))

    def stop(self, index: int) -> None:
        """End a text as it is. With several processes, each has to stop the same ones."""
        ended = np.array(self._rows.ended)
        ended[: self._num_texts][index] = True
        self._rows = self._rows._replace(ended=ended)

    def advance(self, num_tokens: int | None) -> None:
        """Continue the shortest prompt by `num_tokens`, the others beside it; None: to the end."""
        require(
            num_tokens is None or num_tokens > 0,
            f"num_tokens={num_tokens}",
            allowed="a number above 0, or None",
            fix="set num_tokens=16, or None for the whole texts",
        )
        last = int(np.max(self._rows.limit)) - 1
        self._reached = last if num_tokens is None else min(self._reached + num_tokens, last)
        if self.is_done:
            return
        with jax.set_mesh(self._mesh):
            rows = place_batch(self._rows, self._mesh, batch_axis=0)
            if self._cache is None:
                num_chunks = np.asarray(self._position // CHUNK, np.int32)
                self._cache = _prefilled(self._fixed[0], rows.ids, num_chunks)
            span = np.asarray([self._position, self._reached], np.int32)
            self._cache, rows = _continued((self._fixed, rows, span), self._cache)
        self._rows = jax.tree.map(np.asarray, rows)
        # True of all rows that have not ended: the loop stops before only when none is left.
        self._position = self._reached


def _cache_length(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> int:
    """Positions for the longest text, rounded up as far as the model allows."""
    shortest = min(map(len, prompts), default=0)
    require(
        shortest > 0 and max_tokens > 0,
        f"{len(prompts)} prompts, the shortest of {shortest} tokens, max_tokens={max_tokens}",
        allowed="at least one of each",
        fix="start from the end-of-document token to generate without a prompt",
    )
    longest = max(map(len, prompts)) + max_tokens
    length = max(MIN_LENGTH, _power_of_two(longest))
    # A template may have no longest text; base says it in its config.
    limit = getattr(getattr(model, "cfg", None), "max_seq_len", None)
    if limit is None:
        return length
    require_at_most("prompt and max_tokens", longest, "model.max_seq_len", limit)
    return min(length, limit)


def _rows(
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    max_tokens: int,
    length: int,
    shards: int,
) -> Rows:
    """The prompts, and below them rows that have ended, so that the batch has its rounded size."""
    require(
        len(seeds) == len(prompts) and all(0 <= seed < 2**32 for seed in seeds),
        f"seeds {list(seeds[:8])} for {len(prompts)} prompts",
        allowed="one seed for all or one for each, from 0 to 2**32 - 1",
        fix="set seed=0",
    )
    size = shards * _power_of_two(-(-len(prompts) // shards))
    ids = np.zeros((size, length), np.int32)
    for row, prompt in zip(ids, prompts, strict=False):
        row[: len(prompt)] = prompt
    lengths = np.zeros(size, np.int32)
    lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
    row_seeds = np.zeros(size, np.uint32)
    row_seeds[: len(prompts)] = seeds
    return Rows(ids, lengths, lengths, lengths + max_tokens, row_seeds, lengths == 0)


def _power_of_two(number: int) -> int:
    """The first power of two that is no less."""
    return 1 << (number - 1).bit_length()


@eqx.filter_jit
def _prefilled(model: Any, ids: Ids, num_chunks: Int[Any, ""]) -> Any:
    """A cache of T positions that has seen the first chunks of all rows."""
    cache = model.init_cache(*ids.shape)
    size = min(CHUNK, ids.shape[1])

    # Logits are dropped, so XLA leaves the unembedding out.
    def step(chunk: Int[Array, ""], cache: Any) -> Any:
        return model.decode_step(cache, _columns(ids, chunk * size, size))[1]

    return jax.lax.fori_loop(0, num_chunks, step, cache)


@eqx.filter_jit(donate="all-except-first")
def _continued(given: Any, cache: Any) -> tuple[Any, Rows]:
    """The cache and the rows after the tokens of a span of positions, or when all rows ended."""
    (model, choice, end_ids), rows, span = given

    def is_unfinished(carry: Any) -> Bool[Array, ""]:
        position, _, rows = carry
        return (position < span[1]) & ~jnp.all(rows.ended)

    def step(carry: Any) -> Any:
        position, cache, rows = carry
        logits, cache = model.decode_step(cache, _columns(rows.ids, position, 1))
        token = choice(logits[:, -1], rows.seed, position + 1)
        return position + 1, cache, _extended(rows, token, position + 1, end_ids)

    _, cache, rows = jax.lax.while_loop(is_unfinished, step, (span[0], cache, rows))
    # Whole, so that every process has all of them.
    return cache, jax.tree.map(lambda x: jax.reshard(x, PartitionSpec(*[None] * x.ndim)), rows)


def _extended(
    rows: Rows, token: Int[Array, " B"], position: Int[Array, ""], end_ids: Int[Any, " E"]
) -> Rows:
    """The rows with their tokens at `position`, but for those in their prompt and those ended."""
    is_open = ~rows.ended & (position >= rows.prompt_length)
    is_end = jnp.any(token[:, None] == end_ids[None], axis=1)
    is_new = is_open & ~is_end
    column = jnp.where(is_new[:, None], token[:, None], _columns(rows.ids, position, 1))
    length = rows.length + is_new.astype(jnp.int32)
    return rows._replace(
        ids=jax.lax.dynamic_update_slice_in_dim(rows.ids, column, position, axis=1),
        length=length,
        ended=rows.ended | (is_open & is_end) | (is_open & (length == rows.limit)),
    )


def _columns(ids: Ids, start: Int[Any, ""], size: int) -> Int[Array, "B S"]:
    found = jax.lax.dynamic_slice_in_dim(ids, start, size, axis=1)
    # Under JAX 0.11 a slice of one element forgets its sharding.
    return jax.reshard(found, jax.typeof(ids).sharding.spec)


def generate_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    mesh: Mesh,
    max_tokens: int,
    eos_id: int,
    seed: int | Sequence[int] = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[list[int]]:
    """Up to `max_tokens` ids after each prompt, ending before the first end of document.

    How tokens are chosen is said at `TokenChoice.of`. A prompt and a seed have one text, whatever
    is beside them. Texts with one seed share their luck, position by position: give a seed for
    each prompt to draw independently, or to have several texts of one prompt.
    """
    generation = Generation(
        model,
        prompts,
        mesh=mesh,
        max_tokens=max_tokens,
        end_ids=[eos_id],
        seeds=[seed] * len(prompts) if isinstance(seed, int) else seed,
        choice=TokenChoice.of(temperature=temperature, top_k=top_k, top_p=top_p),
    )
    generation.advance(None)
    return generation.texts


def generate(
    model: Any,
    prompt: Sequence[int],
    *,
    mesh: Mesh,
    max_tokens: int,
    eos_id: int,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[int]:
    """The text that `generate_batch` gives for one prompt."""
    (text,) = generate_batch(
        model,
        [prompt],
        mesh=mesh,
        max_tokens=max_tokens,
        eos_id=eos_id,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    return text
