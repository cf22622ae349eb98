"""Progress on the console for work that takes longer than a look."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from chomp.storage.printable import PlainConsole


@contextmanager
def progress_bar(
    description: str, *, total: int | None = None, unit: str = "documents"
) -> Iterator[Callable[[int], None]]:
    """A function to call with how much more is done. Gone from the console at the end.

    Without a total it counts. Where nothing can be redrawn, as in a log file, nothing is shown.
    """
    console = PlainConsole()
    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), TimeRemainingColumn()]
    with Progress(
        *columns,
        TextColumn("{task.completed:,.0f} " + unit),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    ) as progress:
        task = progress.add_task(description, total=total)
        yield lambda count: progress.advance(task, count)
