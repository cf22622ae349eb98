"""From the metrics a step returns to a row of the record.

Metrics stay on the device until they are ready or the next step is under way, so that logging
never makes the device wait.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from chomp.checkpoint import SaveReport
from chomp.data import TrainLoader
from chomp.mesh.device_memory import peak_memory_gb
from chomp.tracking import Tracker, with_short_keys
from chomp.tracking.metrics import (
    CHECKPOINT_BLOCKED_SECONDS,
    CHECKPOINT_BYTES,
    CHECKPOINT_SECONDS,
    CHECKPOINT_STEP,
    LEARNING_RATE,
    PEAK_MEMORY_GB,
    RUN_PROGRESS,
    RUN_SECONDS,
    RUN_TOKENS_PER_SEC,
    RUN_TOKENS_PER_SECOND,
    SKIPPED_STEPS,
    TOKENS_SEEN,
    TRAIN_LOSS,
)
from chomp.training.clock import LoopClock
from chomp.training.data_metrics import TensorStoreCounters, data_metrics
from chomp.training.matmul_ceiling import measured_flops_per_device
from chomp.training.nonfinite import NonFiniteGuard
from chomp.training.throughput import Throughput
from chomp.training.watch import WatchConfig, is_watched, watched_row

# What a train step returns besides what is logged as it is: the weight its loss was divided by.
TRAINED_TOKENS = "trained_tokens"
# What is told of every step that is evaluated.
_OF_A_STEP = (TRAIN_LOSS, LEARNING_RATE, TOKENS_SEEN)


@runtime_checkable
class LogSettings(Protocol):
    """The part of a template's trainer config that says what is logged, and when."""

    @property
    def log_every(self) -> int:
        """Steps from row to row."""
        ...

    @property
    def watch(self) -> WatchConfig | None:
        """What is watched; None: nothing."""
        ...


class StepLog:
    """Takes each step's metrics, and logs a row for every `log_every`-th step and the last."""

    def __init__(
        self,
        tracker: Tracker,
        clock: LoopClock,
        loader: TrainLoader,
        guard: NonFiniteGuard,
        *,
        steps: range,
        settings: LogSettings,
        flops_per_token: float,
        hyperparameters: Callable[[int], Mapping[str, float]],
        params: Any,
        compute_dtype: str,
        tokens_seen: int,
        saves: Callable[[], Iterable[SaveReport]] = tuple,
    ) -> None:
        """`steps` are those to be done; `hyperparameters` gives the optimizer's own for a step.

        `saves` gives the reports of checkpoints that came to be on disk since it was last called.
        """
        self.tokens_seen = tokens_seen
        self._tracker, self._clock, self._loader, self._guard = tracker, clock, loader, guard
        self._steps, self._settings, self._hyperparameters = steps, settings, hyperparameters
        self._saves = saves
        devices = loader.mesh.devices.flatten().tolist()
        self._throughput = Throughput(
            clock,
            loader,
            start_step=steps.start,
            flops_per_token=flops_per_token,
            compute_dtype=compute_dtype,
            measured_flops_per_device=measured_flops_per_device(devices, compute_dtype),
            parameter_count=sum(leaf.size for leaf in jax.tree.leaves(params)),
        )
        self._started = time.perf_counter()
        self._counters = TensorStoreCounters()
        self._pending: deque[tuple[int, Mapping[str, jax.Array]]] = deque()
        self._window_tokens = 0
        self._tokens_before = tokens_seen
        self._unlogged: dict[str, float] = {}
        tracker.log_summary(self._throughput.summary())

    def add(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Note the metrics of a step that was just started; log those that are ready."""
        self._pending.append((step, metrics))
        # Of several processes each would be ready at another time, and what the guard says of a
        # step has to be known to all of them after the same one.
        is_alone = jax.process_count() == 1
        while len(self._pending) > 1 or (
            is_alone and self._pending and _is_ready(self._pending[0][1])
        ):
            self._log(*self._pending.popleft())

    def flush(self) -> None:
        """Wait for every step so far and log it; before anything that reads the state."""
        while self._pending:
            self._log(*self._pending.popleft())

    def unlogged(self) -> Mapping[str, float]:
        """Loss, learning rate and tokens so far of the newest step, if it has no row with them.

        For the row of an evaluation, which may come after a step that is not a logged one.
        """
        return self._unlogged

    def close(self) -> None:
        """Log what is known at the end of a run: its speed with all that is not a step, and what
        the last checkpoint cost, which was on disk after the last row.
        """
        if row := _saves_row(self._saves()):
            self._tracker.log(row, step=self._steps.stop - 1)
        count = self._loader.batches.examples_before
        examples = count(self._steps.stop) - count(self._steps.start)
        if examples == 0:  # the run was done, and only its end was repeated
            return
        seconds = time.perf_counter() - self._started
        tokens = examples * self._loader.dataset.seq_len
        speed = {
            RUN_SECONDS: seconds,
            RUN_TOKENS_PER_SECOND: tokens / seconds,
            RUN_TOKENS_PER_SEC: (self.tokens_seen - self._tokens_before) / seconds,
        }
        self._tracker.log_summary(speed | self._throughput.closing_summary())

    def _log(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        own = {name: value for name, value in metrics.items() if not is_watched(name)}
        # At once: the copies of single numbers would wait for each other.
        fetched = jax.device_get(own)
        values = {name: float(fetched[name]) for name in own}
        trained = values.pop(TRAINED_TOKENS)
        # Schedules count updates, and a step that is left out is none.
        update = step - self._guard.skipped_steps
        if self._guard.is_good(step, values):
            self.tokens_seen += round(trained)
            self._window_tokens += round(trained)
        watched = watched_row(self._settings.watch, step, metrics)
        hyperparameters = self._hyperparameters(update)
        if (step + 1) % self._settings.log_every == 0 or step + 1 == self._steps.stop:
            self._unlogged = {}
            self._log_row(step, values, {**watched, **hyperparameters})
            return
        row = {**values, **hyperparameters, TOKENS_SEEN: self.tokens_seen}
        self._unlogged = {name: row[name] for name in _OF_A_STEP if name in row}
        if watched:  # has a period of its own
            with self._clock.phase("hook"):
                self._tracker.log(watched, step=step)

    def _log_row(
        self, step: int, values: Mapping[str, float], more: Mapping[str, float | str]
    ) -> None:
        row: dict[str, Any] = {**values, **self._throughput.metrics(step, self._window_tokens)}
        self._window_tokens = 0
        with self._clock.phase("hook"):
            row |= more
            row[RUN_PROGRESS] = (step + 1) / self._steps.stop
            row[TOKENS_SEEN] = self.tokens_seen
            row[SKIPPED_STEPS] = self._guard.skipped_steps
            if (peak := peak_memory_gb()) is not None:
                row[PEAK_MEMORY_GB] = peak
            row |= data_metrics(self._loader, step) | self._counters.metrics(step)
            row |= _saves_row(self._saves())
            self._tracker.log(with_short_keys(row), step=step)


def _saves_row(reports: Iterable[SaveReport]) -> dict[str, float | int]:
    """What saves cost, the last of them where several ended since the row before."""
    row: dict[str, float | int] = {}
    for report in reports:
        row = {
            CHECKPOINT_STEP: report.step,
            CHECKPOINT_BLOCKED_SECONDS: report.blocked_seconds,
            CHECKPOINT_SECONDS: report.seconds,
            CHECKPOINT_BYTES: report.num_bytes,
        }
    return row


def _is_ready(metrics: Mapping[str, jax.Array]) -> bool:
    return all(value.is_ready() for value in metrics.values())  # type: ignore[attr-defined]
