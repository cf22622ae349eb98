"""From the metrics a step returns to a row of the record: its speed, and where the time went.

Metrics stay on the device until they are ready or the next step is under way, so that logging
never makes the device wait. Speed is compared with two ceilings, both for the dtype the run
computes in: the device's theoretical peak (`throughput/mfu`), and what a large matrix product
reached on it (`throughput/mfu_of_measured`). Where one is not known, its metrics are absent.
"""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import jax
import numpy as np
import tensorstore as ts

from chomp.checkpoint import SaveReport
from chomp.data import TrainLoader
from chomp.errors import ConfigError, require
from chomp.kernels.precision import Precision
from chomp.mesh import peak_memory_gb
from chomp.tracking import metrics, with_short_keys
from chomp.training.device_flops import measured_flops_per_device, peak_flops
from chomp.training.stopping import NonFiniteGuard
from chomp.training.watch import is_watched, watched_row

# What a step returns beside what is logged: the weight that its loss was divided by.
TRAINED_TOKENS = "trained_tokens"
# What an evaluation's row says of its step, if no other row does.
_STEP_KEYS = (metrics.TRAIN_LOSS, metrics.LEARNING_RATE, metrics.TOKENS_SEEN)
_TENSORSTORE_EVERY = "LEVANTER_LOG_TENSORSTORE_METRICS_EVERY"
# Closing percentiles look back on this many rows: a slow row is no tenth of them, and they still
# show the run as it ended.
_ROLLING_ROWS = 500

Phase = Literal["step", "loading", "hook", "eval", "checkpoint", "compile"]

log = logging.getLogger(__name__)


class LoopClock:
    """Seconds per phase since the last reading; every instant belongs to exactly one phase.

    Everything outside of a named phase is the step: waiting for an asynchronous device counts too.
    """

    def __init__(self) -> None:
        self._phase: Phase = "step"
        self._since = time.perf_counter()
        self._seconds: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Counts the time inside under `name`, and not under an outer phase; traces show it too."""
        outer = self._phase
        with jax.profiler.TraceAnnotation(name):  # costs nothing where no trace is made
            self._switch(name)
            try:
                yield
            finally:
                self._switch(outer)

    def read(self) -> dict[Phase, float]:
        """Seconds of every phase since the last reading; they sum to the time in between."""
        self._switch(self._phase)
        seconds, self._seconds = self._seconds, dict.fromkeys(get_args(Phase), 0.0)
        return seconds

    def _switch(self, name: Phase) -> None:
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = name, now


class StepLog:
    """Takes each step's metrics and logs a row for every `log_every`-th step and the last."""

    def __init__(
        self,
        run: Any,
        *,
        guard: NonFiniteGuard,
        steps: range,
        tokens_seen: int,
        saves: Callable[[], Sequence[SaveReport]] = tuple,
    ) -> None:
        """`run` has config, loader, tracker, clock and state; `steps` are those to be done.

        `saves` returns the reports of checkpoints that were completed since its last call.
        """
        config, loader, tracker = run.config, run.loader, run.tracker
        self.tokens_seen = self._tokens_at_start = self._tokens_at_row = tokens_seen
        self._trainer, self._loader, self._tracker = config.trainer, loader, tracker
        self._clock, self._guard, self._steps, self._saves = run.clock, guard, steps, saves
        self._hyperparameters = config.optimizer.hyperparameters(config.trainer.steps)
        self._started = time.perf_counter()
        self._counters = TensorStoreCounters()
        self._pending: deque[tuple[int, Mapping[str, jax.Array]]] = deque()
        self._completed_at_row = steps.start
        self._unlogged: dict[str, float] = {}
        self._mfu: deque[float] = deque(maxlen=_ROLLING_ROWS)

        # Operations of the run, and what its devices could do: of all of them, in FLOP/s.
        dtype = Precision.parse(config.trainer.precision).compute
        devices = loader.mesh.devices.flatten().tolist()
        kind, peaks = devices[0].device_kind, peak_flops(devices[0].device_kind)
        peak, measured = peaks.get(dtype), measured_flops_per_device(devices, dtype)
        self._peak = peak and peak * len(devices)
        self._measured = measured and measured * len(devices)
        flops_per_token = config.model.flops_per_token(config.trainer.seq_len)
        # The backward pass takes twice the forward pass.
        self._flops_per_example = 3.0 * loader.dataset.seq_len * flops_per_token
        if peak is None:
            only = f", only for {', '.join(sorted(peaks))}" if peaks else ""
            log.info("no throughput/mfu: %r has no known peak for %s%s", kind, dtype, only)
        summary = {
            metrics.FLOPS_PER_TOKEN_ANALYTIC: flops_per_token,
            metrics.FLOPS_PER_EXAMPLE_ANALYTIC: self._flops_per_example,
            metrics.FLOPS_PER_EXAMPLE: self._flops_per_example,
            metrics.DEVICE_KIND: kind,
            metrics.THEORETICAL_FLOPS_PER_DEVICE: peak,
            metrics.THEORETICAL_FLOPS: self._peak,
            metrics.MEASURED_FLOPS_PER_DEVICE: measured,
            metrics.PARAMETER_COUNT: sum(leaf.size for leaf in jax.tree.leaves(run.state.params)),
        }
        tracker.log_summary({key: value for key, value in summary.items() if value is not None})

    def add(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Note the metrics of a step that was just started; log those that are ready."""
        self._pending.append((step, metrics))
        # With several processes, readiness differs, and all must judge a step after the same one.
        is_alone = jax.process_count() == 1
        while self._pending:
            values = self._pending[0][1].values()
            is_ready = is_alone and all(value.is_ready() for value in values)  # type: ignore[attr-defined]
            if not is_ready and len(self._pending) == 1:
                return
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
        examples = self._examples(self._steps.start, self._steps.stop)
        if examples == 0:  # the run was done already
            return
        seconds = time.perf_counter() - self._started
        summary = {
            metrics.RUN_SECONDS: seconds,
            metrics.RUN_TOKENS_PER_SECOND: examples * self._loader.dataset.seq_len / seconds,
            metrics.RUN_TOKENS_PER_SEC: (self.tokens_seen - self._tokens_at_start) / seconds,
        }
        if self._mfu:
            p10, p50, p90 = np.percentile(self._mfu, (10, 50, 90)).tolist()
            summary |= {metrics.P10_MFU: p10, metrics.P50_MFU: p50, metrics.P90_MFU: p90}
            summary[metrics.MEAN_MFU] = float(np.mean(self._mfu))
        self._tracker.log_summary(summary)

    def _take(self, step: int, step_metrics: Mapping[str, jax.Array]) -> None:
        own = {name: value for name, value in step_metrics.items() if not is_watched(name)}
        # In one call: copies of single numbers would wait for each other.
        values = {name: float(value) for name, value in jax.device_get(own).items()}
        trained_tokens = values.pop(TRAINED_TOKENS)  # NaN after a bad step
        update = step - self._guard.skipped_steps  # schedules count updates
        if self._guard.is_good(step, values):
            self.tokens_seen += round(trained_tokens)
        watched = watched_row(self._trainer.watch, step, step_metrics)
        values |= self._hyperparameters(update)
        if (step + 1) % self._trainer.log_every and step + 1 != self._steps.stop:
            row = {**values, metrics.TOKENS_SEEN: self.tokens_seen}
            self._unlogged = {name: row[name] for name in _STEP_KEYS if name in row}
            if watched:
                with self._clock.phase("hook"):
                    self._tracker.log(watched, step=step)
            return
        self._unlogged = {}
        logged = {**values, **watched, **self._throughput(step + 1, self._clock.read())}
        with self._clock.phase("hook"):
            logged[metrics.RUN_PROGRESS] = (step + 1) / self._steps.stop
            logged[metrics.TOKENS_SEEN] = self.tokens_seen
            logged[metrics.SKIPPED_STEPS] = self._guard.skipped_steps
            if (peak := peak_memory_gb()) is not None:
                logged[metrics.PEAK_MEMORY_GB] = peak
            logged |= data_metrics(self._loader, step)
            logged |= self._counters.metrics(step) | _saves_row(self._saves())
            self._tracker.log(with_short_keys(logged), step=step)

    def _throughput(self, completed: int, seconds: Mapping[Phase, float]) -> dict[str, float]:
        """Speed since the last row, which is `seconds` ago."""
        steps = completed - self._completed_at_row
        duration = max(seconds["step"] / steps, 1e-9)
        examples = self._examples(self._completed_at_row, completed)
        examples_per_second = examples / steps / duration
        flops_per_second = examples_per_second * self._flops_per_example
        total, seq_len = self._examples(0, completed), self._loader.dataset.seq_len
        row = {
            metrics.DURATION: duration,
            metrics.EXAMPLES_PER_SECOND: examples_per_second,
            metrics.TOKENS_PER_SECOND: examples_per_second * seq_len,
            # Wall-clock time counts everything, compiling too: what a researcher waits for.
            metrics.TOKENS_PER_SECOND_WALL: examples * seq_len / max(sum(seconds.values()), 1e-9),
            metrics.TOTAL_TOKENS: float(total * seq_len),
            metrics.TOTAL_GFLOPS: total * self._flops_per_example / 1e9,
            metrics.TOKENS_PER_SEC: (self.tokens_seen - self._tokens_at_row) / duration / steps,
            metrics.GFLOPS_PER_SECOND: flops_per_second / 1e9,
            metrics.LOADING_TIME: seconds["loading"],
            metrics.HOOK_TIME: seconds["hook"],
            metrics.CHECKPOINT_TIME: seconds["checkpoint"],
            metrics.COMPILE_TIME: seconds["compile"],
        }
        if self._peak is not None:
            row[metrics.MFU] = 100.0 * flops_per_second / self._peak
            self._mfu.append(row[metrics.MFU])
        if self._measured is not None:
            row[metrics.MFU_OF_MEASURED] = 100.0 * flops_per_second / self._measured
        if self._completed_at_row == self._steps.start:
            row[metrics.FIRST_STEP_COMPILE_TIME_S] = seconds["compile"]
        self._completed_at_row, self._tokens_at_row = completed, self.tokens_seen
        return row

    def _examples(self, start: int, stop: int) -> int:
        examples_before = self._loader.batches.examples_before
        return examples_before(stop) - examples_before(start)


def require_metrics(step_metrics: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless a train step's metrics can be logged: arrays or their shapes."""
    missing = [key for key in (metrics.TRAIN_LOSS, TRAINED_TOKENS) if key not in step_metrics]
    if missing:
        raise ConfigError(
            f"a train step that returns the metrics {sorted(step_metrics)}",
            allowed=f"any metrics, {' and '.join(missing)} among them",
            fix=f"add {missing[0]!r} to the metrics that train_step returns",
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
        self._every, self._periods = int(text), 0

    def metrics(self, step: int) -> dict[str, float]:
        """The counters, if a period has ended since the last row that carried them."""
        if not self._every or (step + 1) // self._every == self._periods:
            return {}
        self._periods = (step + 1) // self._every
        row: dict[str, float] = {}
        for metric in ts.experimental_collect_matching_metrics("/tensorstore/"):
            key = metrics.name_from(
                metrics.TENSORSTORE, metric["name"].removeprefix("/tensorstore/")
            )
            for value in metric["values"]:
                if isinstance(number := value.get("value", value.get("count")), int | float):
                    row[key] = row.get(key, 0.0) + number
        return row


def _saves_row(reports: Sequence[SaveReport]) -> dict[str, float | int]:
    """What the last of these saves cost."""
    if not reports:
        return {}
    last = reports[-1]
    return {
        metrics.CHECKPOINT_STEP: last.step,
        metrics.CHECKPOINT_BLOCKED_SECONDS: last.blocked_seconds,
        metrics.CHECKPOINT_SECONDS: last.seconds,
        metrics.CHECKPOINT_BYTES: last.num_bytes,
    }
