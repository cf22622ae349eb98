"""Two texts as blocks of lines that are equal or changed, and the rows a reader compares.

Which lines count as changed is `longest_common`'s; where several places count the same, the one is
taken that reads best. Nothing here knows of files or of HTML.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from chomp.variants.longest_common import common_pairs

# Lines that share fewer of their words than this are not one line edited, but two lines.
_ALIKE = 0.5
# Cells of the table in which a block's lines are paired; larger blocks are rewrites, and are
# paired in order. Keeps a page of large blocks linear in its lines.
_MAX_CELLS = 1600
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Block:
    """Lines `left_start:left_end` of one text, and where they stand or what they became."""

    is_equal: bool
    left_start: int
    left_end: int
    right_start: int
    right_end: int

    @property
    def deleted(self) -> int:
        """Lines of the left text that are not in the right one."""
        return 0 if self.is_equal else self.left_end - self.left_start

    @property
    def added(self) -> int:
        """Lines of the right text that are not in the left one."""
        return 0 if self.is_equal else self.right_end - self.right_start


@dataclass(frozen=True)
class Row:
    """One line of a side-by-side view. `is_pair`: the right line is the left one, edited."""

    left: int | None
    right: int | None
    is_pair: bool


def line_changes(left: Sequence[str], right: Sequence[str]) -> list[Block]:
    """Blocks that cover both texts in order, equal and changed ones in turn."""
    blocks = list(_blocks(common_pairs(left, right), len(left), len(right)))
    for index, block in enumerate(blocks):
        # At the ends of a text there is nothing to move over; a replacement cannot move.
        before = blocks[index - 1] if index else None
        after = blocks[index + 1] if index + 1 < len(blocks) else None
        if before and after and not block.is_equal and 0 in (block.deleted, block.added):
            shift = _best_shift(block, before, after, right if block.added else left)
            blocks[index - 1] = _moved(before, 0, shift)
            blocks[index] = _moved(block, shift, shift)
            blocks[index + 1] = _moved(after, shift, 0)
    return blocks


def paired_rows(block: Block, left: Sequence[str], right: Sequence[str]) -> list[Row]:
    """The lines of a block side by side, an edited line beside what it was."""
    old = range(block.left_start, block.left_end)
    new = range(block.right_start, block.right_end)
    if block.is_equal:
        return [Row(i, j, False) for i, j in zip(old, new, strict=True)]
    pairs = _alike_pairs([_words(left[i]) for i in old], [_words(right[j]) for j in new])
    rows: list[Row] = []
    i_next, j_next = old.start, new.start
    for i, j in [*((old[i], new[j]) for i, j in pairs), (old.stop, new.stop)]:
        # Lines between two pairs share rows too, which keeps the two sides at one height.
        gap = zip_longest(range(i_next, i), range(j_next, j))
        rows += [Row(a, b, False) for a, b in gap]
        rows += [Row(i, j, True)] if i < old.stop and j < new.stop else []
        i_next, j_next = i + 1, j + 1
    return rows


def _blocks(pairs: Sequence[tuple[int, int]], num_left: int, num_right: int) -> Iterator[Block]:
    i = j = start = 0
    for at, (next_i, next_j) in enumerate([*pairs, (num_left, num_right)]):
        if (next_i, next_j) != (i, j):
            if at > start:
                yield Block(True, i - (at - start), i, j - (at - start), j)
            yield Block(False, i, next_i, j, next_j)
            start = at
        elif at == len(pairs) and at > start:
            yield Block(True, i - (at - start), i, j - (at - start), j)
        i, j = next_i + 1, next_j + 1


def _moved(block: Block, by_start: int, by_end: int) -> Block:
    return Block(
        block.is_equal,
        block.left_start + by_start,
        block.left_end + by_end,
        block.right_start + by_start,
        block.right_end + by_end,
    )


def _best_shift(block: Block, before: Block, after: Block, lines: Sequence[str]) -> int:
    """How far to move a block that only adds or only deletes, so that it begins where code does.

    Among equal lines a block can stand at several places. A function that was added is then not
    shown as the end of the one above it and its own beginning.
    """
    start, end = (
        (block.right_start, block.right_end) if block.added else (block.left_start, block.left_end)
    )
    up = down = 0
    # One equal line stays on either side, so that blocks never meet.
    while (
        up + 1 < before.left_end - before.left_start
        and lines[start - up - 1] == lines[end - up - 1]
    ):
        up += 1
    while down + 1 < after.left_end - after.left_start and lines[start + down] == lines[end + down]:
        down += 1
    return min(range(-up, down + 1), key=lambda by: (*_rank(lines, start + by, end + by), -by))


def _rank(lines: Sequence[str], start: int, end: int) -> tuple[int, bool]:
    """Lower is better: the indentation of the first line with text, and whether it is not first."""
    for index in range(start, end):
        text = lines[index].lstrip()
        if text:
            return len(lines[index]) - len(text), index > start
    return 0, True


def _words(line: str) -> frozenset[str]:
    return frozenset(_WORD.findall(line))


def _alike_pairs(
    old: Sequence[frozenset[str]], new: Sequence[frozenset[str]]
) -> list[tuple[int, int]]:
    """Pairs of lines, ascending on both sides, with the greatest sum of likeness."""
    if len(old) * len(new) > _MAX_CELLS:
        return [(k, k) for k in range(min(len(old), len(new))) if _likeness(old[k], new[k])]
    # best[i][j]: the sum for what follows line i of one side and line j of the other.
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    alike = [[_likeness(a, b) for b in new] for a in old]
    for i in reversed(range(len(old))):
        for j in reversed(range(len(new))):
            both = alike[i][j] and alike[i][j] + best[i + 1][j + 1]
            best[i][j] = max(both, best[i + 1][j], best[i][j + 1])
    pairs = []
    i = j = 0
    # Forwards along the way that gave the best sum.
    while i < len(old) and j < len(new):
        if alike[i][j] and best[i][j] == alike[i][j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _likeness(a: frozenset[str], b: frozenset[str]) -> float:
    """The share of words that two lines have in common; 0 if that is too few to be one line."""
    share = 2 * len(a & b) / (len(a) + len(b)) if a and b else 0.0
    return share if share >= _ALIKE else 0.0
