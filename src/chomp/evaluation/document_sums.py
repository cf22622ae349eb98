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
    # The dataset of each document, by number; None: all are of one.
    datasets: Int[np.ndarray, " D"] | None = None

    @staticmethod
    def joined(parts: Iterable["DocumentSums"]) -> "DocumentSums":
        """The documents of all parts, each a dataset; they have none in common."""
        found = list(parts)

        def column(name: str) -> Float64[np.ndarray, " D"]:
            return np.concatenate([np.empty(0), *(getattr(part, name) for part in found)])

        return DocumentSums(
            loss=column("loss"),
            tokens=column("tokens"),
            bits=column("bits"),
            num_bytes=column("num_bytes"),
            datasets=np.repeat(np.arange(len(found)), [part.num_documents for part in found]),
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
        return self._ratio(self.loss, self.tokens)

    @property
    def bits_per_byte(self) -> Ratio | None:
        """Total bits over total bytes; None without bytes."""
        return self._ratio(self.bits, self.num_bytes)

    def _ratio(
        self, amounts: Float64[np.ndarray, " D"], sizes: Float64[np.ndarray, " D"]
    ) -> Ratio | None:
        """R = sum of amounts / sum of sizes, with the standard error of a ratio estimator."""
        has_size = sizes > 0
        size = float(sizes[has_size].sum())
        if not size > 0:
            return None
        # An infinite loss has to come out as such, and its error as NaN; neither warns.
        with np.errstate(invalid="ignore"):
            value = float(amounts[has_size].sum()) / size
            residuals = (amounts - value * sizes)[has_size]
        if len(residuals) < 2:
            return Ratio(value, None)
        datasets = np.zeros(len(sizes), np.int64) if self.datasets is None else self.datasets
        return Ratio(value, math.sqrt(_variance_of_sum(residuals, datasets[has_size])) / size)


def _variance_of_sum(
    residuals: Float64[np.ndarray, " D"], datasets: Int[np.ndarray, " D"]
) -> float:
    """The variance of the sum of residuals, documents being drawn and datasets being fixed.

    For each dataset of n documents n / (n - 1) * sum((residual - their mean)^2): the combined ratio
    estimate over strata (Cochran, Sampling Techniques, chapter 6). How far datasets are from each
    other is no uncertainty. Datasets of a single document tell nothing of their own spread, so they
    are taken together as one; a lone one counts with its whole residual, which is too much rather
    than too little.
    """
    counts = np.bincount(datasets)
    datasets = np.where(counts[datasets] == 1, len(counts), datasets)
    counts = np.bincount(datasets)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(counts > 1, np.bincount(datasets, residuals) / counts, 0.0)
        factors = counts / np.maximum(counts - 1, 1)
        return float((factors[datasets] * np.square(residuals - means[datasets])).sum())


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
