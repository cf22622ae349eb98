"""Batches on the mesh: batch n of the run, read and placed ahead of the step that needs it."""

import logging
import time
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Int

from chomp.data.dataset import TrainDataset
from chomp.data.examples import GrugLmExample, RowLimits
from chomp.data.mixture import BatchSchedule
from chomp.errors import DataError, divisors, require
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.mesh import batch_shards, local_rows, place_rows

# Axes: A micro-batches, B rows of a micro-batch, T tokens of a row.

# Batches made ahead at most. It takes a few to hide a slow read; more only cost memory.
_MAX_AHEAD = 8
# Threads that make them where reading waits for a network. Local reads do not wait, and several
# threads then only take the interpreter's lock from each other: 18 M tokens/s with four against 43
# with one, on two free cores (benchmarks/data, November 2026).
_CLOUD_THREADS = 4
# A step that waits longer than this for its batch is worth a word.
_LONG_WAIT_S = 1.0

log = logging.getLogger(__name__)


def require_even_batches(batches: BatchSchedule, mesh: Mesh | AbstractMesh) -> None:
    """Raise `ConfigError` unless the mesh can cut the rows of every batch evenly."""
    shards = batch_shards(mesh)
    for size in batches.distinct_sizes:
        require(
            size % shards == 0,
            f"train.batch_size={size} on a mesh that cuts the batch into {shards}",
            allowed=f"multiples of {shards}",
            fix=f"set train.batch_size to {max(round(size / shards), 1) * shards}, or a mesh "
            f"whose replica x data x expert is one of {divisors(size)}",
        )


class TrainLoader:
    """Batch n as `[A, B, T]` arrays; a pure function of n, unless a component is a stream."""

    def __init__(self, dataset: TrainDataset, mesh: Mesh, limits: RowLimits | None = None) -> None:
        require_even_batches(dataset.batches, mesh)
        self.dataset = dataset
        self.batches = dataset.batches
        self.mesh = mesh
        self._limits = limits or RowLimits()
        # Batches that were looked at before their step.
        self._kept: dict[int, GrugLmExample] = {}
        # States of streams after each of the last few steps that were made, and where they began.
        self._states: dict[int, dict[str, Any]] = {}
        self._first_states = dataset.stream_states()
        # Of the last few batches that were made.
        self._utilization: dict[int, float] = {}

    def host_batch(self, step: int, rows: Int[np.ndarray, " K"] | None = None) -> GrugLmExample:
        """The batch of a step as numpy arrays `[A, B, T]`, or only some rows of each B.

        Raises `DataError` for an id that the loader's limits do not allow.
        """
        accum, size = self.batches.grad_accum, self.batches.batch_size(step)
        start = self.batches.examples_before(step)
        rows = np.arange(size) if rows is None else rows
        # Those rows of every micro-batch in turn, as examples counted from the step's first.
        keep = (np.arange(accum)[:, None] * size + rows).reshape(-1)
        read = self.dataset.rows(start, start + accum * size, keep)
        filled = np.count_nonzero(read.segment_ids != PAD_SEGMENT)  # 7 us for 32 rows of 1024
        self._utilization[step] = filled / read.segment_ids.size
        self._utilization.pop(step - 4 * _MAX_AHEAD, None)
        found = self.dataset.examples_of(read)
        self._limits.require_tokens(found.tokens, partial(self._row_name, step, rows))
        shape = (accum, len(rows), self.dataset.seq_len)
        folded: GrugLmExample = jax.tree.map(lambda leaf: leaf.reshape(shape), found)
        return folded

    def batch(self, step: int) -> GrugLmExample:
        """The batch of a step on the mesh; this host reads the rows of its own devices only."""
        size = self.batches.batch_size(step)
        held = self._kept.pop(step) if step in self._kept else self._read(step)
        rows = local_rows(self.mesh, size)
        return place_rows(held, self.mesh, rows=rows, batch_size=size, batch_axis=1)

    def first_look(self, step: int) -> GrugLmExample:
        """This host's rows of the batch of the next step, as numpy arrays `[A, B, T]`.

        `batch` then gives these and does not read again: the rows of a stream come once.
        """
        if step not in self._kept:
            if (states := self.stream_states(step)) is not None:
                self._states[step] = states  # for a checkpoint before the step itself
            self._kept[step] = self._read(step)
        return self._kept[step]

    def utilization(self, step: int) -> float | None:
        """The part of a batch's positions that holds a token; None: it was not made here lately.

        Of several processes, each knows its own rows.
        """
        return self._utilization.get(step)

    def stream_states(self, completed_steps: int) -> dict[str, Any] | None:
        """What a checkpoint after that many steps has to hold of the data: None without streams.

        Raises `DataError` for a step whose states are gone, or not made yet.
        """
        if self._first_states is None:
            return None
        if completed_steps in self._states:
            return self._states[completed_steps]
        mixture, batches = self.dataset.mixture, self.batches
        counts = mixture.counts_before(batches.examples_before(completed_steps))
        rows = dict(zip(mixture.names, counts, strict=True))
        first = {name: state["rows_served"] for name, state in self._first_states.items()}
        if all(rows[name] == served for name, served in first.items()):
            return self._first_states
        kept = f"steps {min(self._states)} to {max(self._states)}, and " if self._states else ""
        raise DataError(
            f"the state of the streams {sorted(first)} after step {completed_steps} is not kept",
            allowed=f"{kept}the state that was restored, after the rows {first}",
            fix="save the checkpoint as soon as its step is done; to go back, restore one",
        )

    def restore_streams(self, states: Mapping[str, Any] | None) -> None:
        """Put the streams where a checkpoint says they stood."""
        self._kept.clear()
        self._states.clear()
        self.dataset.restore_streams(states)
        self._first_states = self.dataset.stream_states()

    def close(self) -> None:
        """End the threads of streams."""
        self.dataset.close()

    def _read(self, step: int) -> GrugLmExample:
        """The rows of this host's devices, with the room that their documents need."""
        size = self.batches.batch_size(step)
        rows = local_rows(self.mesh, size)
        found = self.host_batch(step, rows)
        if (ids := found.attn_mask.segment_ids) is not None:
            room = self._limits.max_segments(
                ids.reshape(-1, self.dataset.seq_len),
                partial(self._row_name, step, rows),
                batch_size=size,
                is_whole_batch=len(rows) == size,
            )
            found = found.with_max_segments(room)
        if (states := self.dataset.stream_states()) is not None:
            self._states[step + 1] = states
            # Batches are made ahead by a few steps; older states can no longer be asked for.
            self._states.pop(step + 1 - 2 * _MAX_AHEAD, None)
        return found

    def _row_name(self, step: int, rows: Int[np.ndarray, " K"], number: int) -> str:
        """Where in the run a row is that `host_batch` has of these rows."""
        micro, place = divmod(number, len(rows))
        row, size = int(rows[place]), self.batches.batch_size(step)
        example = self.batches.examples_before(step) + micro * size + row
        (component,), _ = self.dataset.mixture.assign(example, example + 1)
        name = self.dataset.mixture.names[component]
        part = f" of micro-batch {micro}" if self.batches.grad_accum > 1 else ""
        return f"step {step}, row {row}{part}, from component {name!r}"


def build_train_loader(
    dataset: TrainDataset, mesh: Mesh, limits: RowLimits | None = None
) -> TrainLoader:
    """The loader of a run; refuses a batch size that the mesh cannot cut, and rows over limits."""
    return TrainLoader(dataset, mesh, limits)


def iter_from_step(
    loader: TrainLoader, start_step: int, stop_step: int
) -> Generator[GrugLmExample, None, None]:
    """Batches start..stop-1, made by threads ahead of their use. Close it to end the threads.

    One batch is made at first, so that the first step need not wait for more; then twice as many
    ahead with each that is taken, up to 8. Streams are read by one thread, in order.
    """
    dataset = loader.dataset
    ahead, threads = 1, 1 if dataset.streams or dataset.is_local else _CLOUD_THREADS
    waiting: deque[Future[GrugLmExample]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="chomp-loader") as pool:
        try:
            asked = start_step
            for step in range(start_step, stop_step):
                while asked < min(step + ahead, stop_step):
                    waiting.append(pool.submit(loader.batch, asked))
                    asked += 1
                started = time.perf_counter()
                batch = waiting.popleft().result()
                waited_s = time.perf_counter() - started
                if waited_s > _LONG_WAIT_S and step > start_step:
                    log.warning("step %d waited %.1f s for its batch", step, waited_s)
                ahead = min(2 * ahead, _MAX_AHEAD)
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
