"""Held-out loss and bits per byte, by dataset and by tag.

The device gives the loss of every position; the host, which knows weights, bytes and documents
from the batch itself, adds them up (`document_sums`). Every metric is a quotient of such sums, so
none depends on how rows were batched, or over how many devices. Specials (end of document) stand
for no bytes: they count in the loss and are left out of both sides of bits per byte.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Float32, Int

from chomp.data import EvalRows, GrugLmExample
from chomp.errors import DataError, require
from chomp.evaluation.document_sums import DocumentLedger, DocumentSums
from chomp.evaluation.tag_tree import datasets_by_tag, require_tags, tagged_metrics
from chomp.mesh import batch_shards, place_batch

log = logging.getLogger(__name__)

# Axes: B rows of a batch, N rows that are asked for, T tokens of a row, V vocabulary.

# Losses of every position of a batch, unweighted, given the weights of a model.
LossesOf = Callable[[Any, GrugLmExample], Float[Array, "B T"]]
# Told how many rows are done, and how many there are.
OnRows = Callable[[int, int], None]

# Batches the device has been given and the host has not read: enough that neither waits.
IN_FLIGHT = 2


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
        _require_sizes(batch_size, max_batches)
        _require_rows(datasets, self._tags)
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
        ledgers = {item.name: DocumentLedger(self._bytes_per_token) for item in self._datasets}
        total, done, loading_time = sum(map(len, self._rows.values())), 0, 0.0
        pending: deque[_Pending] = deque()

        def count_oldest() -> None:
            nonlocal done
            oldest = pending.popleft()
            ledgers[oldest.name].add(oldest.rows, np.asarray(oldest.losses))
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
        return {name: ledger.sums() for name, ledger in ledgers.items()}, loading_time

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


def _require_sizes(batch_size: int, max_batches: int | None) -> None:
    require(
        batch_size > 0 and (max_batches is None or max_batches > 0),
        f"evaluation with batch_size={batch_size} and max_batches={max_batches}",
        allowed="at least one row in a batch and one batch",
        fix="set max_batches=None to evaluate everything, or eval=null to evaluate nothing",
    )


def _require_rows(datasets: Sequence[HeldOut], tags: Mapping[str, tuple[str, ...]]) -> None:
    require(
        len(tags) == len(datasets),
        f"evaluation datasets named {sorted(item.name for item in datasets)}",
        allowed="a different name for each",
        fix="rename one: their metrics would be mixed",
    )
    if not any(item.num_rows for item in datasets):
        raise _nothing_to_evaluate("no row")


def _nothing_to_evaluate(lacking: str) -> DataError:
    return DataError(
        f"the evaluation datasets have {lacking}",
        allowed="at least one held-out document with a token to predict",
        fix="raise data.validation_fraction, add documents to a component, or set eval=null",
    )
