"""Held-out loss and bits per byte, by dataset and by tag.

Per dataset four sums are kept, each weight applied once: loss, tokens, bits over tokens that stand
for bytes, and those bytes. Every metric is a quotient of such sums, formed at the end, so none
depends on how rows were batched. Specials (end of document) stand for no bytes: they count in the
loss and are left out of both sides of bits per byte.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from chomp.data import EvalDataset, GrugLmExample
from chomp.kernels.loss import next_tokens
from chomp.mesh import batch_shards, place_batch

# Axes: B rows, T tokens of a row, V vocabulary.

# Losses of every position of a batch, unweighted, given the weights of a model.
LossesOf = Callable[[Any, GrugLmExample], Float[Array, "B T"]]


@dataclass(frozen=True)
class DatasetSums:
    """What one dataset (or several, added) amounts to."""

    loss: float = 0.0
    tokens: float = 0.0
    bits: float = 0.0
    num_bytes: float = 0.0

    def __add__(self, other: "DatasetSums") -> "DatasetSums":
        return DatasetSums(
            self.loss + other.loss,
            self.tokens + other.tokens,
            self.bits + other.bits,
            self.num_bytes + other.num_bytes,
        )


class TaggedEvaluator:
    """Evaluates weights on every dataset; compiled once."""

    def __init__(
        self,
        datasets: Sequence[EvalDataset],
        losses_of: LossesOf,
        *,
        mesh: Mesh,
        batch_size: int,
        max_batches: int | None,
        bytes_per_token: Int[np.ndarray, " V"] | None,
        prefix: str = "eval",
    ) -> None:
        self._datasets = datasets
        self._mesh = mesh
        # Rows are padded anyway, so any size is rounded up to what the mesh can cut.
        self._batch_size = -(-batch_size // batch_shards(mesh)) * batch_shards(mesh)
        self._max_batches = max_batches
        self._bytes_per_token = bytes_per_token
        self._prefix = prefix
        self._sums = jax.jit(
            lambda model, batch, table: _batch_sums(losses_of, model, batch, table)
        )

    def evaluate(self, model: Any) -> dict[str, float]:
        """All metrics of `model`, with the prefix. Deterministic: always the same first rows."""
        start, loading = time.perf_counter(), 0.0
        sums: dict[str, DatasetSums] = {}
        for dataset in self._datasets:
            pending = []
            for index in range(self._num_batches(dataset)):
                begin = time.perf_counter()
                batch = place_batch(
                    dataset.batch(index, self._batch_size), self._mesh, batch_axis=0
                )
                loading += time.perf_counter() - begin
                pending.append(self._sums(model, batch, self._table()))
            # Added in float64 on the host: float32 would drop tokens past 2^24.
            totals = sum((np.asarray(item, np.float64) for item in pending), np.zeros(4))
            sums[dataset.name] = DatasetSums(*totals.tolist())
        tags = {dataset.name: dataset.tags for dataset in self._datasets}
        metrics = tagged_metrics(sums, tags, with_bytes=self._bytes_per_token is not None)
        metrics["loading_time"] = loading
        metrics["total_time"] = time.perf_counter() - start
        return {f"{self._prefix}/{name}": value for name, value in metrics.items()}

    def _num_batches(self, dataset: EvalDataset) -> int:
        whole = -(-dataset.num_rows // self._batch_size)
        return whole if self._max_batches is None else min(whole, self._max_batches)

    def _table(self) -> Int[np.ndarray, " V"]:
        return self._bytes_per_token if self._bytes_per_token is not None else np.zeros(1, np.int32)


def _batch_sums(
    losses_of: LossesOf, model: Any, batch: GrugLmExample, table: Int[Array, " V"]
) -> Float[Array, " 4"]:
    losses, weight = losses_of(model, batch), batch.loss_weight
    next_token = next_tokens(batch.tokens)
    spec = jax.typeof(next_token).sharding.spec
    # An id the table does not know (a vocabulary rounded up) stands for no bytes.
    lookup = table.at[next_token].get(mode="fill", fill_value=0, out_sharding=PartitionSpec(*spec))
    bytes_behind = lookup.astype(jnp.float32)
    bits = jnp.where(bytes_behind > 0, losses / math.log(2), 0.0)
    parts = [losses * weight, weight, bits * weight, bytes_behind * weight]
    return jnp.stack([jnp.sum(part) for part in parts])


def tagged_metrics(
    sums: Mapping[str, DatasetSums], tags: Mapping[str, Iterable[str]], *, with_bytes: bool
) -> dict[str, float]:
    """Metrics without prefix: over everything, per tag, and per parent of tags such as `a/b`.

    A parent counts each dataset once, however many of its tags lie below; its macro averages are
    over those tags. A tag without tokens has no loss and is left out of macro averages; its token
    count says so.
    """
    datasets = _datasets_by_tag(tags)
    by_tag = {tag: _total(sums, names) for tag, names in datasets.items()}
    metrics: dict[str, float] = {}
    _put(metrics, "", sum(sums.values(), DatasetSums()), with_bytes)
    counted = [item for item in by_tag.values() if item.tokens > 0]
    if len(by_tag) > 1:
        _put_macro(metrics, "", counted, with_bytes)
    for tag, item in by_tag.items():
        _put(metrics, f"{tag}/", item, with_bytes)
    for parent in sorted(_parents(by_tag)):
        below = [tag for tag in by_tag if tag.startswith(f"{parent}/")]
        total = _total(sums, [name for tag in below for name in datasets[tag]])
        if parent not in by_tag:
            _put(metrics, f"{parent}/", total, with_bytes)
        if total.tokens > 0:
            metrics[f"{parent}/micro_loss"] = total.loss / total.tokens
            counted = [by_tag[tag] for tag in below if by_tag[tag].tokens > 0]
            _put_macro(metrics, f"{parent}/", counted, with_bytes)
    return metrics


def _datasets_by_tag(tags: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    by_tag: dict[str, list[str]] = {}
    for name, own in tags.items():
        for tag in own:
            by_tag.setdefault(tag, []).append(name)
    return by_tag


def _total(sums: Mapping[str, DatasetSums], names: Iterable[str]) -> DatasetSums:
    """The sums of the named datasets, each counted once."""
    return sum((sums[name] for name in dict.fromkeys(names)), DatasetSums())


def _parents(tags: Iterable[str]) -> set[str]:
    return {
        "/".join(parts[:depth])
        for parts in (tag.split("/") for tag in tags)
        for depth in range(1, len(parts))
    }


def _put(metrics: dict[str, float], prefix: str, item: DatasetSums, with_bytes: bool) -> None:
    metrics[f"{prefix}tokens"] = item.tokens
    if item.tokens > 0:
        metrics[f"{prefix}loss"] = item.loss / item.tokens
    if with_bytes and item.num_bytes > 0:
        metrics[f"{prefix}bpb"] = item.bits / item.num_bytes


def _put_macro(
    metrics: dict[str, float], prefix: str, items: Sequence[DatasetSums], with_bytes: bool
) -> None:
    if items:
        metrics[f"{prefix}macro_loss"] = float(np.mean([i.loss / i.tokens for i in items]))
    in_bytes = [i.bits / i.num_bytes for i in items if i.num_bytes > 0]
    if with_bytes and in_bytes:
        metrics[f"{prefix}macro_bpb"] = float(np.mean(in_bytes))
