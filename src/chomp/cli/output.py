"""How results are printed: lines, tables, JSON, and progress bars on stderr."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from chomp.storage import json_text
from chomp.storage.printable import PlainConsole
from chomp.tracking.record import strict_json

# Wider than any terminal, which then wraps lines itself; rich would cut what does not fit.
_WIDTH = 4096
_SHOWN_CHARACTERS = 60
_GAP = 2  # between columns without borders
_QUIET_S = 5.0  # work that takes less has no progress bar


def say(text: str, style: str = "") -> None:
    """Print a line as it is: the text may hold brackets of its own."""
    PlainConsole(width=_WIDTH, soft_wrap=True).print(Text(text, style=style))


def print_json(content: Any) -> None:
    """Print data as JSON, for other programs."""
    print(json_text(strict_json(content), name="the results", indent=2))


def print_table(table: Table) -> None:
    """Print a table whole, since a path or an id that is cut cannot be copied.

    For a terminal that is too narrow, with fewer lines and text wrapped between words; if that does
    not fit either, as a list of each row's values.
    """
    whole = PlainConsole(width=_WIDTH)
    # A file or a pipe takes lines of any length.
    is_limited = whole.is_terminal or "COLUMNS" in os.environ
    width = PlainConsole().width if is_limited else _WIDTH
    if whole.measure(table).maximum <= width:
        whole.print(table)
        return
    table.box, table.show_edge, table.pad_edge = box.SIMPLE_HEAD, False, False
    table.collapse_padding = True
    # Room for the longest word of each column, and then for more of it, short columns first.
    longest, room = [], width - _GAP * (len(table.columns) - 1)
    for column in table.columns:
        texts = [str(column.header) * table.show_header, *map(str, column.cells)]
        longest.append(max(map(cell_len, texts)))
        words = texts if column.no_wrap else [word for text in texts for word in text.split()]
        column.width = max(map(cell_len, words), default=0)
        room -= column.width
    if room >= 0:
        shortest_first = sorted(zip(longest, table.columns, strict=True), key=lambda each: each[0])
        for length, column in shortest_first:
            more = min(length - (column.width or 0), room)
            column.width = (column.width or 0) + more
            room -= more
        whole.print(table)
        return
    if table.title is not None:
        whole.print(table.title)
    headings = [column.header for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        values = Table.grid(padding=(0, 2))
        for heading, value in zip(headings, row, strict=True):
            values.add_row(*([heading] if table.show_header else []), value)
        whole.print(values, "")


def print_rows(
    rows: Sequence[Mapping[str, Any]], *, title: str | None = None, right: Sequence[str] = ()
) -> None:
    """Print rows with the same keys as a table, a column for each key.

    Numbers, and columns named in `right`, are aligned to the right.
    """
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ():
        is_right = name in right or any(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if is_right else "left")
    for row in rows:
        table.add_row(*(Text(cell_text(value)) for value in row.values()))
    print_table(table)


def cell_text(value: Any) -> str:
    """A value as tables show it: `1,234`, `0.5`, `-` for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def shorten(text: str, limit: int = _SHOWN_CHARACTERS) -> str:
    """The beginning of a text, on one line; line ends and terminal controls are escaped."""
    head = text[: limit + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in head)
    return shown if len(text) <= limit else f"{shown[:limit]}…"


@contextmanager
def progress_bar(
    description: str, *, unit: Literal["bytes", "rows", "texts"]
) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how much is done and how much there is; a bar after five seconds.

    On stderr, and removed at the end. None is shown where nothing can be redrawn, as in a log file.
    """
    console = PlainConsole(stderr=True)
    of_texts = TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if unit == "bytes" else of_texts,
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
        if not is_shown and time.monotonic() - began > _QUIET_S:
            is_shown = True
            progress.start()

    try:
        yield advance_to
    finally:
        progress.stop()


@contextmanager
def byte_bar(description: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function to call with how many more bytes are done; a bar after five seconds."""
    done = 0
    with progress_bar(description, unit="bytes") as advance_to:

        def advance(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            advance_to(done, total_bytes)

        yield advance
