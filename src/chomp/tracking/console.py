"""The console's view of a run: one line a row, and on a terminal a progress bar below them.

It reads rows by their names and shows what it finds; a row with odd or missing keys is never an
error. Steps are shown as people count them: after the row of step 0, one step is done.
"""

import logging
import math
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from os import PathLike

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.text import Text

from chomp.storage import read_text
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.storage.printable import PlainConsole, printable
from chomp.tracking.bar import TrainingBar
from chomp.tracking.metrics import (
    DURATION,
    GRAD_NORM,
    LEARNING_RATE,
    PACKING_UTILIZATION,
    PEAK_MEMORY_GB,
    TOKENS_PER_SEC,
    TRAIN_LOSS,
)
from chomp.tracking.pace import Pace
from chomp.tracking.protocol import MetricValue
from chomp.tracking.run_files import AVERAGED, held_out_prefix, is_of_averaged

_logger = logging.getLogger(__name__)

_LINE_GAP_S = 1.0  # between lines above a bar
_MAX_SHOWN_SECONDS = 1000 * 86400  # a longer estimate is a bad estimate, not a date


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
        if has_bar and self._console.is_interactive and not _is_ci():
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
            self._bar.show(completed_steps=completed_steps, **_bar_fields(texts))
        is_due = self._bar is None or now_s - self._printed_s >= _LINE_GAP_S
        if is_due or _is_evaluation(texts) or completed_steps >= self._total_steps:
            self._printed_s = now_s
            self._print_line(completed_steps, texts)

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

    def _print_line(self, completed_steps: int, texts: Mapping[str, str]) -> None:
        # A row of other things, such as watched norms, is not worth a line of its own.
        if "loss" not in texts and not _is_evaluation(texts):
            return
        parts = [f"step {completed_steps}/{self._total_steps}"]
        parts += [
            f"{text} {label}" if label == "tokens/s" else f"{label} {text}"
            for label, text in texts.items()
        ]
        self._print(Text(" | ".join(parts)))

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


def _is_evaluation(texts: Mapping[str, str]) -> bool:
    return any(label.startswith("eval loss") for label in texts)


def _bar_fields(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts the bar shows, by its field names; what a row lacks stays as it was."""
    fields = {"loss": "loss", "tokens_per_second": "tokens/s", "eta": "ETA"}
    return {field: texts[label] for field, label in fields.items() if label in texts}


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


def _is_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")
