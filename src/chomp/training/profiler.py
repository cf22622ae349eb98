"""A trace of a few steps, for TensorBoard's profiler or ui.perfetto.dev, in the run's folder.

A step stands in the trace as "train" with its number, and inside it the phases of the loop's clock
under their own names. With the profiler off, nothing here runs in a step.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import jax

from chomp.config import Config, setting
from chomp.errors import require
from chomp.storage import is_local, join, make_folder
from chomp.tracking.run_files import PROFILER
from chomp.training.step_log import LoopClock, Phase

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProfilerConfig(Config):
    """Which steps are traced. The first few are left out: they compile and fill caches."""

    enabled: bool = False
    start_step: int = setting(default=5, ge=0, lt=2**31)  # 0-based
    num_steps: int = setting(default=25, ge=1, lt=2**31)

    def window(self, start_step: int, total_steps: int) -> range:
        """The steps that are traced in a run from `start_step` to `total_steps`; may be empty."""
        if not self.enabled:
            return range(0)
        first = max(self.start_step, start_step)
        return range(first, max(first, min(self.start_step + self.num_steps, total_steps)))


def profiler_folder(output_path: str, *, run_id: str, log_dir: str | None = None) -> str:
    """Where a run's traces go: its own folder, or `<log_dir>/<run_id>/profiler`. Must be local."""
    folder = join(output_path, PROFILER) if log_dir is None else join(log_dir, run_id, PROFILER)
    require(
        is_local(folder),
        f"traces in {folder}",
        allowed="a folder on a mounted filesystem: XLA itself writes them",
        fix="set train.log_dir to a local folder, or to null for the run's own",
    )
    return folder


class TracedClock(LoopClock):
    """A loop's clock whose phases also stand in a trace, where one is being made."""

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Counts the time inside under `name`, and shows it in the trace."""
        with jax.profiler.TraceAnnotation(name), super().phase(name):
            yield


class Profiler:
    """Traces a window of steps into a folder. Enter it around the loop, and `step` around a step.

    The trace ends with its window, the loop or an error, whichever comes first. A trace that cannot
    be made or written is a warning, and the run goes on.
    """

    def __init__(self, config: Any, clock: LoopClock, *, start_step: int) -> None:
        """The profiler of a template's run config, for a run that begins at `start_step`.

        `clock` is the loop's own: starting and writing a trace is no step's time.
        """
        trainer, profiler = config.trainer, config.trainer.profiler
        self._folder = profiler_folder(
            config.output_path, run_id=config.run_id, log_dir=trainer.log_dir
        )
        self._clock = clock
        self._window = profiler.window(start_step, trainer.steps)
        self._is_tracing = False
        if profiler.enabled and not self._window:
            log.warning(
                "no step will be traced: steps %d to %d are to be done, and profiler.start_step=%d "
                "with num_steps=%d. Fix: choose a start_step among them",
                start_step,
                trainer.steps - 1,
                profiler.start_step,
                profiler.num_steps,
            )

    def __enter__(self) -> "Profiler":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def step(self, step: int) -> AbstractContextManager[None]:
        """Around everything that belongs to the step with this 0-based index."""
        return self._trace(step) if step in self._window else nullcontext()

    @contextmanager
    def _trace(self, step: int) -> Iterator[None]:
        if step == self._window.start:
            self._start()
        try:
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                yield
        finally:
            if step == self._window[-1]:
                self._stop()

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        # Tracing every Python call would write megabytes a step and slow the loop down.
        options.python_tracer_level = 0
        try:
            with self._clock.phase("hook"):
                # Made first: JAX would fail only at the end, and never trace again.
                make_folder(self._folder)
                jax.profiler.start_trace(self._folder, profiler_options=options)
        except Exception:
            log.exception("no trace: the profiler did not start")
            return
        self._is_tracing = True
        log.info("tracing steps %d to %d", self._window[0], self._window[-1])

    def _stop(self) -> None:
        if not self._is_tracing:
            return
        self._is_tracing = False
        try:
            # The host runs ahead of the device, whose part of the last steps is to be traced too.
            jax.block_until_ready(jax.live_arrays())
        except Exception:  # of the step, which raises it again where it belongs
            log.debug("the last traced step failed", exc_info=True)
        try:
            with self._clock.phase("hook"):
                jax.profiler.stop_trace()
        except Exception:
            log.exception("no trace: it could not be written to %s", self._folder)
            return
        log.info("the trace is in %s; look at it with TensorBoard or ui.perfetto.dev", self._folder)
