"""A bar for work on rows or texts that takes more than a few seconds."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE_S = 5.0


@contextmanager
def rows_bar(description: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how much is done and how much there is; a bar after five seconds.

    On stderr, and gone at the end. Where nothing can be redrawn, as in a log file, none is shown.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from chomp.storage.printable import PlainConsole

    console = PlainConsole(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
    task = progress.add_task(description, total=1)
    began, is_shown = time.monotonic(), False

    def advance_to(done: int, total: int) -> None:
        nonlocal is_shown
        progress.update(task, completed=done, total=total)
        if not is_shown and time.monotonic() - began > _PATIENCE_S:
            is_shown = True
            progress.start()

    try:
        yield advance_to
    finally:
        progress.stop()
