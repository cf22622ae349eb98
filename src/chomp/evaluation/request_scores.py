"""Log-likelihoods of requests: texts as token ids, several packed into a row, each alone.

The boundary of context and continuation is lm-eval's own: spaces that end the context go to the
continuation, both are encoded together, and the continuation is what lies beyond as many tokens as
the context alone has. Every batch has one shape, so there is one program. Equal requests are
computed once. What a batch holds depends on the set of requests, never on their order, so neither
do the scores.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from chomp.data import GrugLmExample, pack
from chomp.errors import require
from chomp.kernels.attention import AttentionMask
from chomp.kernels.attention.mask import PAD_SEGMENT, documents_of_rows, max_segments
from chomp.kernels.loss import next_tokens
from chomp.mesh import batch_shards, place_batch
from chomp.tokenize import Tokenizer

# Axes: B rows, T tokens of a row, V vocabulary.

# Loss of every position of a batch, unweighted, and whether its next token is the likeliest.
ScoresOf = Callable[[Any, GrugLmExample], tuple[Float[Array, "B T"], Bool[Array, "B T"]]]
# Batches the device has been given and the host has not read: enough that neither waits.
IN_FLIGHT = 2


class Request(NamedTuple):
    """Tokens of which those from `start` on are scored, given all before them; `start` is 1 up."""

    tokens: tuple[int, ...]
    start: int


@dataclass(frozen=True, kw_only=True)
class TruncationCounts:
    """What of the requests did not fit, or had nothing to score."""

    truncated: int = 0  # requests that lost tokens of their context
    shortened: int = 0  # of those, requests that lost tokens of the continuation too
    empty: int = 0  # requests without a token to score

    def __add__(self, other: "TruncationCounts") -> "TruncationCounts":
        return TruncationCounts(
            truncated=self.truncated + other.truncated,
            shortened=self.shortened + other.shortened,
            empty=self.empty + other.empty,
        )


def encoded_pairs(
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    prefix_id: int,
    starts_with_prefix: bool,
) -> list[Request]:
    """One request for each (context, continuation), of any length.

    A context without a token of its own becomes `prefix_id`; `starts_with_prefix`: every context
    begins with it, as the documents of a model with a beginning-of-document token do.
    """
    moved = []
    for context, continuation in pairs:
        stripped = context.rstrip()
        moved.append((stripped, context[len(stripped) :] + continuation))
    texts = list(dict.fromkeys(text for pair in moved for text in (pair[0], "".join(pair))))
    ids = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
    requests = []
    for context, continuation in moved:
        before = ids[context]
        # Where a token spans the boundary, this is not the encoding of the whole: lm-eval gives the
        # model the context's own tokens too.
        after = ids[context + continuation][len(before) :]
        if starts_with_prefix or not before:
            before = [prefix_id, *before]
        requests.append(Request((*before, *after), len(before)))
    return requests


def fitting(requests: Sequence[Request], max_tokens: int) -> tuple[list[Request], TruncationCounts]:
    """The requests cut from the left to at most `max_tokens`, and how many lost something.

    One token is left to condition on, so of a continuation at most `max_tokens - 1` are scored.
    """
    fitted, cuts = [], TruncationCounts()
    for tokens, start in requests:
        surplus = max(len(tokens) - max_tokens, 0)
        if surplus or start == len(tokens):
            cuts += TruncationCounts(
                truncated=surplus > 0,
                shortened=surplus >= start,
                empty=start == len(tokens),
            )
        fitted.append(Request(tokens[surplus:], max(start - surplus, 1)))
    return fitted, cuts


class Score(NamedTuple):
    """What lm-eval asks of a request."""

    log_likelihood: float  # natural logarithm, summed over the scored tokens
    is_greedy: bool  # whether each of them was the likeliest


class Place(NamedTuple):
    """Where in a batch a request is."""

    request: int
    row: int
    column: int


class RequestScorer:
    """Scores requests with any weights of one model; compiled once."""

    def __init__(
        self,
        scores_of: ScoresOf,
        *,
        mesh: Mesh,
        batch_size: int,
        row_len: int,
        pad_id: int,
        max_requests: int = 64,
        counts_documents: bool = False,
    ) -> None:
        """`row_len` is the model's limit; `max_requests` is that of a row.

        `counts_documents`: the attention kernel has tables whose size a batch has to say
        (`data.RowLimits` has the same field).
        """
        require(
            batch_size > 0 and row_len > 1 and max_requests > 0,
            f"batch_size={batch_size}, row_len={row_len} and max_requests={max_requests}",
            allowed="rows of at least 2 tokens, one to condition on and one to score, and at "
            "least one row and one request",
            fix="set row_len to the model's max_seq_len",
        )
        self.row_len, self.mesh = row_len, mesh
        self._batch_size = -(-batch_size // batch_shards(mesh)) * batch_shards(mesh)
        self._pad_id, self._max_requests = pad_id, max_requests
        self._counts_documents = counts_documents

        def scores(params: Any, batch: GrugLmExample) -> tuple[Array, Array]:
            losses, is_argmax = scores_of(params, batch)
            everywhere = PartitionSpec(None, None)  # every process reads all of it
            return jax.reshard(losses, everywhere), jax.reshard(is_argmax, everywhere)

        self._scores = jax.jit(scores)

    def scores(self, params: Any, requests: Sequence[Request]) -> list[Score]:
        """The score of each request, in their order; each must fit into a row."""
        # Longest first, then by content: the order in which they came must not matter.
        asking = [item for item in set(requests) if item.start < len(item.tokens)]
        distinct = sorted(asking, key=lambda item: (-len(item.tokens), item))
        found: dict[Request, Score] = {}
        pending: deque[tuple[list[Place], tuple[Array, Array]]] = deque()
        with jax.set_mesh(self.mesh):
            for places, batch in self._batches(distinct):
                placed = place_batch(batch, self.mesh, batch_axis=0)
                pending.append((places, self._scores(params, placed)))
                if len(pending) > IN_FLIGHT:
                    found |= _read(*pending.popleft(), distinct)
            while pending:
                found |= _read(*pending.popleft(), distinct)
        # Nothing to score is certain.
        return [found.get(item, Score(0.0, True)) for item in requests]

    def _batches(self, requests: Sequence[Request]) -> Iterator[tuple[list[Place], GrugLmExample]]:
        lengths = np.asarray([len(item.tokens) for item in requests], np.int64)
        order, counts = pack(lengths, self.row_len, self._max_requests)
        rows = np.split(order, np.cumsum(counts)[:-1]) if len(requests) else []
        for first in range(0, len(rows), self._batch_size):
            yield self._batch(requests, rows[first : first + self._batch_size])

    def _batch(
        self, requests: Sequence[Request], rows: Sequence[Int[np.ndarray, " _"]]
    ) -> tuple[list[Place], GrugLmExample]:
        shape, places = (self._batch_size, self.row_len), []
        tokens = np.full(shape, self._pad_id, np.int32)
        segment_ids = np.full(shape, PAD_SEGMENT, np.int32)
        weight = np.zeros(shape, np.float32)
        for row, members in enumerate(rows):
            column = 0
            for segment, index in enumerate(members.tolist()):
                ids, start = requests[index]
                end = column + len(ids)
                tokens[row, column:end] = ids
                segment_ids[row, column:end] = segment
                weight[row, column + start - 1 : end - 1] = 1.0
                places.append(Place(index, row, column))
                column = end
        mask = AttentionMask.causal(segment_ids=segment_ids)
        mask = mask.with_max_segments(self._room(segment_ids))
        return places, GrugLmExample(tokens=tokens, loss_weight=weight, attn_mask=mask)

    def _room(self, segment_ids: Int[np.ndarray, "B T"]) -> int | None:
        """Room for the documents of a row, on average over the rows of the fullest device."""
        if not self._counts_documents:
            return None
        found = documents_of_rows(segment_ids).reshape(batch_shards(self.mesh), -1)
        return max_segments(self.row_len, -(-int(found.sum(axis=1).max()) // found.shape[1]))


def scores_from_logits(
    logits_of: Callable[[Any, GrugLmExample], Float[Array, "B T V"]],
) -> ScoresOf:
    """Scores by way of all logits: exact for any model, at the price of holding B T V of them.

    A template gives its own instead, by `kernels.loss.linear_cross_entropy_and_argmax`.
    """

    def scores_of(
        params: Any, batch: GrugLmExample
    ) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
        logits = logits_of(params, batch)
        rows = jax.typeof(batch.tokens).sharding.spec[0]
        # Whole over the vocabulary, which a mesh with a model axis leaves in pieces.
        logits = jax.reshard(logits.astype(jnp.float32), PartitionSpec(rows, None, None))
        labels = next_tokens(batch.tokens)
        chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        losses = jax.nn.logsumexp(logits, axis=-1) - chosen
        return losses, jnp.argmax(logits, axis=-1).astype(labels.dtype) == labels

    return scores_of


def _read(
    places: Sequence[Place], outputs: tuple[Array, Array], requests: Sequence[Request]
) -> dict[Request, Score]:
    losses, is_argmax = (np.asarray(item) for item in outputs)
    found = {}
    for index, row, column in places:
        tokens, start = request = requests[index]
        scored = slice(column + start - 1, column + len(tokens) - 1)
        total = float(losses[row, scored].sum(dtype=np.float64))
        found[request] = Score(-total, bool(is_argmax[row, scored].all()))
    return found
