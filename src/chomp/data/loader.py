"""Batches on the mesh: batch n of the run, read and placed ahead of the step that needs it."""

import queue
import threading
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from chomp.data.dataset import TrainDataset
from chomp.data.examples import GrugLmExample
from chomp.errors import divisors, require
from chomp.mesh import batch_shards, place_batch

# Axes: A micro-batches, B rows of a micro-batch, T tokens of a row.

# Batches made ahead. Two hide a read; more only cost memory.
_AHEAD = 2


class TrainLoader:
    """Batch n as `[A, B, T]` arrays; a pure function of n."""

    def __init__(
        self, dataset: TrainDataset, mesh: Mesh, *, batch_size: int, grad_accum: int = 1
    ) -> None:
        shards = batch_shards(mesh)
        require(
            batch_size > 0 and batch_size % shards == 0,
            given=f"train.batch_size={batch_size} on a mesh that cuts the batch into {shards}",
            allowed=f"multiples of {shards}",
            fix=f"set train.batch_size to {max(round(batch_size / shards), 1) * shards}, or a mesh "
            f"whose replica x data x expert is one of {divisors(max(batch_size, 1))}",
        )
        require(
            grad_accum > 0,
            given=f"train.grad_accum={grad_accum}",
            allowed="1 or more micro-batches a step",
            fix="set train.grad_accum=1 for no accumulation",
        )
        self.dataset = dataset
        self.mesh = mesh
        self.batch_size = batch_size
        self.grad_accum = grad_accum

    @property
    def examples_per_step(self) -> int:
        """Rows that one optimizer step consumes."""
        return self.batch_size * self.grad_accum

    def host_batch(self, step: int) -> GrugLmExample:
        """The batch of a step as numpy arrays `[A, B, T]`."""
        start = step * self.examples_per_step
        rows = self.dataset.examples(start, start + self.examples_per_step)
        shape = (self.grad_accum, self.batch_size, self.dataset.seq_len)
        folded: GrugLmExample = jax.tree.map(lambda leaf: leaf.reshape(shape), rows)
        return folded

    def batch(self, step: int) -> GrugLmExample:
        """The batch of a step on the mesh."""
        return place_batch(self.host_batch(step), self.mesh, batch_axis=1)


def build_train_loader(
    dataset: TrainDataset, mesh: Mesh, *, batch_size: int, grad_accum: int = 1
) -> TrainLoader:
    """The loader of a run; refuses a batch size that the mesh cannot cut."""
    return TrainLoader(dataset, mesh, batch_size=batch_size, grad_accum=grad_accum)


def iter_from_step(loader: TrainLoader, start_step: int, stop_step: int) -> Iterator[GrugLmExample]:
    """Batches start..stop-1, made by a thread ahead of their use. Close it to stop the thread."""
    ready: queue.Queue[GrugLmExample | BaseException] = queue.Queue(maxsize=_AHEAD)
    closed = threading.Event()

    def make() -> None:
        try:
            for step in range(start_step, stop_step):
                _put(ready, loader.batch(step), closed)
                if closed.is_set():
                    return
        except BaseException as error:  # handed to the loop, which raises it
            _put(ready, error, closed)

    thread = threading.Thread(target=make, name="chomp-loader", daemon=True)
    thread.start()
    try:
        for _ in range(start_step, stop_step):
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        thread.join()


def _put(
    ready: "queue.Queue[GrugLmExample | BaseException]",
    item: "GrugLmExample | BaseException",
    closed: threading.Event,
) -> None:
    while not closed.is_set():
        try:
            ready.put(item, timeout=0.1)
            return
        except queue.Full:
            continue
