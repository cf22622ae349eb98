"""From the metrics a step returns to a row of the record.

Metrics stay on the device until they are ready or the next step is under way, so that logging
never makes the device wait. A loss or gradient that is not finite ends the run here.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax

from chomp.data import TrainLoader
from chomp.errors import NonFiniteError, message
from chomp.hooks.clock import LoopClock
from chomp.hooks.data_metrics import TensorStoreCounters, data_metrics
from chomp.hooks.throughput import Throughput
from chomp.tracking import Tracker, names, with_short_keys

# What a train step returns besides what is logged as it is: the weight its loss was divided by.
TRAINED_TOKENS = "trained_tokens"


class StepLog:
    """Takes each step's metrics, and logs a row for every `log_every`-th step and the last."""

    def __init__(
        self,
        tracker: Tracker,
        clock: LoopClock,
        loader: TrainLoader,
        *,
        start_step: int,
        total_steps: int,
        log_every: int,
        flops_per_token: float,
        schedule: Callable[[int], Any],
        tokens_seen: int,
    ) -> None:
        self.tokens_seen = tokens_seen
        self._tracker = tracker
        self._clock = clock
        self._throughput = Throughput(
            clock, loader, start_step=start_step, flops_per_token=flops_per_token
        )
        self._started = time.perf_counter()
        self._start_step = start_step
        self._total_steps = total_steps
        self._log_every = log_every
        self._schedule = schedule
        self._loader = loader
        self._counters = TensorStoreCounters()
        self._pending: deque[tuple[int, Mapping[str, jax.Array]]] = deque()
        self._window_tokens = 0
        tracker.log_summary(self._throughput.summary())

    def add(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Note the metrics of a step that was just started; log those that are ready."""
        self._pending.append((step, metrics))
        while len(self._pending) > 1 or (self._pending and _is_ready(self._pending[0][1])):
            self._log(*self._pending.popleft())

    def flush(self) -> None:
        """Wait for every step so far and log it; before anything that reads the state."""
        while self._pending:
            self._log(*self._pending.popleft())

    def log_run_speed(self) -> None:
        """How long the run took from its start to now, with all that is not a step."""
        count = self._loader.batches.examples_before
        examples = count(self._total_steps) - count(self._start_step)
        if examples == 0:  # the run was done, and only its end was repeated
            return
        seconds = time.perf_counter() - self._started
        tokens = examples * self._loader.dataset.seq_len
        self._tracker.log_summary(
            {"run/seconds": seconds, "run/tokens_per_second": tokens / seconds}
        )

    def _log(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        values = {name: float(value) for name, value in metrics.items()}
        _require_finite(step, values)
        trained = round(values.pop(TRAINED_TOKENS))
        self.tokens_seen += trained
        self._window_tokens += trained
        if (step + 1) % self._log_every and step + 1 < self._total_steps:
            return
        row: dict[str, Any] = {**values, **self._throughput.metrics(step, self._window_tokens)}
        self._window_tokens = 0
        with self._clock.phase("hook"):
            row[names.RUN_PROGRESS] = (step + 1) / self._total_steps
            row[names.LEARNING_RATE] = float(self._schedule(step))
            row[names.TOKENS_SEEN] = self.tokens_seen
            row |= data_metrics(self._loader, step) | self._counters.metrics(step)
            self._tracker.log(with_short_keys(row), step=step)


def _is_ready(metrics: Mapping[str, jax.Array]) -> bool:
    return all(value.is_ready() for value in metrics.values())  # type: ignore[attr-defined]


def _require_finite(step: int, values: Mapping[str, float]) -> None:
    if not all(math.isfinite(value) for value in values.values()):
        told = ", ".join(f"{name}={value}" for name, value in values.items())
        raise NonFiniteError(
            message(
                given=f"step {step} gave {told}",
                allowed="a finite loss and gradient",
                fix="lower optim.lr or raise optim.warmup_steps; the last checkpoint is intact",
            )
        )
