"""What the checkpoint commands have in common: the checkpoint that is meant, a table, a bar."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations alone
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from chomp.checkpoint.layout import StepFolder

_PATIENCE_S = 5.0
_LOOKS = 3  # a run deletes one checkpoint at a time, and minutes pass until the next


def chosen(path: str) -> StepFolder:
    """The checkpoint that a path names, or the newest of its folder; it must be readable."""
    from chomp.checkpoint.layout import is_gone, opened, read_step_folder
    from chomp.checkpoint.places import place_of, some_at

    for _ in range(_LOOKS):
        # Not an older one in the place of one that cannot be read: nobody asked for that.
        newest = opened(some_at(place_of(path))[0].path)
        if not is_gone(newest.path):
            break
    return read_step_folder(newest.path)


def use_the_cpu() -> None:
    """Let this process leave accelerators alone: a run may be training on them meanwhile."""
    import jax

    jax.config.update("jax_platforms", "cpu")


def narrow_table(*headings: str) -> Table:
    """An empty table with these columns; more can be added.

    With nothing but a line under the headings: many columns have to fit into 80.
    """
    from rich import box
    from rich.table import Table

    return Table(
        *headings, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )


@contextmanager
def late_bar(description: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function to call with how many more bytes are done; after five seconds there is a bar.

    Gone from the console at the end. Where nothing can be redrawn, as in a log file, none is shown.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from chomp.storage.printable import PlainConsole

    console = PlainConsole(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
    task = progress.add_task(description, total=total_bytes)
    began, is_shown = time.monotonic(), False

    def advance(num_bytes: int) -> None:
        nonlocal is_shown
        progress.advance(task, num_bytes)
        if not is_shown and time.monotonic() - began > _PATIENCE_S:
            is_shown = True
            progress.start()

    try:
        yield advance
    finally:
        progress.stop()
