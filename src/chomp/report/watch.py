"""Watching a run in a terminal, from its folder alone: what is known of it, and the view of that.

A look takes in what was appended to the record since the last one, unless the file is no longer the
one that it was. The view is never higher than the terminal. Where there is little room the curve
keeps some of it, and the sample and the evaluations are cut short first. Whatever comes from the
run's files goes through `printable`, so that no run can send its reader's terminal a command. A
terminal that can be drawn on shows the view on its second screen; everything else gets text without
control codes.
"""

import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from chomp.errors import StorageError
from chomp.report.curves import Curve
from chomp.report.record import Record, RecordFile, Series, damages_of, read_config
from chomp.report.run_facts import is_killed
from chomp.report.text_chart import (
    ASCII,
    STYLES,
    Signs,
    chart_lines,
    is_drawn,
    is_smoothed,
    signs_for,
    spark,
)
from chomp.report.timeline import duration_text
from chomp.storage import exists, join, name_of, read_text
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.storage.printable import PlainConsole, printable
from chomp.tracking import metrics as known
from chomp.tracking import redacted
from chomp.tracking.console import WINDOW_ROWS, clock, compact
from chomp.tracking.run_files import (
    EMA,
    FINISHED,
    RESOLVED_CONFIG,
    SAMPLE_MARK,
    SAMPLES,
    STOPS,
    eval_prefix_in,
    held_out_prefix,
    record_in,
    section_in,
)

# Taken in one look: some thousand rows, so that a long record can be seen to load.
_LOOK_BYTES = 4 << 20
# A run may be compiling, or saving: shorter silences say nothing.
_MIN_QUIET_S = 120.0
_QUIET_GAPS = 5  # as many times the usual time between lines
_LEAST_PROGRESS = 1e-12  # a record may be damaged
# Label, metric, and how its value is written; `compact` where there is no form.
_SPARKS = (
    ("grad norm", known.GRAD_NORM, "{:.3g}"),
    ("learning rate", known.LEARNING_RATE, "{:.2e}"),
    ("tokens/s", known.TOKENS_PER_SEC, ""),
    ("MFU", known.MFU, "{:.1f} %"),
)
# The same without a curve: these stay or grow.
_NUMBERS = (
    ("memory", known.PEAK_MEMORY_GB, "{:.1f} GB"),
    ("tokens trained on", known.TOKENS_SEEN, ""),
)
_LABEL_COLUMNS, _VALUE_COLUMNS = 18, 10
_TAG_COLUMNS = 24
_ENDED = {FINISHED: ("finished", "green")} | dict.fromkeys(
    STOPS, ("stopped, as it was asked to", "yellow")
)
_WIDE = 110  # columns from which there are two
_MIN_CHART, _MAX_CHART = 8, 30
_PRINTED_CHART = 16  # where the height of the terminal does not matter
_MIN_SIDE, _MAX_SIDE = 44, 64
_SAMPLE_LINES = 9  # as many as are wished for, title included
_UNLIMITED = 60  # lines of a view that nobody has to see at once
_EVERY_S = 2.0


# --- What is known of a run -----------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A text that the model wrote."""

    title: str
    prompt: str
    continuation: str


@dataclass(frozen=True)
class Evaluation:
    """What was evaluated after one step, by metric."""

    step: int
    values: Mapping[str, float]


class WatchedRun:
    """A run folder under observation; `look` brings all of it up to date."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.is_killed = False  # it said nothing of its end, and its process is gone
        self.sample: Sample | None = None
        self._file_problem: str | None = None
        self._sample_name: str | None = None
        self._read_config()
        self._file = RecordFile(record_in(folder, self.config))
        self.record = Record(folder, self.config)

    def look(self) -> bool:
        """Take in what was written since the last look; whether another look finds more at once."""
        attempt, has_more, self._file_problem = self.attempt, False, None
        try:
            if exists(self._file.path):
                has_more = self._file.append(_LOOK_BYTES)
            elif self.has_begun:
                self._file_problem = f"{self.record_name}: it is gone"
        except StorageError as error:  # a network drive may answer again at the next look
            self._file_problem = str(error)
        self.record = Record(self.folder, self.config, self._file.blocks(), dict(self._file.others))
        # The folder of a run that has just begun, or one that was resumed with other settings.
        if not self.config or self.attempt != attempt:
            self._read_config()
            self.record = Record(self.folder, self.config, self.record.blocks, self.record.others)
            if not self.has_begun:
                self._file = RecordFile(record_in(self.folder, self.config))
        if not has_more:
            self._read_sample()
        # After the lines: one that says how the run ended comes before its process does.
        self.is_killed = self.has_begun and self.outcome is None and is_killed(self.folder)
        return has_more

    @property
    def record_name(self) -> str:
        """What the record is called in the folder."""
        return name_of(self._file.path)

    @property
    def has_begun(self) -> bool:
        """Whether the run has written a line."""
        return self._file.num_lines > 0

    @property
    def attempt(self) -> int:
        """The newest; 0: none has written a line."""
        return self.record.attempts[-1].number if self.record.attempts else 0

    @property
    def outcome(self) -> str | None:
        """How the newest attempt ended, as it said itself."""
        return self.record.attempts[-1].outcome if self.record.attempts else None

    @property
    def completed_steps(self) -> int | None:
        """Steps that the newest attempt has come to."""
        last = self.record.attempts[-1].last_step if self.record.attempts else None
        return None if last is None else last + 1

    @property
    def resumes(self) -> list[tuple[int, int]]:
        """The first step of each later attempt that trained, and its number."""
        later = self.record.attempts[1:]
        return [(each.first_step, each.number) for each in later if each.first_step is not None]

    @property
    def total_steps(self) -> int | None:
        """How many steps the run is to take, by its own progress or else by its config."""
        told = self.record.series(known.RUN_PROGRESS)
        is_told = (told.attempts == self.attempt) & (told.values <= 1)
        told = told.at(is_told & (told.values >= _LEAST_PROGRESS))
        if told.steps.size:
            return round((int(told.steps[-1]) + 1) / float(told.values[-1]))
        steps = section_in(self.config, "trainer").get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def last_line_s(self) -> float | None:
        """When a line was last written in an attempt's time, in seconds since 1970."""
        times = [each.last_time for each in self.record.attempts if math.isfinite(each.last_time)]
        return max(times, default=None)

    def silent_s(self, now_s: float) -> float | None:
        """Seconds since the last line; None where there is none."""
        return None if self.last_line_s is None else max(0.0, now_s - self.last_line_s)

    def is_quiet(self, now_s: float) -> bool:
        """Whether no line came for much longer than lines take to come in this run.

        All that tells of a process on another machine; on this one, see `is_killed`.
        """
        silent_s, gaps = self.silent_s(now_s), np.diff(self._moves.times[-2:])
        usual_s = max(_MIN_QUIET_S, _QUIET_GAPS * float(gaps.sum()))
        return self.outcome is None and silent_s is not None and silent_s > usual_s

    def seconds_left(self, now_s: float) -> float | None:
        """Time to the last step by the pace of this attempt; None where it cannot be told yet."""
        total, done, moves = self.total_steps, self.completed_steps, self._moves
        if total is None or done is None or moves.steps.size < 2:
            return None
        if self.outcome is not None or self.is_killed or self.is_quiet(now_s):
            return None
        pace_s = (moves.times[-1] - moves.times[0]) / (moves.steps[-1] - moves.steps[0])
        return max(0.0, (total - done) * float(pace_s) - (self.silent_s(now_s) or 0.0))

    @property
    def _moves(self) -> Series:
        """The last rows of this attempt that came to a further step, of which the time is known."""
        rows = self.record.logged("step")
        rows = rows.at((rows.attempts == self.attempt) & np.isfinite(rows.times))
        furthest = np.maximum.accumulate(rows.steps)
        return rows.at(np.diff(furthest, prepend=-1) > 0).at(slice(-WINDOW_ROWS, None))

    def newest(self, name: str) -> float | None:
        """The last value of a metric, NaN where it was not finite; None where there is none."""
        values = self.record.series(name).values
        return float(values[-1]) if values.size else None

    @property
    def eval_prefix(self) -> str:
        """What the names of the run's evaluations begin with."""
        return eval_prefix_in(self.config)

    @property
    def eval_loss(self) -> Series:
        """The loss of the averaged weights where only those are evaluated, else of the others."""
        prefix = held_out_prefix(self.eval_prefix, self.record.names)
        return self.record.series(f"{prefix}/loss")

    @property
    def evaluations(self) -> list[Evaluation]:
        """The last one by step and the one before, which it is compared with."""
        start = f"{self.eval_prefix}/"
        by_name = {
            name: self.record.series(name) for name in self.record.names if name.startswith(start)
        }
        marks = (f"{start}{part}{mark}" for part in ("", f"{EMA}/") for mark in ("tokens", "loss"))
        steps = {int(step) for name in marks if name in by_name for step in by_name[name].steps}
        return [
            Evaluation(
                step,
                {
                    name: float(rows.values[np.searchsorted(rows.steps, step)])
                    for name, rows in by_name.items()
                    if step in rows.steps
                },
            )
            for step in sorted(steps)[-2:]
        ]

    def problems(self, now_s: float) -> list[str]:
        """What is amiss with the record, in words."""
        told = [self._file_problem] if self._file_problem else []
        told += damages_of(self._file)
        if self._file.is_torn and (self.is_killed or self.is_quiet(now_s)):
            told.append(f"{self.record_name} ends within a line, as a killed run leaves it")
        skipped = self.newest(known.SKIPPED_STEPS)
        if skipped is not None and skipped > 0:
            told.append(f"steps that were not finite and left out: {skipped:.0f}")
        return told + ([self._config_problem] if self._config_problem else [])

    def _read_config(self) -> None:
        config, problem = read_config(self.folder)
        self.config = config or {}
        # A run that has just begun has none yet.
        self._config_problem = problem if exists(join(self.folder, RESOLVED_CONFIG)) else None

    def _read_sample(self) -> None:
        """The newest sample that the record names; while that is not there, the one before."""
        paths = (
            row.get("path")
            for row in reversed(self.record.artifacts)
            if row.get("artifact_kind") == "sample"
        )
        # By its name alone: the folder may have been moved, and no line leads out of it.
        name = next((os.path.basename(path) for path in paths if isinstance(path, str)), None)
        if name is None or name == self._sample_name:
            self.sample = self.sample if name else None
            return
        try:
            text = read_text(join(self.folder, SAMPLES, name), max_bytes=MAX_TEXT_BYTES)
        except StorageError:
            return
        prompt, mark, continuation = redacted(text).partition(SAMPLE_MARK)
        title = name.removesuffix(".txt").replace("-", " ")
        self.sample, self._sample_name = Sample(title, prompt, mark + continuation), name


# --- The view -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A run as it is drawn on a console at one moment."""

    run: WatchedRun
    console: Console
    metrics: Sequence[str]  # that have a chart
    now_s: float
    last_steps: int | None = None  # draw no more than these

    @cached_property
    def signs(self) -> Signs:
        """Braille or ASCII, by the console's encoding."""
        return signs_for(self.console.encoding)

    def lines(self, height: int | None = None) -> Group:
        """All of it, as wide as the console; at most `height` lines where that is given."""
        width = self.console.width
        problems = [Text(self._shown(told), "yellow") for told in self.run.problems(self.now_s)]
        top = [*self._head(width), *problems]
        room = (_UNLIMITED if height is None else height) - len(top) - 1
        if width >= _WIDE:
            side_width = min(_MAX_SIDE, max(_MIN_SIDE, width // 3))
            side = self._side(side_width, room)
            chart_width = width - side_width - 3
            high = room if height is not None else max(_PRINTED_CHART, len(side))
            charts = self._charts(chart_width, min(high, room))
            body = []
            for row in range(max(len(charts), len(side))):
                line = charts[row].copy() if row < len(charts) else Text()
                line.truncate(chart_width, overflow="ellipsis", pad=True)
                # Assembled, not added up: a sum takes the style of its first text for all of it.
                body.append(Text.assemble(line, "   ", side[row]) if row < len(side) else line)
        else:
            side = self._side(width, room - min(room, _MIN_CHART * len(self.metrics)) - 1)
            wished = (_PRINTED_CHART if height is None else _MAX_CHART) * len(self.metrics)
            charts = self._charts(width, min(wished, room - len(side) - 1))
            body = [*charts, Text(), *side] if side else charts
        lines = [*top, Text(), *body][:height]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        return Group(*lines)

    def one_line(self) -> str:
        """The newest numbers on one line, for where nothing can be drawn."""
        run, total = self.run, self.run.total_steps
        parts = [f"step {run.completed_steps or 0}" + ("" if total is None else f"/{total}")]
        loss, speed = run.newest(known.TRAIN_LOSS), run.newest(known.TOKENS_PER_SEC)
        parts += [] if loss is None else [f"loss {loss:.4f}"]
        prefix = held_out_prefix(run.eval_prefix, run.record.names)
        evaluated = run.newest(f"{prefix}/loss")
        parts += [] if evaluated is None else [f"{prefix} loss {evaluated:.4f}"]
        parts += [] if speed is None else [f"{compact(speed)} tokens/s"]
        parts += [f"ETA {clock(run.seconds_left(self.now_s))}"] if run.outcome is None else []
        parts += [f"attempt {run.attempt}"] if run.attempt > 1 else []
        return " | ".join([*parts, self._state()[0]])

    def _shown(self, text: str) -> str:
        """A text of the run's own, on one line and safe for the terminal."""
        return " ".join(printable(text, self.console.encoding).split())

    def _state(self) -> tuple[str, str]:
        """How the run is, in words, and the style to write them in."""
        run = self.run
        if not run.has_begun:
            return f"waiting: there is no line in {self._shown(run.record_name)} yet", "yellow"
        if run.outcome is not None:
            return _ENDED.get(run.outcome, (f"failed: {self._shown(run.outcome)}", "bold red"))
        if run.is_killed:
            return "killed: its process is gone", "bold red"
        if run.is_quiet(self.now_s):
            return f"no line for {duration_text(run.silent_s(self.now_s) or 0.0)}", "bold yellow"
        return "running", "green"

    def _head(self, width: int) -> list[Text]:
        """Who it is and how it is, and how far it has come."""
        run = self.run
        name = Text(self._shown(run.record.name), "bold")
        name.truncate(max(12, width // 3), overflow="ellipsis")
        facts = [name, Text(*self._state())]
        if run.attempt > 1:
            facts.append(Text(f"attempt {run.attempt}", STYLES["resume"]))
        silent_s = run.silent_s(self.now_s)
        if silent_s is not None and not run.is_quiet(self.now_s):
            facts.append(Text(f"last line {duration_text(silent_s)} ago", "dim"))
        head = Text(f" {self.signs.gap} ").join(facts)
        done, total = run.completed_steps or 0, run.total_steps
        if total is None:
            return [head, Text(f"step {done:,}")]
        words = f" {done:,}/{total:,} steps  {done / max(1, total):.1%}"
        if run.outcome is None:
            words += f"  ETA {clock(run.seconds_left(self.now_s))}"
        columns = max(0, min(60, width - len(words)))
        filled = min(columns, round(columns * done / max(1, total)))
        full, empty = self.signs.bar
        bar = (full * filled, "cyan"), (empty * (columns - filled), "dim")
        return [head, Text.assemble(*bar, words)]

    def _curve(self, rows: Series) -> Curve:
        """The part of a metric that is drawn."""
        done = self.run.completed_steps or 0
        first = 0 if self.last_steps is None else max(0, done - self.last_steps)
        return Curve(rows.steps[rows.steps >= first], rows.values[rows.steps >= first])

    def _charts(self, width: int, height: int) -> list[Text]:
        """The metrics' titles and curves, in equal parts of the height."""
        each = min(_MAX_CHART, max(4, height // max(1, len(self.metrics))))
        return [line for name in self.metrics for line in self._chart(name, width, each)]

    def _chart(self, name: str, width: int, height: int) -> list[Text]:
        run, signs = self.run, self.signs
        title = Text(self._shown(name), "bold")
        curve = self._curve(run.record.series(name))
        if not len(curve.steps):
            title.append("  no value so far", "yellow")
            if close := get_close_matches(name, [*run.record.names, *run.record.summary], n=2):
                title.append(f"; there is {' and '.join(map(self._shown, close))}", "yellow")
            return [title]
        title.append(f"  {curve.values[-1]:.5g}")
        points, legend = None, []
        if is_smoothed(curve):
            legend += [Text("raw", STYLES["raw"]), Text("smoothed", STYLES["smooth"])]
        if name == known.TRAIN_LOSS:
            points = self._curve(run.eval_loss)
        if points is not None and len(points.steps):
            legend.append(Text(f"{signs.point} {run.eval_prefix}", STYLES["points"]))
        if any(step >= curve.steps[0] for step, _ in run.resumes):
            legend.append(Text(f"{signs.resumed} resumed", STYLES["resume"]))
        if not is_drawn(curve.values).all():
            legend.append(Text(f"{signs.not_finite} not finite", "bold red"))
        title = Text("   ").join([title, Text(" ").join(legend)])
        size = {"width": width, "height": height - 1}
        return [
            title,
            *chart_lines(curve, **size, signs=signs, points=points, resumes=run.resumes),
        ]

    def _side(self, width: int, room: int) -> list[Text]:
        """Numbers, evaluations and a sample, in this order as far as there is room."""
        numbers = self._numbers(width)[: max(0, room)]
        left = room - len(numbers) - 1
        evaluated = self._evaluations()
        if len(evaluated) > left:
            missing = Text(f"{len(evaluated) - left + 1} more", "dim")
            # A title and its columns alone say nothing.
            evaluated = [] if left < 4 else [*evaluated[: left - 1], missing]
        left -= len(evaluated) + 1
        lines: list[Text] = []
        for part in (numbers, evaluated, self._sample(width, min(_SAMPLE_LINES, left))):
            lines += [Text(), *part] if lines and part else part
        return lines

    def _numbers(self, width: int) -> list[Text]:
        """A line for each number beside the loss: label, value and a curve of letters."""
        run, lines = self.run, []
        for label, name, form in (*_SPARKS, *_NUMBERS):
            newest = run.newest(name)
            if newest is None:
                continue
            text = form.format(newest) if form else compact(newest)
            parts = (f"{label:<{_LABEL_COLUMNS}}", "dim"), f"{text:>{_VALUE_COLUMNS}}  "
            line = Text.assemble(*parts)
            if (label, name, form) in _SPARKS:
                values = self._curve(run.record.series(name)).values
                columns = min(60, width - len(line))
                line.append(spark(values, width=columns, signs=self.signs), "blue")
            lines.append(line)
        start = "lm_eval/averages/"
        for name in run.record.names:
            value = run.newest(name) if name.startswith(start) else None
            if value is not None:
                label = self._shown(name.removeprefix(start))
                lines.append(Text.assemble((f"{label}  ", "dim"), f"{value:.4f}"))
        return lines

    def _evaluations(self) -> list[Text]:
        """The last evaluation: loss and bits per byte of each tag, and how far it moved."""
        if not self.run.evaluations:
            return []
        *before, last = self.run.evaluations
        prefix = self.run.eval_prefix
        since = f", change since {before[0].step + 1:,}" if before else ""
        steps = "1 step" if last.step == 0 else f"{last.step + 1:,} steps"
        # What stands between the prefix and `loss`; the whole has nothing there.
        tags = [
            name.removeprefix(prefix).removesuffix("loss").strip("/")
            for name in last.values
            if name.endswith("/loss")
        ]
        labels = {}
        for tag in sorted(tags, key=lambda tag: (tag.split("/")[0] == EMA, tag)):
            top, _, below = tag.partition("/")
            labels[tag] = f"{EMA}: {below or 'all'}" if top == EMA else tag or "all"
        columns = min(_TAG_COLUMNS, max(map(len, labels.values()), default=0))
        lines = [
            Text(f"{prefix} after {steps}{since}", "bold"),
            Text(f"{'':<{columns}}  {'loss':>8}  {'bpb':>8}", "dim"),
        ]
        for tag, label in labels.items():
            line = Text(self._shown(label))
            line.truncate(columns, overflow="ellipsis", pad=True)
            name = "/".join(part for part in (prefix, tag, "loss") if part)
            loss, bpb = last.values[name], last.values.get(name.removesuffix("loss") + "bpb")
            for value in (loss, bpb):
                line.append(f"  {'-' if value is None else f'{value:.4f}':>8}")
            change = loss - before[0].values.get(name, math.nan) if before else math.nan
            if math.isfinite(change):
                arrow, style = self.signs.arrows[change <= 0], "red" if change > 0 else "green"
                line.append(f"  {arrow}{abs(change):.4f}", style)
            lines.append(line)
        return lines

    def _sample(self, width: int, height: int) -> list[Text]:
        """The last text that the model wrote, from just before where it went on by itself."""
        sample = self.run.sample
        if sample is None or height < 2:
            return []
        prompt, text = (
            printable(part, self.console.encoding).expandtabs(4)
            for part in (sample.prompt, sample.continuation)
        )
        before = Text(prompt, "dim").wrap(self.console, width)
        lines = list(Text.assemble((prompt, "dim"), text).wrap(self.console, width))
        first = max(0, min(len(before) - 2, len(lines) - (height - 1)))
        title = Text(f"sample: {self._shown(sample.title)}", "bold")
        return [title, *lines[first : first + height - 1]]


def watch(
    folder: str,
    *,
    metrics: Sequence[str],
    every_s: float | None = None,
    is_once: bool = False,
    last_steps: int | None = None,
    console: Console | None = None,
) -> None:
    """Show the run until it has finished, and leave the last view on the terminal.

    Without a terminal that can be drawn on, one view is printed, or with `every_s` a line each time
    that something has changed. `last_steps`: draw no more than these.
    """
    console = console or PlainConsole(highlight=False)
    run = WatchedRun(folder)

    def view() -> View:
        return View(run, console, metrics, time.time(), last_steps)

    def print_view() -> None:
        console.print(view().lines())
        if view().signs is ASCII:
            console.print(Text(f"(drawn in ASCII: {console.encoding} has no braille)", "dim"))

    is_live = console.is_terminal and not console.is_dumb_terminal
    if is_once or (not is_live and every_s is None):
        while run.look():
            pass
        return print_view()
    every_s = _EVERY_S if every_s is None else every_s
    if is_live:
        try:
            # Redrawn by this loop alone: a thread of its own would draw a run that is half read.
            with _unwound(), Live(console=console, screen=True, auto_refresh=False) as live:
                has_more = True
                while has_more or run.outcome != FINISHED:
                    has_more = run.look()
                    live.update(view().lines(console.height), refresh=True)
                    if not has_more and run.outcome != FINISHED:
                        time.sleep(every_s)
        finally:
            print_view()
        return None
    told: tuple[Any, ...] | None = None
    while True:
        while run.look():
            pass
        # Not the line itself, in which the time left changes while nothing happens.
        now = view()
        state = (run.outcome, run.is_killed, run.is_quiet(now.now_s))
        if (run.attempt, run.completed_steps, *state) != told:
            console.print(Text(now.one_line()), soft_wrap=True)
            told = (run.attempt, run.completed_steps, *state)
        if run.outcome == FINISHED:
            return None
        time.sleep(every_s)


@contextmanager
def _unwound() -> Iterator[None]:
    """While entered, SIGTERM ends the process as an exception does: the terminal is put right."""
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
