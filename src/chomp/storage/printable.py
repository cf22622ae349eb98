"""Text of others made safe for a terminal: what would be obeyed is shown instead.

A name, a value or a text in somebody's run folder may hold an escape sequence, which can move the
cursor, hide a line, or paste.
"""

import logging
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# What stands in the place of a sign that cannot be shown.
_UNSHOWN = "\ufffd"
# Controls of both kinds, line ends of other systems, signs that turn the order of a line around,
# and halves of a pair.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, encoding: str) -> str:
    """The text without what a terminal would obey, or what `encoding` cannot say."""
    # A model of bytes may well write an escape sequence: one can move the cursor, or paste.
    signs = text.replace("\r\n", "\n")
    shown = "".join(sign if sign.isprintable() or sign in "\n\t" else _UNSHOWN for sign in signs)
    return shown.encode(encoding, "replace").decode(encoding)


def escaped(text: str) -> str:
    r"""The text with `\x1b` and the like in the place of what a terminal would obey."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PlainConsole(Console):
    """A console that obeys nothing in what it is given: neither controls nor markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of whatever is printed; those of rich's own controls stay."""
        for segment in super().render(renderable, options):
            if segment.control is None and _OBEYED.search(segment.text):
                yield Segment(escaped(segment.text), segment.style)
            else:
                yield segment


class PlainFormatter(logging.Formatter):
    """Log messages whose lines a terminal shows as they are."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, escaped."""
        return escaped(super().format(record))
