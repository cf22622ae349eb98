"""From the metrics a step returns to a row of the record, and where the wall-clock time went.

Metrics stay on the device until they are ready or the next step is under way, so that logging
never makes the device wait.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import jax
import tensorstore as ts

from chomp.checkpoint import SaveReport
from chomp.data import TrainLoader
from chomp.errors import ConfigError, require
from chomp.kernels.precision import Precision
from chomp.mesh import peak_memory_gb
from chomp.tracking import Tracker, metrics, with_short_keys
from chomp.training.device_flops import measured_flops_per_device
from chomp.training.nonfinite import NonFiniteGuard
from chomp.training.throughput import Throughput
from chomp.training.watch import is_watched, watched_row

# What a step returns beside what is logged: the weight that its loss was divided by.
TRAINED_TOKENS = "trained_tokens"
# What an evaluation's row says of its step, if no other row does.
_STEP_KEYS = (metrics.TRAIN_LOSS, metrics.LEARNING_RATE, metrics.TOKENS_SEEN)
_TENSORSTORE_EVERY = "LEVANTER_LOG_TENSORSTORE_METRICS_EVERY"

Phase = Literal["step", "loading", "hook", "eval", "checkpoint", "compile"]


class LoopClock:
    """Seconds per phase since the last reading; every instant belongs to exactly one phase.

    Everything outside of a named phase is the step: waiting for an asynchronous device counts too.
    """

    def __init__(self) -> None:
        self._phase: Phase = "step"
        self._since = time.perf_counter()
        self._seconds = _zero_seconds()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Counts the time inside under `name`, and not under an outer phase."""
        outer = self._phase
        self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def read(self) -> dict[Phase, float]:
        """Seconds of every phase since the last reading; they sum to the time in between."""
        self._switch(self._phase)
        seconds, self._seconds = self._seconds, _zero_seconds()
        return seconds

    def _switch(self, name: Phase) -> None:
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = name, now


def _zero_seconds() -> dict[Phase, float]:
    return dict.fromkeys(get_args(Phase), 0.0)


class StepLog:
    """Takes each step's metrics and logs a row for every `log_every`-th step and the last."""

    def __init__(
        self,
        config: Any,
        loader: TrainLoader,
        tracker: Tracker,
        *,
        clock: LoopClock,
        guard: NonFiniteGuard,
        steps: range,
        parameter_count: int,
        tokens_seen: int,
        saves: Callable[[], Iterable[SaveReport]] = tuple,
    ) -> None:
        """`config` is a template's run config and `steps` are those to be done.

        `saves` returns the reports of checkpoints that were completed since its last call.
        """
        self.tokens_seen = tokens_seen
        self._trainer, self._loader, self._tracker = config.trainer, loader, tracker
        self._clock, self._guard, self._steps, self._saves = clock, guard, steps, saves
        self._hyperparameters = config.optimizer.hyperparameters(config.trainer.steps)
        dtype = Precision.parse(config.trainer.precision).compute
        devices = loader.mesh.devices.flatten().tolist()
        self._throughput = Throughput(
            loader,
            start_step=steps.start,
            flops_per_token=config.model.flops_per_token(config.trainer.seq_len),
            compute_dtype=dtype,
            measured_flops_per_device=measured_flops_per_device(devices, dtype),
            parameter_count=parameter_count,
        )
        self._started = time.perf_counter()
        self._counters = TensorStoreCounters()
        self._pending: deque[tuple[int, Mapping[str, jax.Array]]] = deque()
        self._tokens_since_row = 0
        self._tokens_at_start = tokens_seen
        self._unlogged: dict[str, float] = {}
        tracker.log_summary(self._throughput.summary())

    def add(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Note the metrics of a step that was just started; log those that are ready."""
        self._pending.append((step, metrics))
        # With several processes, readiness differs, and all must judge a step after the same one.
        is_alone = jax.process_count() == 1
        while len(self._pending) > 1 or (
            is_alone and self._pending and _is_ready(self._pending[0][1])
        ):
            self._take(*self._pending.popleft())

    def flush(self) -> None:
        """Wait for every step so far and log it. Call it before anything reads the state."""
        while self._pending:
            self._take(*self._pending.popleft())

    def unlogged(self) -> Mapping[str, float]:
        """Loss, learning rate and tokens of the newest step, if no row has them.

        For the row of an evaluation, which may come after a step that is not a logged one.
        """
        return self._unlogged

    def close(self) -> None:
        """Log the speed of the whole run, and what the last checkpoint cost."""
        if row := _saves_row(self._saves()):
            self._tracker.log(row, step=self._steps.stop - 1)
        examples_before = self._loader.batches.examples_before
        examples = examples_before(self._steps.stop) - examples_before(self._steps.start)
        if examples == 0:  # the run was done already
            return
        seconds = time.perf_counter() - self._started
        tokens = examples * self._loader.dataset.seq_len
        speed = {
            metrics.RUN_SECONDS: seconds,
            metrics.RUN_TOKENS_PER_SECOND: tokens / seconds,
            metrics.RUN_TOKENS_PER_SEC: (self.tokens_seen - self._tokens_at_start) / seconds,
        }
        self._tracker.log_summary({**speed, **self._throughput.closing_summary()})

    def _take(self, step: int, step_metrics: Mapping[str, jax.Array]) -> None:
        own = {name: value for name, value in step_metrics.items() if not is_watched(name)}
        # In one call: copies of single numbers would wait for each other.
        values = {name: float(value) for name, value in jax.device_get(own).items()}
        trained_tokens = values.pop(TRAINED_TOKENS)  # NaN after a bad step
        update = step - self._guard.skipped_steps  # schedules count updates
        if self._guard.is_good(step, values):
            self.tokens_seen += round(trained_tokens)
            self._tokens_since_row += round(trained_tokens)
        watched = watched_row(self._trainer.watch, step, step_metrics)
        values |= self._hyperparameters(update)
        if (step + 1) % self._trainer.log_every == 0 or step + 1 == self._steps.stop:
            self._unlogged = {}
            self._log_row(step, {**values, **watched})
            return
        row = {**values, metrics.TOKENS_SEEN: self.tokens_seen}
        self._unlogged = {name: row[name] for name in _STEP_KEYS if name in row}
        if watched:
            with self._clock.phase("hook"):
                self._tracker.log(watched, step=step)

    def _log_row(self, step: int, values: Mapping[str, float | str]) -> None:
        row: dict[str, Any] = {
            **values,
            **self._throughput.metrics(step, self._tokens_since_row, self._clock.read()),
        }
        self._tokens_since_row = 0
        with self._clock.phase("hook"):
            row[metrics.RUN_PROGRESS] = (step + 1) / self._steps.stop
            row[metrics.TOKENS_SEEN] = self.tokens_seen
            row[metrics.SKIPPED_STEPS] = self._guard.skipped_steps
            if (peak := peak_memory_gb()) is not None:
                row[metrics.PEAK_MEMORY_GB] = peak
            row |= data_metrics(self._loader, step) | self._counters.metrics(step)
            row |= _saves_row(self._saves())
            self._tracker.log(with_short_keys(row), step=step)


def require_metrics(step_metrics: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless a train step's metrics can be logged: arrays or their shapes."""
    missing = [key for key in (metrics.TRAIN_LOSS, TRAINED_TOKENS) if key not in step_metrics]
    require(
        not missing,
        f"a train step that returns the metrics {sorted(step_metrics)}",
        allowed=f"any metrics, {' and '.join(missing)} among them",
        fix=f"add {missing[0] if missing else ''!r} to the metrics that train_step returns",
    )
    for name, value in step_metrics.items():
        if not is_watched(name) and math.prod(value.shape) != 1:
            raise ConfigError(
                f"a train step whose metric {name!r} has shape {tuple(value.shape)}",
                allowed="scalars: one number for each metric and step",
                fix=f"reduce it in train_step, e.g. jnp.mean({name.rpartition('/')[2]})",
            )


def data_metrics(loader: TrainLoader, step: int) -> dict[str, Any]:
    """Stage, weights, counts and epochs of the mixture once a step (0-based) is completed."""
    dataset, last_example = loader.dataset, loader.batches.examples_before(step + 1) - 1
    mixture = dataset.mixture
    row: dict[str, Any] = {
        metrics.MIXTURE_STAGE: mixture.stage_at(last_example),
        metrics.PACKING_MODE: dataset.config.packing_mode,
    }
    if (utilization := loader.utilization(step)) is not None:
        row[metrics.PACKING_UTILIZATION] = utilization
    for name, weight in mixture.weights_at(last_example).items():
        row[metrics.name_from(metrics.MIXTURE_WEIGHT, name)] = weight
    counts = mixture.counts_before(last_example + 1)
    for name, count in zip(mixture.names, counts, strict=True):
        row[metrics.name_from(metrics.MIXTURE_EXAMPLES, name)] = count
        row[metrics.name_from(metrics.MIXTURE_TOKENS, name)] = count * dataset.seq_len
    for name, epochs in dataset.epochs(last_example + 1).items():
        row[metrics.name_from(metrics.MIXTURE_EPOCH, name)] = epochs
    return row


class TensorStoreCounters:
    """TensorStore's own counters, every n steps, if an environment variable asks for them.

    Chunks that were checked before are read past TensorStore and do not count.
    """

    def __init__(self) -> None:
        text = os.environ.get(_TENSORSTORE_EVERY) or "0"
        require(
            text.isdecimal(),
            f"{_TENSORSTORE_EVERY}={text}",
            allowed="a number of steps, or nothing",
            fix=f"set {_TENSORSTORE_EVERY}=100, or unset it",
        )
        self._every = int(text)
        self._periods = 0

    def metrics(self, step: int) -> dict[str, float]:
        """The counters, if a period has ended since the last row that carried them."""
        if not self._every or (step + 1) // self._every == self._periods:
            return {}
        self._periods = (step + 1) // self._every
        row: dict[str, float] = {}
        for metric in ts.experimental_collect_matching_metrics("/tensorstore/"):
            name = metric["name"].removeprefix("/tensorstore/")
            for value in metric["values"]:
                if isinstance(number := value.get("value", value.get("count")), int | float):
                    key = metrics.name_from(metrics.TENSORSTORE, name)
                    row[key] = row.get(key, 0.0) + number
        return row


def _saves_row(reports: Iterable[SaveReport]) -> dict[str, float | int]:
    """What the last of these saves cost."""
    row: dict[str, float | int] = {}
    for report in reports:
        row = {
            metrics.CHECKPOINT_STEP: report.step,
            metrics.CHECKPOINT_BLOCKED_SECONDS: report.blocked_seconds,
            metrics.CHECKPOINT_SECONDS: report.seconds,
            metrics.CHECKPOINT_BYTES: report.num_bytes,
        }
    return row


def _is_ready(step_metrics: Mapping[str, jax.Array]) -> bool:
    return all(value.is_ready() for value in step_metrics.values())  # type: ignore[attr-defined]
