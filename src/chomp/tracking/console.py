"""The console's view of a run: one line a row, and on a terminal a progress bar below them.

It reads rows by their names and shows what it finds; a row with odd or missing keys is never an
error. Steps are shown as people count them: after the row of step 0, one step is done.

While the bar is up, what is printed or logged to this terminal is sent through the bar's console,
which writes it above. Streams that go elsewhere (`2> errors.txt`) are left alone.
"""

import atexit
import logging
import math
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from os import PathLike
from typing import Any, TextIO, TypeAlias

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from chomp.storage import read_text
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.storage.printable import PlainConsole, printable
from chomp.tracking.metrics import (
    DURATION,
    GRAD_NORM,
    LEARNING_RATE,
    PACKING_UTILIZATION,
    PEAK_MEMORY_GB,
    TOKENS_PER_SEC,
    TRAIN_LOSS,
)
from chomp.tracking.record import MetricValue
from chomp.tracking.run_files import AVERAGED, held_out_prefix, is_of_averaged

# Rows over which the pace is measured: enough to even out an evaluation or a checkpoint, few enough
# to follow a change of batch size.
WINDOW_ROWS = 50
# Quoted: logging.StreamHandler takes a parameter for type checkers, but not at run time in 3.11.
_StreamHandler: TypeAlias = "logging.StreamHandler[Any]"
# The bar moves only when a row comes; what it redraws in between is the elapsed time.
_REFRESH_PER_SECOND = 4
_logger = logging.getLogger(__name__)
_LINE_GAP_S = 1.0  # between lines above a bar
_MAX_SHOWN_SECONDS = 1000 * 86400  # a longer estimate is a bad estimate, not a date


class Pace:
    """Seconds per step over the last rows, from the first row on, so compiling never counts."""

    def __init__(self, total_steps: int) -> None:
        self._total_steps = total_steps
        self._marks: deque[tuple[int, float]] = deque(maxlen=WINDOW_ROWS)

    def observe(self, completed_steps: int, now_s: float) -> None:
        """Note that `completed_steps` were done at `now_s`; a step seen before changes nothing."""
        if not self._marks or completed_steps > self._marks[-1][0]:
            self._marks.append((completed_steps, now_s))

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the window, or None until two different steps were seen."""
        if len(self._marks) < 2:
            return None
        (first_step, first_s), (last_step, last_s) = self._marks[0], self._marks[-1]
        return (last_s - first_s) / (last_step - first_step)

    def seconds_left(self, fallback_seconds_per_step: float | None) -> float | None:
        """Time to the last step, by the fallback while there is no pace; None without either."""
        pace = self.seconds_per_step
        seconds_per_step = fallback_seconds_per_step if pace is None else pace
        if seconds_per_step is None or not self._marks:
            return None
        return max(0, self._total_steps - self._marks[-1][0]) * seconds_per_step


class TrainingBar:
    """A bar with step, loss, tokens per second, time left and time elapsed. It starts at once."""

    def __init__(self, console: Console, *, total_steps: int, completed_steps: int) -> None:
        self._progress = Progress(
            # The only column that may shrink: in a narrow terminal the numbers stay whole.
            BarColumn(bar_width=None, table_column=Column(max_width=40)),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[tokens_per_second]} tokens/s"),
            TextColumn("ETA {task.fields[eta]}"),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=_REFRESH_PER_SECOND,
            redirect_stdout=bool(sys.stdout and sys.stdout.isatty()),
            redirect_stderr=bool(sys.stderr and sys.stderr.isatty()),
        )
        self._task = self._progress.add_task(
            "train",
            total=total_steps,
            completed=completed_steps,
            loss="-",
            tokens_per_second="-",
            eta="-",
        )
        before = (sys.stdout, sys.stderr)
        self._progress.start()
        # A handler keeps the stream it was made with, so replacing `sys.stderr` alone does not
        # reach one made earlier, and its warning would land in the middle of the bar.
        self._moved_handlers: list[tuple[_StreamHandler, TextIO]] = []
        loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
        # The rest are placeholders for names nobody asked for.
        named = [logger for logger in loggers if isinstance(logger, logging.Logger)]
        handlers = [handler for logger in named for handler in logger.handlers]
        for old, new in zip(before, (sys.stdout, sys.stderr), strict=True):
            if old is new:
                continue
            for handler in handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is old:
                    handler.setStream(new)
                    self._moved_handlers.append((handler, old))
        # A run that dies without `stop` would leave the terminal without a cursor.
        atexit.register(self.stop)

    def show(self, completed_steps: int, **fields: Any) -> None:
        """Move the bar and replace the given texts (`loss`, `tokens_per_second`, `eta`)."""
        self._progress.update(self._task, completed=completed_steps, **fields)

    def stop(self) -> None:
        """Leave the bar as it is now, cursor and streams restored. May be called twice."""
        atexit.unregister(self.stop)
        for handler, stream in self._moved_handlers:
            handler.setStream(stream)
        self._moved_handlers = []
        self._progress.stop()


class ConsoleTracker:
    """Shows rows on `console` (standard output unless given); keeps nothing.

    `start_step` is how many steps an earlier attempt has done. `has_bar` false: lines, on a
    terminal too. `eval_prefix` is what the names of evaluation metrics begin with.
    """

    def __init__(
        self,
        total_steps: int,
        *,
        start_step: int = 0,
        console: Console | None = None,
        has_bar: bool = True,
        eval_prefix: str = "eval",
    ) -> None:
        self._total_steps = total_steps
        self._eval_prefix = eval_prefix
        self._console = PlainConsole() if console is None else console
        self._pace = Pace(total_steps)
        self._printed_s = -math.inf
        self._bar: TrainingBar | None = None
        # Under CI a terminal is often faked, and a redrawn bar fills the job's log.
        is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
        if has_bar and self._console.is_interactive and not is_ci:
            self._bar = TrainingBar(
                self._console, total_steps=total_steps, completed_steps=start_step
            )

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Print the row as a line, and move the bar.

        Beside a bar there is at most one line a second, which is as fast as anybody reads and saves
        a quick run the time of drawing them; an evaluation and the last step are always shown.
        """
        completed_steps, now_s = step + 1, time.monotonic()
        self._pace.observe(completed_steps, now_s)
        texts = self._texts(metrics)
        if self._bar is not None:
            # What a row lacks stays as it was.
            fields = {"loss": "loss", "tokens_per_second": "tokens/s", "eta": "ETA"}
            shown = {field: texts[label] for field, label in fields.items() if label in texts}
            self._bar.show(completed_steps, **shown)
        is_due = self._bar is None or now_s - self._printed_s >= _LINE_GAP_S
        is_evaluation = any(label.startswith("eval loss") for label in texts)
        if not (is_due or is_evaluation or completed_steps >= self._total_steps):
            return
        self._printed_s = now_s
        # A row of other things, such as watched norms, is not worth a line of its own.
        if "loss" in texts or is_evaluation:
            parts = [
                f"{text} {label}" if label == "tokens/s" else f"{label} {text}"
                for label, text in texts.items()
            ]
            counts = f"step {completed_steps}/{self._total_steps}"
            self._print(Text(" | ".join([counts, *parts])))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Nothing is shown."""

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Show a text that the model wrote (`kind` "sample"): framed above a bar, else as lines.

        The last one of a run is left to the table that closes it.
        """
        if kind != "sample" or name.endswith(f"-{self._total_steps}"):
            return
        text = printable(read_text(path, max_bytes=MAX_TEXT_BYTES), self._console.encoding)
        if self._bar is not None:
            self._print(Panel(Text(text), title=Text(name), title_align="left"))
        else:
            # Indented, since its lines may look like those of the run.
            lines = "".join(f"\n  {line}" for line in text.split("\n"))
            self._print(Text(f"{name}:{lines}"))

    def finish(self) -> None:
        """Leave the terminal clean: the bar stays as it was last, the cursor is below it."""
        if self._bar is not None:
            self._bar.stop()

    def _texts(self, metrics: Mapping[str, MetricValue]) -> dict[str, str]:
        """What the row has to show, by label, in the order of the line."""
        loss = _number(metrics, TRAIN_LOSS, "loss")
        step_time = _number(metrics, DURATION)
        if step_time is None and loss is not None:  # an evaluation has no step time of its own
            step_time = self._pace.seconds_per_step
        prefix = held_out_prefix(self._eval_prefix, metrics)
        weights = f" ({AVERAGED})" if is_of_averaged(prefix) else ""
        numbers = {
            "loss": (loss, "{:.4f}"),
            "grad norm": (_number(metrics, GRAD_NORM, "grad_norm"), "{:.3g}"),
            "lr": (_number(metrics, LEARNING_RATE, "lr"), "{:.2e}"),
            "time": (step_time, "{:.3f} s"),
            "tokens/s": (_number(metrics, TOKENS_PER_SEC), ""),
            f"eval loss{weights}": (_number(metrics, f"{prefix}/loss", "eval_loss"), "{:.4f}"),
            f"eval bpb{weights}": (_number(metrics, f"{prefix}/bpb"), "{:.4f}"),
            "packing": (_number(metrics, PACKING_UTILIZATION), "{:.1%}"),
            "memory": (_number(metrics, PEAK_MEMORY_GB), "{:.1f} GB"),
        }
        texts = {
            label: form.format(number) if form else compact(number)
            for label, (number, form) in numbers.items()
            if number is not None
        }
        return {**texts, "ETA": clock(self._pace.seconds_left(step_time))}

    def _print(self, shown: RenderableType) -> None:
        try:
            # Only a frame is fitted to the width; lines stay whole, for whoever searches them.
            self._console.print(shown, highlight=False, soft_wrap=isinstance(shown, Text))
        except SystemExit:
            # Rich ends the program when nobody reads its output any more (`| head`), and mutes the
            # console. A run does not end because its watcher has left.
            _logger.warning("nobody reads the console any more; it shows no further rows")


def compact(number: float) -> str:
    """Three significant digits with k, M, G or T: 950, 12.3k, 1.05M."""
    if not math.isfinite(number):
        return str(number)
    for suffix in ("", "k", "M", "G"):
        if abs(number) < 999.5:
            return f"{number:.3g}{suffix}"
        number /= 1000
    return f"{number:.3g}T"


def clock(seconds: float | None) -> str:
    """Hours, minutes and seconds (days before them where needed); `-` if that is not known."""
    if seconds is None or not 0 <= seconds < _MAX_SHOWN_SECONDS:
        return "-"
    return str(timedelta(seconds=round(seconds)))


def _number(metrics: Mapping[str, MetricValue], *keys: str) -> float | None:
    """The first of `keys` that holds a number, NaN included; None where none does."""
    for key in keys:
        value: object = metrics.get(key)
        # A text or a flag under a number's name is passed over, not read as a number.
        if value is None or isinstance(value, str | bool):
            continue
        try:
            return float(value.item() if hasattr(value, "item") else value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            continue
    return None
