"""One line of source as HTML: escaped, coloured, with its changed words marked.

What a browser would hide or act on is made visible: control characters, and the marks that reorder
text, with which source can be made to look like something it is not.
"""

import html
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from chomp.variants.syntax_colours import Colour
from chomp.variants.word_changes import Span

# Controls except the tab, what joins or reorders text without being seen, and surrogates, which
# stand for bytes that are not UTF-8.
_UNSEEN = re.compile(
    "[\0-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff]"
)
_NAMES = {"\r": "CR", "\f": "FF", "\0": "NUL", "\x1b": "ESC", "\ufeff": "BOM"}


def line_html(text: str, colours: Sequence[Colour] = (), marks: Sequence[Span] = ()) -> str:
    """The line without its end; `colours` and `marks` are ranges of it, each in order."""
    shown = text.removesuffix("\n")
    parts = []
    is_marked = False
    for start, end, colour, now_marked in _pieces(len(shown), colours, marks):
        if now_marked != is_marked:
            parts.append("<mark>" if now_marked else "</mark>")
            is_marked = now_marked
        inner = escaped(shown[start:end])
        parts.append(f'<span class="{colour}">{inner}</span>' if colour else inner)
    parts += ["</mark>"] if is_marked else []
    if not text.endswith("\n"):
        parts.append('<span class="unseen">no newline at end of file</span>')
    return "".join(parts)


def escaped(text: str) -> str:
    """The text for HTML, with what cannot be seen spelled out."""
    return _UNSEEN.sub(_spelled, html.escape(text))


def _spelled(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    is_byte = 0xDC80 <= code <= 0xDCFF  # how a byte that is not UTF-8 was decoded
    name = f"\\x{code - 0xDC00:02x}" if is_byte else _NAMES.get(character, f"U+{code:04X}")
    return f'<span class="unseen">{name}</span>'


def _pieces(
    length: int, colours: Sequence[Colour], marks: Sequence[Span]
) -> Iterator[tuple[int, int, str | None, bool]]:
    """Ranges in which neither colour nor mark changes, from the first character to the last."""
    spans = [*marks, *((start, end) for start, end, _ in colours)]
    cuts = {0, length, *(min(edge, length) for span in spans for edge in span)}
    edges = sorted(cuts)
    colour_at = mark_at = 0
    for start, end in pairwise(edges):
        # Both lists are in order, so each is walked once however long the line is.
        while colour_at < len(colours) and colours[colour_at][1] <= start:
            colour_at += 1
        while mark_at < len(marks) and marks[mark_at][1] <= start:
            mark_at += 1
        is_coloured = colour_at < len(colours) and colours[colour_at][0] <= start
        is_marked = mark_at < len(marks) and marks[mark_at][0] <= start
        yield start, end, colours[colour_at][2] if is_coloured else None, is_marked
