"""A progress bar at the bottom of a terminal that leaves everybody else's printing readable.

While the bar is up, what is printed or logged to this terminal is sent through the bar's console,
which writes it above. Streams that go elsewhere (`2> errors.txt`) are left alone.
"""

import atexit
import logging
import sys
from collections.abc import Iterator
from typing import Any, TextIO, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

# Quoted: logging.StreamHandler takes a parameter for type checkers, but not at run time in 3.11.
_StreamHandler: TypeAlias = "logging.StreamHandler[Any]"

# The bar moves only when a row comes; what it redraws in between is the elapsed time.
_REFRESH_PER_SECOND = 4


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
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
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
        self._moved_handlers = _moved_log_handlers(before, (sys.stdout, sys.stderr))
        # A run that dies without `stop` would leave the terminal without a cursor.
        atexit.register(self.stop)

    def show(self, *, completed_steps: int, **fields: str) -> None:
        """Move the bar and replace the given texts (`loss`, `tokens_per_second`, `eta`)."""
        texts: dict[str, Any] = dict(fields)  # rich takes its own options by keyword beside them
        self._progress.update(self._task, completed=completed_steps, **texts)

    def stop(self) -> None:
        """Leave the bar as it is now, cursor and streams restored. May be called twice."""
        atexit.unregister(self.stop)
        for handler, stream in self._moved_handlers:
            handler.setStream(stream)
        self._moved_handlers = []
        self._progress.stop()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _moved_log_handlers(
    before: tuple[TextIO, TextIO], after: tuple[TextIO, TextIO]
) -> list[tuple[_StreamHandler, TextIO]]:
    """Point log handlers at the streams that replaced theirs; each with the stream it had.

    A handler keeps the stream it was made with, so replacing `sys.stderr` alone does not reach one
    made earlier, and its warning would land in the middle of the bar.
    """
    moved: list[tuple[_StreamHandler, TextIO]] = []
    for handler in _stream_handlers():
        for old, new in zip(before, after, strict=True):
            if old is not new and handler.stream is old:
                handler.setStream(new)
                moved.append((handler, old))
    return moved


def _stream_handlers() -> Iterator[_StreamHandler]:
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in loggers:
        # The rest are placeholders for names nobody asked for.
        if isinstance(logger, logging.Logger):
            yield from (h for h in logger.handlers if isinstance(h, logging.StreamHandler))
