"""How results are printed: whole, since a path or an id that is cut cannot be copied."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Wider than any terminal, which then wraps lines itself; rich would cut what does not fit.
_WIDTH = 4096
_SHOWN_CHARACTERS = 60


def print_table(table: Table) -> None:
    """Print a table as wide as its content."""
    Console(width=_WIDTH).print(table)


def say(text: str, style: str = "") -> None:
    """Print a line as it is: what is told may hold brackets of its own."""
    Console(width=_WIDTH, soft_wrap=True).print(Text(text, style=style))


def one_line(text: str, limit: int = _SHOWN_CHARACTERS) -> str:
    """How a text begins, on one line; what would end the line or move the cursor is escaped."""
    head = text[: limit + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in head)
    return shown if len(text) <= limit else f"{shown[:limit]}…"
