"""Watching a run in a terminal: its parts as lines of text, the view of them, live or once.

The view is never higher than the terminal. Where there is little room the curve keeps some of it,
and the sample and the evaluations are cut short first. Whatever comes from the run's files goes
through `printable`, so that no run can send its reader's terminal a command. A terminal that can be
drawn on shows the view on its second screen; everything else gets text without control codes.
"""

import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from chomp.report.timeline import told_seconds
from chomp.report.watch.text_chart import (
    ASCII,
    STYLES,
    Points,
    Signs,
    chart_lines,
    is_smoothed,
    signs_for,
    spark,
)
from chomp.report.watch.watched_run import WatchedRun, number_in
from chomp.storage.printable import PlainConsole, printable
from chomp.tracking import Row, metrics
from chomp.tracking.console import clock, compact
from chomp.tracking.run_files import FINISHED, STOPS, held_out_prefix

# Label, metric, and how its value is written; `compact` where there is no form.
SPARKS = (
    ("grad norm", metrics.GRAD_NORM, "{:.3g}"),
    ("learning rate", metrics.LEARNING_RATE, "{:.2e}"),
    ("tokens/s", metrics.TOKENS_PER_SEC, ""),
    ("MFU", metrics.MFU, "{:.1f} %"),
)
# The same without a curve: these stay or grow.
_NUMBERS = (
    ("memory", metrics.PEAK_MEMORY_GB, "{:.1f} GB"),
    ("tokens trained on", metrics.TOKENS_SEEN, ""),
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
EVERY_S = 2.0


@dataclass(frozen=True)
class Page:
    """What parts are drawn on."""

    console: Console
    signs: Signs
    now_s: float
    first_step: int = 0  # of the charts

    def shown(self, text: str) -> str:
        """A text of the run's own, on one line and safe for the terminal."""
        return " ".join(printable(text, self.console.encoding).split())


def head_lines(run: WatchedRun, page: Page, width: int) -> list[Text]:
    """Who it is and how it is, and how far it has come."""
    state, style = state_of(run, page)
    facts = [Text(state, style)]
    if run.attempt > 1:
        facts.append(Text(f"attempt {run.attempt}", STYLES["resume"]))
    silent_s = run.silent_s(page.now_s)
    if silent_s is not None and not run.is_quiet(page.now_s):
        facts.append(Text(f"last line {told_seconds(silent_s)} ago", "dim"))
    name = Text(page.shown(run.name), "bold")
    name.truncate(max(12, width // 3), overflow="ellipsis")
    return [Text(f" {page.signs.gap} ").join([name, *facts]), _progress(run, page, width)]


def state_of(run: WatchedRun, page: Page) -> tuple[str, str]:
    """How the run is, in words, and the style to write them in."""
    if not run.has_begun:
        return f"waiting: there is no line in {page.shown(run.record_name)} yet", "yellow"
    if run.outcome is not None:
        return _ENDED.get(run.outcome, (f"failed: {page.shown(run.outcome)}", "bold red"))
    if run.is_killed:
        return "killed: its process is gone", "bold red"
    if run.is_quiet(page.now_s):
        return f"no line for {told_seconds(run.silent_s(page.now_s) or 0.0)}", "bold yellow"
    return "running", "green"


def _progress(run: WatchedRun, page: Page, width: int) -> Text:
    done, total = run.completed_steps or 0, run.total_steps
    if total is None:
        return Text(f"step {done:,}")
    words = f" {done:,}/{total:,} steps  {done / max(1, total):.1%}"
    if run.outcome is None:
        words += f"  ETA {clock(run.seconds_left(page.now_s))}"
    columns = max(0, min(60, width - len(words)))
    filled = min(columns, round(columns * done / max(1, total)))
    full, empty = page.signs.bar
    return Text.assemble((full * filled, "cyan"), (empty * (columns - filled), "dim"), words)


def chart_part(run: WatchedRun, name: str, page: Page, *, width: int, height: int) -> list[Text]:
    """The metric's title and its curve: `height` lines in all."""
    title = Text(page.shown(name), "bold")
    steps, values = run.series[name].since(page.first_step)
    if not len(steps):
        title.append(f"  no value so far{_meant(run, name, page)}", "yellow")
        return [title]
    newest = number_in(run.latest, name)
    title.append(f"  {values[-1] if newest is None else newest:.5g}")
    curve, points, legend = Points(steps, values), None, []
    if is_smoothed(curve):
        legend += [Text("raw", STYLES["raw"]), Text("smoothed", STYLES["smooth"])]
    if name == metrics.TRAIN_LOSS:
        points = Points(*run.eval_loss.since(page.first_step))
    if points is not None and len(points.steps):
        legend += [Text(f"{page.signs.point} {run.eval_prefix}", STYLES["points"])]
    if any(step >= page.first_step for step, _ in run.resumes):
        legend += [Text(f"{page.signs.resumed} resumed", STYLES["resume"])]
    if not curve.is_drawn.all():
        legend += [Text(f"{page.signs.not_finite} not finite", "bold red")]
    title = Text("   ").join([title, Text(" ").join(legend)])
    drawn = chart_lines(
        curve,
        width=width,
        height=height - 1,
        signs=page.signs,
        points=points,
        resumes=run.resumes,
    )
    return [title, *drawn]


def _meant(run: WatchedRun, name: str, page: Page) -> str:
    """Which name was perhaps meant, among those that were logged."""
    close = get_close_matches(name, run.latest, n=2)
    return f"; there is {' and '.join(map(page.shown, close))}" if close and run.latest else ""


def number_lines(run: WatchedRun, page: Page, width: int) -> list[Text]:
    """One line for each number beside the loss: label, value, and a curve of letters."""
    lines = []
    for label, name, form in (*SPARKS, *_NUMBERS):
        newest = number_in(run.latest, name)
        if newest is None:
            continue
        text = form.format(newest) if form else compact(newest)
        line = Text.assemble((f"{label:<{_LABEL_COLUMNS}}", "dim"), f"{text:>{_VALUE_COLUMNS}}  ")
        if name in run.series:
            values = run.series[name].since(page.first_step)[1]
            columns = min(60, width - len(line))
            line.append(spark(values, width=columns, signs=page.signs), "blue")
        lines.append(line)
    return lines + _task_lines(run, page)


def _task_lines(run: WatchedRun, page: Page) -> list[Text]:
    """The averages over lm-eval tasks, where there are any."""
    prefix = "lm_eval/averages/"
    found = {name: number_in(run.latest, name) for name in run.latest if name.startswith(prefix)}
    return [
        Text.assemble((f"{page.shown(name.removeprefix(prefix))}  ", "dim"), f"{value:.4f}")
        for name, value in found.items()
        if value is not None
    ]


def eval_lines(run: WatchedRun, page: Page) -> list[Text]:
    """The last evaluation: loss and bits per byte of each tag, and how far it moved."""
    if not run.evaluations:
        return []
    last = run.evaluations[-1]
    before = run.evaluations[-2] if len(run.evaluations) > 1 else {}
    since = f", change since {before['step'] + 1:,}" if before else ""
    steps = "1 step" if last["step"] == 0 else f"{last['step'] + 1:,} steps"
    head = Text(f"{run.eval_prefix} after {steps}{since}", "bold")
    labels = [(_label(tag), tag) for tag in _tags(last, run.eval_prefix)]
    columns = min(_TAG_COLUMNS, max((len(label) for label, _ in labels), default=0))
    lines = [Text(f"{'':<{columns}}  {'loss':>8}  {'bpb':>8}", "dim")]
    for label, tag in labels:
        cells = Text(page.shown(label))
        cells.truncate(columns, overflow="ellipsis", pad=True)
        name = "/".join(part for part in (run.eval_prefix, tag, "loss") if part)
        loss, bpb = number_in(last, name), number_in(last, name.removesuffix("loss") + "bpb")
        cells.append(f"  {_cell(loss)}  {_cell(bpb)}")
        lines.append(cells + _change(loss, number_in(before, name), page.signs))
    return [head, *lines]


def _tags(row: Row, prefix: str) -> list[str]:
    """Everything that has a loss, as what stands between the prefix and `loss`; all is empty."""
    found = [name for name in row if name.startswith(f"{prefix}/") and name.endswith("/loss")]
    tags = [name[len(prefix) + 1 : -len("/loss")] for name in found]
    return sorted(tags, key=lambda tag: (tag.split("/")[0] == "ema", tag))


def _label(tag: str) -> str:
    if tag in ("", "ema"):
        return "ema: all" if tag else "all"
    return f"ema: {tag.removeprefix('ema/')}" if tag.startswith("ema/") else tag


def _cell(value: float | None) -> str:
    return f"{'-' if value is None else f'{value:.4f}':>8}"


def _change(now: float | None, before: float | None, signs: Signs) -> Text:
    if now is None or before is None or not math.isfinite(now - before):
        return Text()
    up, down = signs.arrows
    is_worse = now > before
    return Text(
        f"  {up if is_worse else down}{abs(now - before):.4f}", "red" if is_worse else "green"
    )


def sample_lines(run: WatchedRun, page: Page, width: int, height: int) -> list[Text]:
    """The last text that the model wrote, from just before where it went on by itself."""
    if run.sample is None or height < 2:
        return []
    prompt, text = (
        printable(part, page.console.encoding).expandtabs(4)
        for part in (run.sample.prompt, run.sample.continuation)
    )
    title = Text(f"sample: {page.shown(run.sample.title)}", "bold")
    before = Text(prompt, "dim").wrap(page.console, width)
    lines = list(Text.assemble((prompt, "dim"), text).wrap(page.console, width))
    first = max(0, min(len(before) - 2, len(lines) - (height - 1)))
    return [title, *lines[first : first + height - 1]]


def problem_lines(run: WatchedRun, page: Page) -> list[Text]:
    """What is amiss, a line each."""
    return [Text(page.shown(problem), "yellow") for problem in run.problems(page.now_s)]


def one_line(run: WatchedRun, page: Page) -> str:
    """The newest numbers on one line, for where nothing can be drawn."""
    total = run.total_steps
    parts = [f"step {run.completed_steps or 0}" + ("" if total is None else f"/{total}")]
    loss = number_in(run.latest, metrics.TRAIN_LOSS)
    prefix = held_out_prefix(run.eval_prefix, set().union(*run.evaluations))
    evaluated = _newest(run.evaluations, f"{prefix}/loss")
    parts += [] if loss is None else [f"loss {loss:.4f}"]
    parts += [] if evaluated is None else [f"{prefix} loss {evaluated:.4f}"]
    speed = number_in(run.latest, metrics.TOKENS_PER_SEC)
    parts += [] if speed is None else [f"{compact(speed)} tokens/s"]
    parts += [f"ETA {clock(run.seconds_left(page.now_s))}"] if run.outcome is None else []
    return " | ".join(
        [*parts, *([f"attempt {run.attempt}"] if run.attempt > 1 else []), state_of(run, page)[0]]
    )


def _newest(rows: Sequence[Row], name: str) -> float | None:
    found: list[Any] = [number_in(row, name) for row in rows]
    return next((value for value in reversed(found) if value is not None), None)


def view(
    run: WatchedRun, page: Page, *, metrics: Sequence[str], height: int | None = None
) -> Group:
    """All of it, as wide as the console; at most `height` lines where that is given."""
    width = page.console.width
    top = [*head_lines(run, page, width), *problem_lines(run, page)]
    room = (_UNLIMITED if height is None else height) - len(top) - 1
    is_wide = width >= _WIDE
    side_width = min(_MAX_SIDE, max(_MIN_SIDE, width // 3)) if is_wide else width
    chart_width = width - side_width - 3 if is_wide else width
    wished = _PRINTED_CHART if height is None else _MAX_CHART
    if is_wide:
        side = _side(run, page, side_width, room)
        high = room if height is not None else max(wished, len(side))
        charts = _charts(run, page, metrics, chart_width, min(high, room))
        body = _beside(charts, side, chart_width)
    else:
        least = min(room, _MIN_CHART * len(metrics))
        side = _side(run, page, side_width, room - least - 1)
        charts = _charts(
            run, page, metrics, chart_width, min(wished * len(metrics), room - len(side) - 1)
        )
        body = [*charts, Text(), *side] if side else charts
    lines = [*top, Text(), *body][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return Group(*lines)


def _charts(
    run: WatchedRun, page: Page, metrics: Sequence[str], width: int, height: int
) -> list[Text]:
    """The metrics' charts, in equal parts of the height."""
    each = min(_MAX_CHART, max(4, height // max(1, len(metrics))))
    found = (chart_part(run, name, page, width=width, height=each) for name in metrics)
    return [line for lines in found for line in lines]


def _side(run: WatchedRun, page: Page, width: int, room: int) -> list[Text]:
    """Numbers, evaluations and a sample, in this order as far as there is room."""
    numbers = number_lines(run, page, width)[: max(0, room)]
    left = room - len(numbers) - 1
    evaluated = _cut(eval_lines(run, page), left)
    left -= len(evaluated) + 1
    sample = sample_lines(run, page, width, min(_SAMPLE_LINES, left))
    lines: list[Text] = []
    for part in (numbers, evaluated, sample):
        lines += [Text(), *part] if lines and part else part
    return lines


def _cut(lines: list[Text], room: int) -> list[Text]:
    """As many of the lines as there is room for; the last says how many are missing."""
    if len(lines) <= room:
        return lines
    if room < 4:  # a title and its columns alone say nothing
        return []
    return [*lines[: room - 1], Text(f"{len(lines) - room + 1} more", "dim")]


def _beside(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    """Lines next to each other, the left ones filled up to their width."""
    lines = []
    for row in range(max(len(left), len(right))):
        line = left[row].copy() if row < len(left) else Text()
        line.truncate(width, overflow="ellipsis", pad=True)
        # Assembled, not added up: a sum takes the style of its first text for all of it.
        lines.append(Text.assemble(line, "   ", right[row]) if row < len(right) else line)
    return lines


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
    drawn = dict.fromkeys([*metrics, *(name for _, name, _ in SPARKS)])
    watched = _Watched(WatchedRun(folder, drawn=list(drawn)), console, metrics, last_steps)
    is_live = console.is_terminal and not console.is_dumb_terminal
    if is_once or (not is_live and every_s is None):
        watched.catch_up()
        watched.print_view()
    elif is_live:
        _show_live(watched, EVERY_S if every_s is None else every_s)
    else:
        _print_lines(watched, EVERY_S if every_s is None else every_s)


class _Watched:
    """A run, and the console on which it is shown."""

    def __init__(
        self, run: WatchedRun, console: Console, metrics: Sequence[str], last_steps: int | None
    ) -> None:
        self.run, self.console = run, console
        self._metrics, self._last_steps = metrics, last_steps
        self._signs = signs_for(console.encoding)

    def page(self) -> Page:
        """What to draw on, now."""
        done = self.run.completed_steps or 0
        first = 0 if self._last_steps is None else max(0, done - self._last_steps)
        return Page(self.console, self._signs, time.time(), first)

    def catch_up(self) -> None:
        """Read all that is there."""
        while self.run.look():
            pass

    def print_view(self) -> None:
        """The whole view, as lines that stay."""
        self.console.print(view(self.run, self.page(), metrics=self._metrics))
        if self._signs is ASCII:
            self.console.print(
                Text(f"(drawn in ASCII: {self.console.encoding} has no braille)", "dim")
            )

    def live_view(self) -> Group:
        """The view, no higher than the terminal."""
        return view(self.run, self.page(), metrics=self._metrics, height=self.console.height)


def _show_live(watched: _Watched, every_s: float) -> None:
    try:
        # Redrawn by this loop alone: a thread of its own would draw a run that is half read.
        with _unwound(), Live(console=watched.console, screen=True, auto_refresh=False) as live:
            has_more = True
            while has_more or not watched.run.is_finished:
                has_more = watched.run.look()
                live.update(watched.live_view(), refresh=True)
                if not has_more and not watched.run.is_finished:
                    time.sleep(every_s)
    finally:
        watched.print_view()


@contextmanager
def _unwound() -> Iterator[None]:
    """While entered, SIGTERM ends the process as an exception does: the terminal is put right."""
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _print_lines(watched: _Watched, every_s: float) -> None:
    run, told = watched.run, None
    while True:
        watched.catch_up()
        page = watched.page()
        # Not the line itself, in which the time left changes while nothing happens.
        state = (run.outcome, run.is_killed, run.is_quiet(page.now_s))
        news = (run.attempt, run.completed_steps, *state)
        if news != told:
            watched.console.print(Text(one_line(run, page)), soft_wrap=True)
            told = news
        if run.is_finished:
            return
        time.sleep(every_s)
