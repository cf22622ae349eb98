"""The lines of one compared file as HTML: changed blocks, their surroundings, folds and colours.

Every line is in the page once for each side, and both views are made of these by the style sheet:
side by side as they stand, unified by showing all left lines of a block before its right ones.
What a browser would hide or act on is made visible: control characters, and the marks that reorder
text, with which source can be made to look like something it is not. Colours are by Python's own
tokenizer; what it has not seen when it gives up is coloured line by line.
"""

import builtins
import html
import keyword
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chomp.variants.line_changes import Block, Row, Span, line_changes, paired_rows, word_changes

# Start and end in a line, and a class: keyword, string, comment, number, function or class being
# defined, decorator, built-in name.
Colour = tuple[int, int, str]

# Lines beyond this are data, and some tokenizers take quadratic time in the length of a line.
_MAX_CHARACTERS = 5000
_BUILTINS = frozenset(name for name in dir(builtins) if name.islower() and name[0] != "_")
_KINDS = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number"}
_ANY = re.compile(
    r"""(?P<comment>\#.*)
    |(?P<string>(?:\b[rbfuRBFU]{1,2})?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<number>\b\d[\w.]*)
    |(?P<word>\b[A-Za-z_]\w*)""",
    re.VERBOSE,
)
# Controls except the tab, what joins or reorders text without being seen, and surrogates, which
# stand for bytes that are not UTF-8.
_UNSEEN = re.compile(
    "[\0-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff]"
)
_NAMES = {"\r": "CR", "\f": "FF", "\0": "NUL", "\x1b": "ESC", "\ufeff": "BOM"}
# A longer line is shown in a window of its own that scrolls.
_LONG_LINE = 2000
_DEFINITION = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+\w+")


def colours_of(path: str, lines: Sequence[str]) -> list[list[Colour]]:
    """For each line, its coloured ranges in order; none for files that are not Python."""
    if not path.endswith((".py", ".pyi")) or any(len(line) > _MAX_CHARACTERS for line in lines):
        return [[] for _ in lines]
    found: list[list[Colour]] = [[] for _ in lines]
    seen = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the source that is shown, not of ours
            for token, colour in _coloured(lines):
                seen = token.end[0]
                _put(found, lines, token, colour)
    except (tokenize.TokenError, SyntaxError, ValueError):
        for index in range(seen, len(lines)):
            found[index] = list(_by_line(lines[index]))
    return found


def _coloured(lines: Sequence[str]) -> Iterator[tuple[tokenize.TokenInfo, str | None]]:
    """Each token and its colour, if it has one."""
    before = ""
    for token in tokenize.generate_tokens(iter(lines).__next__):
        colour = _KINDS.get(token.type)
        if token.type == tokenize.NAME:
            colour = _colour_of_name(token.string, before)
        # From Python 3.12 on, the parts of an f-string are tokens of their own.
        elif "STRING" in tokenize.tok_name[token.type]:
            colour = "string"
        elif token.string == "@" and not token.line[: token.start[1]].strip():
            colour = "decorator"
        yield token, colour
        before = token.string


def _colour_of_name(name: str, before: str) -> str | None:
    if before in ("def", "class"):
        return "definition"
    if before == "@":
        return "decorator"
    if keyword.iskeyword(name):
        return "keyword"
    return "builtin" if name in _BUILTINS and before != "." else None


def _put(
    found: list[list[Colour]], lines: Sequence[str], token: tokenize.TokenInfo, colour: str | None
) -> None:
    """Note the colour on each line the token covers, behind what is noted already."""
    (first, start), (last, end) = token.start, token.end
    for number in range(first, min(last, len(lines)) + 1) if colour else ():
        line = lines[number - 1].rstrip("\n")
        spans = found[number - 1]
        begin = max(start if number == first else 0, spans[-1][1] if spans else 0)
        stop = min(end, len(line)) if number == last else len(line)
        if begin < stop and colour:
            spans.append((begin, stop, colour))


def _by_line(line: str) -> Iterator[Colour]:
    before = ""
    for match in _ANY.finditer(line):
        colour = match.lastgroup
        if colour == "word":
            colour = _colour_of_name(match.group(), before)
        if colour:
            yield match.start(), match.end(), colour
        before = match.group()


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


@dataclass(frozen=True)
class Sides:
    """A file's lines before and after, with their colours."""

    left: Sequence[str]
    right: Sequence[str]
    left_colours: Sequence[Sequence[Colour]]
    right_colours: Sequence[Sequence[Colour]]


def rows_html(path: str, left: Sequence[str], right: Sequence[str], context_lines: int) -> str:
    """The comparison of two texts; more than `context_lines` equal lines in a row are folded."""
    sides = Sides(left, right, colours_of(path, left), colours_of(path, right))
    blocks = line_changes(left, right)
    parts: list[str] = []
    for index, block in enumerate(blocks):
        if block.is_equal:
            # At the beginning and the end of a file there is no change to give context to.
            above = context_lines if index else 0
            below = context_lines if index + 1 < len(blocks) else 0
            parts += _surroundings(block, sides, above, below)
        else:
            parts.append(f'<div class="block change">{_block_html(block, sides)}</div>')
    return "\n".join(parts)


def _surroundings(block: Block, sides: Sides, above: int, below: int) -> Iterator[str]:
    """An equal block: lines that stay in sight at its ends, and a fold between them."""
    length = block.left_end - block.left_start
    hidden = length - above - below
    # A fold of one line would take as much room as the line.
    cuts = [0, length] if hidden < 2 else [0, above, length - below, length]
    for number, (start, end) in enumerate(pairwise(cuts)):
        if start == end:
            continue
        part = _block_html(_part(block, start, end), sides)
        shown = f'<div class="block">{part}</div>'
        is_fold = len(cuts) > 2 and number == 1
        yield _fold(shown, hidden, _place(block, sides, end)) if is_fold else shown


def _part(block: Block, start: int, end: int) -> Block:
    left, right = block.left_start, block.right_start
    return Block(True, left + start, left + end, right + start, right + end)


def _fold(inner: str, num_lines: int, place: str) -> str:
    return (
        f'<details class="fold"><summary><span>{num_lines:,} unchanged lines</span>'
        f"<code>{escaped(place)}</code></summary>{inner}</details>"
    )


def _place(block: Block, sides: Sides, end: int) -> str:
    """The definition that the first line after a fold belongs to, as far as a name tells it."""
    for line in reversed(sides.right[block.right_start : block.right_start + end]):
        match = _DEFINITION.match(line)
        if match:
            return match.group().strip()
    return ""


def _block_html(block: Block, sides: Sides) -> str:
    cells: list[str] = []
    for row in paired_rows(block, sides.left, sides.right):
        cells += _equal_cells(row, sides) if block.is_equal else _changed_cells(row, sides)
    return "".join(cells)


def _equal_cells(row: Row, sides: Sides) -> Iterator[str]:
    old, new = row.left or 0, row.right or 0
    # Both sides are the same text; the colours may differ only if a string began further up.
    left = line_html(sides.left[old], sides.left_colours[old])
    right = line_html(sides.right[new], sides.right_colours[new])
    long = _long(sides.left[old])
    yield f'<div class="l{long}" data-n="{old + 1}">{left}</div>'
    yield f'<div class="r{long}" data-o="{old + 1}" data-n="{new + 1}">{right}</div>'


def _changed_cells(row: Row, sides: Sides) -> Iterator[str]:
    marks: tuple[list[Span], list[Span]] = ([], [])
    if row.is_pair and row.left is not None and row.right is not None:
        old, new = sides.left[row.left], sides.right[row.right]
        # The end of a line is told in words where it is missing, and is no word itself.
        marks = word_changes(old.removesuffix("\n"), new.removesuffix("\n"))
    yield _cell("l del", row.left, sides.left, sides.left_colours, marks[0])
    yield _cell("r add", row.right, sides.right, sides.right_colours, marks[1])


def _cell(
    kind: str,
    index: int | None,
    lines: Sequence[str],
    colours: Sequence[Sequence[Colour]],
    marks: Sequence[Span],
) -> str:
    if index is None:
        return f'<div class="{kind[0]} none"></div>'
    text = line_html(lines[index], colours[index], marks)
    return f'<div class="{kind}{_long(lines[index])}" data-n="{index + 1}">{text}</div>'


def _long(line: str) -> str:
    return " long" if len(line) > _LONG_LINE else ""
