"""How results are printed: whole, since a path or an id that is cut cannot be copied."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations alone
    from rich.table import Table

# Wider than any terminal, which then wraps lines itself; rich would cut what does not fit.
_WIDTH = 4096
_SHOWN_CHARACTERS = 60


def print_table(table: Table) -> None:
    """Print a table as wide as its content."""
    from chomp.storage.printable import PlainConsole

    PlainConsole(width=_WIDTH).print(table)


def say(text: str, style: str = "") -> None:
    """Print a line as it is: what is told may hold brackets of its own."""
    from rich.text import Text

    from chomp.storage.printable import PlainConsole

    PlainConsole(width=_WIDTH, soft_wrap=True).print(Text(text, style=style))


def one_line(text: str, limit: int = _SHOWN_CHARACTERS) -> str:
    """How a text begins, on one line; what would end the line or move the cursor is escaped."""
    head = text[: limit + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in head)
    return shown if len(text) <= limit else f"{shown[:limit]}…"
