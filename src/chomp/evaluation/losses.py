"""Held-out loss and bits per byte, by dataset and by tag.

The device gives the loss of every position; the host, which knows weights, bytes and documents
from the batch itself, adds them up per document. Every metric is a quotient of such sums, so none
depends on how rows were batched, or over how many devices. Specials (end of document) stand for no
bytes: they count in the loss and are left out of both sides of bits per byte.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Float32, Float64, Int

from chomp.data import EvalRows, GrugLmExample
from chomp.errors import DataError, require
from chomp.mesh import batch_shards, place_batch

# Axes: B rows of a batch, N rows that are asked for, T tokens of a row, P positions that count,
# R runs, D documents, V vocabulary.

log = logging.getLogger(__name__)
# Losses of every position of a batch, unweighted, given the weights of a model.
LossesOf = Callable[[Any, GrugLmExample], Float[Array, "B T"]]
# Called with how many rows are done, and how many there are.
OnRows = Callable[[int, int], None]
# Batches the device has been given and the host has not read: enough that neither waits.
IN_FLIGHT = 2


# Sums are float64 on the host, each weight applied once, and nothing is divided before the end.
# Documents are kept apart because they are what was sampled: neighbouring tokens are not
# independent, so an error that took them for it would be far too small. Whole documents rather than
# their moments, because deviations are then taken from the mean itself and nothing cancels; that
# costs 32 bytes a document.
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


class LossAccumulator:
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


def tagged_metrics(
    sums: Mapping[str, DocumentSums], tags: Mapping[str, Iterable[str]], *, with_bytes: bool
) -> dict[str, float]:
    """Metrics without prefix: over everything, per tag, and per parent of tags such as `a/b`.

    A parent counts each dataset once, however many of its tags lie below; its macro averages are
    over those tags. A tag without tokens has no loss and is left out of macro averages; its token
    count says so. A parent that is a tag of datasets too has their loss as its `loss`, and what
    lies below in `micro_loss` and `macro_loss`. Errors are there from two documents on.
    """
    datasets = datasets_by_tag(tags)
    by_tag = {tag: _total(sums, names) for tag, names in datasets.items()}
    metrics: dict[str, float] = {}
    _put(metrics, "", DocumentSums.joined(sums.values()), with_bytes)
    if len(by_tag) > 1:  # over one tag it would be that tag's loss again
        _put_macro(metrics, "", list(by_tag.values()), with_bytes)
    for tag, item in by_tag.items():
        _put(metrics, f"{tag}/", item, with_bytes)
    for parent in sorted(_parents(by_tag)):
        below = [tag for tag in by_tag if tag.startswith(f"{parent}/")]
        total = _total(sums, [name for tag in below for name in datasets[tag]])
        # A tag has its `loss` from the datasets that carry it, and nothing may write over that.
        if parent not in by_tag:
            _put(metrics, f"{parent}/", total, with_bytes)
        # Without a token below there is no mean: an average over nothing would be NaN.
        if (loss := total.loss_per_token) is not None:
            metrics[f"{parent}/micro_loss"] = loss.value
            _put_macro(metrics, f"{parent}/", [by_tag[tag] for tag in below], with_bytes)
    return metrics


def datasets_by_tag(tags: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The datasets of each tag that some dataset has."""
    by_tag: dict[str, list[str]] = {}
    for name, own in tags.items():
        for tag in own:
            by_tag.setdefault(tag, []).append(name)
    return by_tag


def require_tags(tags: Mapping[str, Iterable[str]]) -> None:
    """Refuse tags from which no metric name of their own can be made."""
    # Beside `ema/`, an empty part would make two tags one name: `a//b` has the parent `a/`.
    for name, own in tags.items():
        for tag in own:
            parts = tag.split("/")
            require(
                all(parts) and parts[0] != "ema",
                f"the tag {tag!r} of the evaluation dataset {name!r}",
                allowed="words joined by single slashes, the first not `ema`, where the metrics of "
                "averaged weights are",
                fix="rename it, as in `text/web`: it becomes eval/text/web/loss",
            )


def _total(sums: Mapping[str, DocumentSums], names: Iterable[str]) -> DocumentSums:
    """The sums of the named datasets, each counted once."""
    return DocumentSums.joined(sums[name] for name in dict.fromkeys(names))


def _parents(tags: Iterable[str]) -> set[str]:
    return {
        "/".join(parts[:depth])
        for parts in (tag.split("/") for tag in tags)
        for depth in range(1, len(parts))
    }


def _put(metrics: dict[str, float], prefix: str, item: DocumentSums, with_bytes: bool) -> None:
    metrics[f"{prefix}tokens"] = item.num_tokens
    metrics[f"{prefix}documents"] = float(item.num_documents)
    found = {"loss": item.loss_per_token, "bpb": item.bits_per_byte if with_bytes else None}
    for name, ratio in found.items():
        if ratio is not None:
            metrics[f"{prefix}{name}"] = ratio.value
            if ratio.stderr is not None:
                metrics[f"{prefix}{name}_stderr"] = ratio.stderr


def _put_macro(
    metrics: dict[str, float], prefix: str, items: Sequence[DocumentSums], with_bytes: bool
) -> None:
    """Means over the items that have tokens, and over those that have bytes: each counts once."""
    losses = [ratio.value for item in items if (ratio := item.loss_per_token) is not None]
    if losses:
        metrics[f"{prefix}macro_loss"] = float(np.mean(losses))
    in_bytes = [ratio.value for item in items if (ratio := item.bits_per_byte) is not None]
    if with_bytes and in_bytes:
        metrics[f"{prefix}macro_bpb"] = float(np.mean(in_bytes))


@runtime_checkable
class HeldOut(Protocol):
    """What is evaluated: rows by number, under a name and tags (`data.EvalDataset` is one)."""

    name: str
    tags: tuple[str, ...]

    @property
    def num_rows(self) -> int:
        """Rows there are."""
        ...

    def read(self, rows: Int[np.ndarray, " N"], batch_size: int) -> EvalRows:
        """Those rows, filled up to a whole batch with rows that count for nothing."""
        ...


class _Pending(NamedTuple):
    name: str
    num_rows: int
    rows: EvalRows
    losses: Float32[Array, "B T"]


class TaggedEvaluator:
    """Evaluates weights on every dataset.

    Evaluators with one `losses_of` share its compiled program, as those of current and averaged
    weights do.
    """

    def __init__(
        self,
        datasets: Sequence[HeldOut],
        losses_of: LossesOf,
        *,
        mesh: Mesh,
        batch_size: int,
        max_batches: int | None,
        bytes_per_token: Int[np.ndarray, " V"] | None,
        prefix: str = "eval",
    ) -> None:
        """`max_batches` of `batch_size` rows are read of each dataset; None: all of it."""
        # All that can be refused is refused here: the first evaluation may be hours away.
        self._tags = {dataset.name: dataset.tags for dataset in datasets}
        require(
            batch_size > 0 and (max_batches is None or max_batches > 0),
            f"evaluation with batch_size={batch_size} and max_batches={max_batches}",
            allowed="at least one row in a batch and one batch",
            fix="set max_batches=None to evaluate everything, or eval=null to evaluate nothing",
        )
        require(
            len(self._tags) == len(datasets),
            f"evaluation datasets named {sorted(item.name for item in datasets)}",
            allowed="a different name for each",
            fix="rename one: their metrics would be mixed",
        )
        if not any(item.num_rows for item in datasets):
            raise _nothing_to_evaluate("no row")
        require_tags(self._tags)
        self._datasets, self._losses_of, self._mesh = datasets, losses_of, mesh
        # The limit is by the size asked for: the rows must not depend on the number of devices.
        limit = None if max_batches is None else max_batches * batch_size
        self._rows = {item.name: chosen_rows(item.num_rows, limit) for item in datasets}
        # No larger than the rows there are, which would be padding; then rounded up to what the
        # mesh can cut, since rows are padded anyway.
        rows = min(batch_size, max(map(len, self._rows.values())))
        self._batch_size = -(-rows // batch_shards(mesh)) * batch_shards(mesh)
        self._bytes_per_token = bytes_per_token
        self._prefix = prefix
        self._has_told_empty = False

    def evaluate(self, model: Any, on_rows: OnRows | None = None) -> dict[str, float]:
        """All metrics of `model`, with the prefix. Deterministic: always the same rows.

        Raises `DataError` where not a single token counts. In a run of several processes all have
        to call it, and all have the metrics.
        """
        start = time.perf_counter()
        sums, loading_time = self._sums(model, on_rows)
        self._tell_empty(sums)
        metrics = tagged_metrics(sums, self._tags, with_bytes=self._bytes_per_token is not None)
        metrics["loading_time"] = loading_time
        metrics["total_time"] = time.perf_counter() - start
        return {f"{self._prefix}/{name}": value for name, value in metrics.items()}

    def _sums(self, model: Any, on_rows: OnRows | None) -> tuple[dict[str, DocumentSums], float]:
        """The sums of each dataset, and the seconds it took to read and place batches."""
        # Each knows its own documents: numbers of documents are those of one store.
        sums = {item.name: LossAccumulator(self._bytes_per_token) for item in self._datasets}
        total, done, loading_time = sum(map(len, self._rows.values())), 0, 0.0
        pending: deque[_Pending] = deque()

        def count_oldest() -> None:
            nonlocal done
            oldest = pending.popleft()
            sums[oldest.name].add(oldest.rows, np.asarray(oldest.losses))
            done += oldest.num_rows
            if on_rows is not None:
                on_rows(done, total)

        with jax.set_mesh(self._mesh):
            # One line over all datasets: the device goes on to the next while one is added up.
            for dataset, rows in self._batches():
                begin = time.perf_counter()
                found = dataset.read(rows, self._batch_size)
                placed = place_batch(found.example, self._mesh, batch_axis=0)
                loading_time += time.perf_counter() - begin
                losses = _losses(self._losses_of, model, placed)
                losses.copy_to_host_async()  # as soon as they are there, while the host reads on
                pending.append(_Pending(dataset.name, len(rows), found, losses))
                if len(pending) > IN_FLIGHT:
                    count_oldest()
            while pending:
                count_oldest()
        return {name: total.sums() for name, total in sums.items()}, loading_time

    def _batches(self) -> Iterator[tuple[HeldOut, Int[np.ndarray, " N"]]]:
        for dataset in self._datasets:
            rows = self._rows[dataset.name]
            for first in range(0, len(rows), self._batch_size):
                yield dataset, rows[first : first + self._batch_size]

    def _tell_empty(self, sums: Mapping[str, DocumentSums]) -> None:
        """Say once which datasets have no token that counts; refuse if none has."""
        empty = {name for name, item in sums.items() if item.num_documents == 0}
        if len(empty) == len(sums):
            raise _nothing_to_evaluate("no token that counts")
        if empty and not self._has_told_empty:
            self._has_told_empty = True
            by_tag = datasets_by_tag(self._tags)
            # A tag may lose one dataset and live on by another.
            bare = [tag for tag, names in by_tag.items() if empty.issuperset(names)]
            log.warning(
                "evaluation: no held-out token counts in %s. There is no loss of %s, and macro "
                "averages leave them out. Hold out more documents of these components, or do not "
                "expect them in %s/*.",
                *(", ".join(sorted(empty)), ", ".join(sorted(bare)), self._prefix),
            )


def chosen_rows(num_rows: int, limit: int | None) -> Int[np.ndarray, " N"]:
    """All rows in order, or `limit` of them at even distances.

    Not the first ones: a corpus is often sorted, and its beginning would be one kind of text.
    """
    if limit is None or limit >= num_rows:
        return np.arange(num_rows)
    return np.arange(limit) * num_rows // limit


# Compiled for each `losses_of`, not for each evaluator: averaged weights need no second program.
@partial(jax.jit, static_argnums=0)
def _losses(losses_of: LossesOf, model: Any, batch: GrugLmExample) -> Float32[Array, "B T"]:
    losses = losses_of(model, batch).astype(jnp.float32)
    return jax.reshard(losses, PartitionSpec(None, None))  # every process reads all of it


def _nothing_to_evaluate(lacking: str) -> DataError:
    return DataError(
        f"the evaluation datasets have {lacking}",
        allowed="at least one held-out document with a token to predict",
        fix="raise data.validation_fraction, add documents to a component, or set eval=null",
    )
