"""A trace of a few steps, for TensorBoard's profiler or ui.perfetto.dev, in the run's folder.

A step stands in the trace as "train" with its number, and inside it the phases of the loop's clock
under their own names.
"""

import logging
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import jax

from chomp.config import Config, setting
from chomp.errors import require
from chomp.storage import is_local, join, make_folder
from chomp.tracking.run_files import PROFILER
from chomp.training.step_log import LoopClock

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


def traced_steps(config: Any, clock: LoopClock, *, start_step: int) -> Generator[int, None, None]:
    """The steps of a template's run config that are left, of which a window is traced.

    Use it as the loop's range: what is done until the next step is taken belongs to the step. The
    trace ends with its window, the loop or an error, whichever comes first. One that cannot be made
    or written is a warning, and the run goes on. `clock` is the loop's own: starting and writing a
    trace is no step's time.
    """
    trainer, profiler = config.trainer, config.trainer.profiler
    folder = profiler_folder(config.output_path, run_id=config.run_id, log_dir=trainer.log_dir)
    window, is_tracing = profiler.window(start_step, trainer.steps), False
    if profiler.enabled and not window:
        log.warning(
            "no step will be traced: steps %d to %d are to be done, and profiler.start_step=%d "
            "with num_steps=%d. Fix: choose a start_step among them",
            *(start_step, trainer.steps - 1, profiler.start_step, profiler.num_steps),
        )
    # Tracing every Python call would write megabytes a step and slow the loop down.
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        for step in range(start_step, trainer.steps):
            if step not in window:
                yield step
                continue
            if step == window.start:
                try:
                    with clock.phase("hook"):
                        make_folder(folder)  # first: JAX would fail only at the end, for good
                        jax.profiler.start_trace(folder, profiler_options=options)
                    is_tracing = True
                except Exception:
                    log.exception("no trace: the profiler did not start")
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                yield step
            if step == window[-1] and is_tracing:
                is_tracing = False
                _write_trace(folder, clock)
    finally:
        if is_tracing:
            _write_trace(folder, clock)


def _write_trace(folder: str, clock: LoopClock) -> None:
    try:
        # The host runs ahead of the device, whose part of the last steps is to be traced too.
        jax.block_until_ready(jax.live_arrays())
    except Exception:  # of the step, which raises it again where it belongs
        log.debug("the last traced step failed", exc_info=True)
    try:
        with clock.phase("hook"):
            jax.profiler.stop_trace()
        log.info("the trace is in %s; look at it with TensorBoard or ui.perfetto.dev", folder)
    except Exception:
        log.exception("no trace: it could not be written to %s", folder)
