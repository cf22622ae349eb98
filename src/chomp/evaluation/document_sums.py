"""What an evaluation adds up: loss, tokens, bits and bytes of every document.

Sums are float64 on the host, each weight applied once, and nothing is divided before the end. The
documents are kept apart because they are what was sampled: neighbouring tokens are not
independent, so an error that took them for it would be far too small. Whole documents rather than
their moments, because deviations are then taken from the mean itself and nothing cancels; that
costs 32 bytes a document.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int

from chomp.data import EvalRows

# Axes: B rows, T tokens of a row, P positions that count, R runs, D documents, V vocabulary.


class Ratio(NamedTuple):
    """A sum over a sum, and its standard error; None where one document says nothing about it."""

    value: float
    stderr: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentSums:
    """Four sums for each document that has a counted token."""

    loss: Float64[np.ndarray, " D"]  # nats
    tokens: Float64[np.ndarray, " D"]  # sums of weights
    bits: Float64[np.ndarray, " D"]  # of tokens that stand for bytes
    num_bytes: Float64[np.ndarray, " D"]  # behind those tokens

    @staticmethod
    def joined(parts: Iterable["DocumentSums"]) -> "DocumentSums":
        """The documents of all parts, which have none in common."""
        found = list(parts)

        def column(name: str) -> Float64[np.ndarray, " D"]:
            return np.concatenate([np.empty(0), *(getattr(part, name) for part in found)])

        return DocumentSums(
            loss=column("loss"),
            tokens=column("tokens"),
            bits=column("bits"),
            num_bytes=column("num_bytes"),
        )

    @property
    def num_tokens(self) -> float:
        """Tokens of all documents, by weight."""
        return float(self.tokens.sum())

    @property
    def num_documents(self) -> int:
        """Documents with a counted token."""
        return len(self.tokens)

    @property
    def loss_per_token(self) -> Ratio | None:
        """Nats per token; None without tokens."""
        return _ratio(self.loss, self.tokens)

    @property
    def bits_per_byte(self) -> Ratio | None:
        """Total bits over total bytes; None without bytes."""
        # One without says nothing about bits per byte, so it is none of the n of its error.
        has_bytes = self.num_bytes != 0
        return _ratio(self.bits[has_bytes], self.num_bytes[has_bytes])


def _ratio(amounts: Float64[np.ndarray, " D"], sizes: Float64[np.ndarray, " D"]) -> Ratio | None:
    """R = sum of amounts / sum of sizes, with the standard error of a ratio estimator.

    With n documents: sqrt(n / (n - 1) * sum((amount - R * size)^2)) / sum of sizes (Cochran,
    Sampling Techniques, chapter 6, for documents drawn from a population without end).
    """
    size, count = float(sizes.sum()), len(sizes)
    if size == 0:
        return None
    # An infinite loss has to come out as such, and its error as NaN: neither is worth a warning.
    with np.errstate(invalid="ignore"):
        value = float(amounts.sum()) / size
        squares = float(np.square(amounts - value * sizes).sum())
    if count < 2:
        return Ratio(value, None)
    return Ratio(value, math.sqrt(count / (count - 1) * squares) / size)


class DocumentLedger:
    """Adds up batches of one dataset, in any order and cut anywhere."""

    def __init__(self, bytes_per_token: Int[np.ndarray, " V"] | None) -> None:
        sizes = np.empty(0, np.int32) if bytes_per_token is None else bytes_per_token
        # One id more, without bytes: a vocabulary that was rounded up has ids the table lacks.
        self._bytes = np.append(sizes, 0).astype(np.float64)
        self._runs: list[tuple[np.ndarray, ...]] = []

    def add(self, rows: EvalRows, losses: Float[np.ndarray, "B T"]) -> None:
        """Count the losses of some rows, given for every position.

        Positions without weight are left out before anything is multiplied: whatever a model says
        there, NaN too, is nobody's loss. One that counts shows in every sum it is part of.
        """
        # The last position of a row has nothing to predict, and no weight by the rules of examples.
        weight = rows.example.loss_weight[:, :-1]
        counts = weight != 0
        documents = rows.documents[:, :-1][counts]
        if not len(documents):
            return
        weights = weight[counts].astype(np.float64)
        nats = losses[:, :-1][counts] * weights
        behind = self._bytes.take(rows.example.tokens[:, 1:][counts], mode="clip")
        starts = _run_starts(documents, counts.sum(axis=1))
        bits = np.where(behind > 0, nats, 0.0) * math.log2(math.e)
        sums = (np.add.reduceat(part, starts) for part in (nats, weights, bits, behind * weights))
        self._runs.append((documents[starts], *sums))

    def sums(self) -> DocumentSums:
        """The sums of every document met so far."""
        if not self._runs:
            return DocumentSums.joined(())
        columns = [np.concatenate(column) for column in zip(*self._runs, strict=True)]
        # A document of several rows has a run in each; here it becomes one.
        documents, places = np.unique(columns[0], return_inverse=True)
        loss, tokens, bits, num_bytes = (
            np.bincount(places, column, minlength=len(documents)) for column in columns[1:]
        )
        return DocumentSums(loss=loss, tokens=tokens, bits=bits, num_bytes=num_bytes)


def _run_starts(
    documents: Int[np.ndarray, " P"], counts_of_rows: Int[np.ndarray, " B"]
) -> Int[np.ndarray, " R"]:
    """Where the counted positions of one document in one row begin.

    A row ends a run although its document may go on: runs are then the same however rows are put
    into batches, and so is the order in which numbers are added, to the last bit.
    """
    is_start = np.ones(len(documents), np.bool_)
    np.not_equal(documents[1:], documents[:-1], out=is_start[1:])
    firsts = np.cumsum(counts_of_rows) - counts_of_rows
    is_start[firsts[counts_of_rows > 0]] = True
    return np.flatnonzero(is_start)
