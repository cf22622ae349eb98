"""Watching a run in a terminal, from its folder: live, as plain lines, or once.

A terminal that can be drawn on shows the view on its second screen, which resizes cleanly, and has
the last view in its scrollback afterwards. Everything else gets text without any control codes.
"""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from chomp.report.watch.parts import SPARKS, Page, one_line
from chomp.report.watch.text_canvas import ASCII, signs_for
from chomp.report.watch.view import view
from chomp.report.watch.watched_run import WatchedRun
from chomp.storage.printable import PlainConsole

EVERY_S = 2.0


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
