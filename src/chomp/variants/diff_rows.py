"""The lines of one compared file as HTML: changed blocks, their surroundings, and folds.

Every line is in the page once for each side, and both views are made of these by the style sheet:
side by side as they stand, unified by showing all left lines of a block before its right ones.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chomp.variants.line_changes import Block, Row, line_changes, paired_rows
from chomp.variants.marked_line import escaped, line_html
from chomp.variants.syntax_colours import Colour, colours_of
from chomp.variants.word_changes import Span, word_changes

# A longer line is shown in a window of its own that scrolls.
_LONG_LINE = 2000
_DEFINITION = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+\w+")


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
