"""Short multiple choice: requests packed into rows beside one request in a forward pass.

One-by-one is what lm-eval's own models do at batch size 1: a pass for each request, no longer than
it has to be (here a multiple of 32, or every length would be a program of its own). The other peer
is the best one can do without packing: requests of like length side by side, as many as make a
batch of as many tokens as ours. All three are a `RequestScorer`, which sends batches off before the
last one is read, so what differs is the packing alone.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.data_inputs import corpus_texts
from benchmarks.record import Figure
from benchmarks.timing import in_turn, note
from chomp.evaluation.request_scores import Request, RequestScorer, Score, encoded_pairs
from chomp.mesh import place_batch
from chomp.tokenize import Tokenizer

GOAL = 3.0  # times one by one
BUCKET = 32  # tokens
PACKED = 64  # requests of a row, at most; the library's own

Question = dict[str, Any]
# A scorer of (rows of a batch, tokens of a row, requests of a row).
MakeScorer = Callable[[int, int, int], RequestScorer]


def questions(count: int) -> list[Question]:
    """Questions with four choices, cut out of the embedded corpus, the same every time.

    A question and a choice are 30 to 120 tokens in most cases, as in ARC, HellaSwag or PIQA without
    examples.
    """
    draw = random.Random(0)
    words = " ".join(corpus_texts(400_000)).split()

    def piece(least: int, most: int) -> str:
        start = draw.randrange(len(words) - most)
        return " ".join(words[start : start + draw.randint(least, most)])

    return [
        {
            "question": piece(12, 40),
            "choices": [piece(1, 5) for _ in range(4)],
            "answer": draw.randrange(4),
        }
        for _ in range(count)
    ]


def requests_of(asked: Sequence[Question], tokenizer: Tokenizer) -> list[Request]:
    """Every choice of every question, as lm-eval's multiple choice asks for it."""
    pairs = [(item["question"], f" {choice}") for item in asked for choice in item["choices"]]
    return encoded_pairs(tokenizer, pairs, prefix_id=tokenizer.eos_id, starts_with_prefix=False)


class OneInARow:
    """Scores requests one to a row, rows as short as they may be."""

    def __init__(self, make_scorer: MakeScorer, batch_tokens: int | None) -> None:
        """`batch_tokens` None: one row in a batch."""
        self._make, self._batch_tokens = make_scorer, batch_tokens
        self._scorers: dict[int, RequestScorer] = {}

    def scores(self, params: Any, requests: Sequence[Request]) -> list[Score]:
        """The score of each request, in their order."""
        groups: dict[int, list[Request]] = {}
        for request in requests:
            groups.setdefault(-(-len(request.tokens) // BUCKET) * BUCKET, []).append(request)
        found: dict[Request, Score] = {}
        for length, group in groups.items():
            if length not in self._scorers:
                rows = 1 if self._batch_tokens is None else self._batch_tokens // length
                self._scorers[length] = self._make(max(rows, 1), length, 1)
            found |= zip(group, self._scorers[length].scores(params, group), strict=True)
        return [found[request] for request in requests]


class ModelAlone:
    """The batches that a scorer makes of requests, on the device, and nothing around the model."""

    def __init__(self, scorer: RequestScorer, requests: Sequence[Request]) -> None:
        # As the scorer does it.
        distinct = sorted(set(requests), key=lambda item: (-len(item.tokens), item))
        self._scorer = scorer
        self._batches = [
            place_batch(batch, scorer.mesh, batch_axis=0) for _, batch in scorer._batches(distinct)
        ]

    def take(self, params: Any, num_batches: int | None = None) -> None:
        """The first of the batches, or all, through the model; done when this returns."""
        with jax.set_mesh(self._scorer.mesh):
            found = [self._scorer._scores(params, item) for item in self._batches[:num_batches]]
        jax.block_until_ready(found)


def packing_figures(
    name: str,
    params: Any,
    make_scorer: MakeScorer,
    requests: Sequence[Request],
    *,
    batch_size: int,
    row_len: int,
    rounds: int,
) -> list[Figure]:
    """Requests a second: packed, one by one, side by side, and the model alone."""
    packed = make_scorer(batch_size, row_len, PACKED)
    one_by_one = OneInARow(make_scorer, None)
    side_by_side = OneInARow(make_scorer, batch_size * row_len)
    alone = ModelAlone(packed, requests)
    lengths = [len(request.tokens) for request in requests]
    spread = " ".join(f"{q:.0f}" for q in np.quantile(lengths, [0.0, 0.05, 0.5, 0.95, 1.0]))
    note(f"{len(requests)} requests, {len(set(requests))} distinct; tokens by quantile: {spread}")
    _compare(params, requests, packed, one_by_one, side_by_side)
    seconds = in_turn(
        rounds,
        lambda: packed.scores(params, requests),
        lambda: one_by_one.scores(params, requests),
        lambda: side_by_side.scores(params, requests),
        lambda: alone.take(params),
    )
    speeds = [len(requests) / s for s in seconds]
    told = [
        ("packed requests", "one request in a pass", GOAL),
        ("packed requests, beside batches", "one request in a row, rows side by side", None),
        ("packed requests, beside the model", "their batches alone, ready on the device", None),
    ]
    return [
        Figure(
            name=f"{name}, {what}",
            value=speeds[0],
            unit="requests/s",
            better="higher",
            peer=peer,
            peer_value=peers,
            goal=goal,
            goal_on="ratio",
        )
        for (what, peer, goal), peers in zip(told, speeds[1:], strict=True)
    ]


def _compare(
    params: Any, requests: Sequence[Request], packed: RequestScorer, *others: OneInARow
) -> None:
    """Compile everything, and say how far apart the scores are: other numbers need no speed."""
    ours = np.asarray([score.log_likelihood for score in packed.scores(params, requests)])
    for other in others:
        theirs = [score.log_likelihood for score in other.scores(params, requests)]
        note(f"scores differ from the packed ones by at most {np.abs(ours - theirs).max():.1e}")
