"""Two texts as blocks of lines that are equal or changed, and which words of a line changed.

Added and deleted lines are the fewest that turn one text into the other, as `diff --minimal` counts
them; where several places count the same, the one is taken that reads best. Nothing here knows of
files or of HTML. `difflib` is not exact: it takes the longest run first, whatever that costs
elsewhere, and is cubic where lines repeat. Here one row of the table of lengths is one integer with
a bit for each item of the left side (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004),
so that a row costs a few operations on long integers: two files of 5,000 lines take some 20 ms.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

# Rows kept between two that are made again on the way back: the square root of 65,536 lines.
_ROWS_KEPT = 256
# Masks of items that are this rare are made when needed: 50,000 of them would not fit in memory.
_FEW = 4
# Lines that share fewer of their words than this are not one line edited, but two lines.
_ALIKE = 0.5
# Cells of the table in which a block's lines are paired; larger blocks are rewrites, and are
# paired in order. Keeps a page of large blocks linear in its lines.
_MAX_CELLS = 1600
_WORD = re.compile(r"\w+|[^\w\s]")
# A run of letters or digits, a run of spaces, or one sign.
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
# Longer lines are data. Beyond their common ends all of them is marked, which costs nothing.
_MAX_TOKENS = 2000
Span = tuple[int, int]


def common_pairs(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Indexes of the items that stay, `(in left, in right)`, ascending; as many as there can be."""
    # Equal ends are in some longest answer; without them most edits are a few lines.
    head = _equal_run(left, right)
    tail = _equal_run(
        left[len(left) - 1 : head - 1 if head else None : -1],
        right[len(right) - 1 : head - 1 if head else None : -1],
    )
    left_end, right_end = len(left) - tail, len(right) - tail
    # What only one side has is in no common subsequence; most of an edit is of that kind.
    shared = set(islice(left, head, left_end)) & set(islice(right, head, right_end))
    rows = [index for index in range(head, right_end) if right[index] in shared]
    columns = [index for index in range(head, left_end) if left[index] in shared]
    middle = _aligned([left[index] for index in columns], [right[index] for index in rows])
    return [
        *((index, index) for index in range(head)),
        *((columns[column], rows[row]) for column, row in middle),
        *((left_end + offset, right_end + offset) for offset in range(tail)),
    ]


def _equal_run(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    pairs = zip(left, right, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _aligned(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The pairs of two sequences that share all their items, by the whole table of lengths.

    Bit `i` of row `j` is 0 where `left[i]` makes the longest common subsequence with `right[:j]`
    one longer. Only every 256th row is kept; the others are made again, block by block, backwards.
    """
    masks = _Masks(left)
    rows = [(1 << len(left)) - 1]
    for start in range(0, len(right), _ROWS_KEPT):
        # Only the last of each block is kept on the way forward.
        rows.append(_next_rows(rows[-1], masks, right[start : start + _ROWS_KEPT])[-1])
    found: list[tuple[int, int]] = []
    column = len(left)
    for block in reversed(range(len(rows) - 1)):
        start = block * _ROWS_KEPT
        kept = _next_rows(rows[block], masks, right[start : start + _ROWS_KEPT])
        for row in range(len(kept) - 1, 0, -1):
            while column and kept[row] >> (column - 1) & 1:
                column -= 1  # this item of the left side adds nothing, whatever comes before
            if column and kept[row - 1] >> (column - 1) & 1:
                # The row before did not count this item: this row is where it is matched.
                column -= 1
                found.append((column, start + row - 1))
    return found[::-1]


def _next_rows(row: int, masks: "_Masks", items: Sequence[Hashable]) -> list[int]:
    """The given row, and the one after each of the items."""
    rows = [row]
    for item in items:
        matched = row & masks.of(item)
        # The sum carries each match to the next 0, that is, to the match it takes the place of.
        row = ((row + matched) | (row - matched)) & masks.every
        rows.append(row)
    return rows


class _Masks:
    """For each item, the integer whose set bits are the places where the left side has it."""

    def __init__(self, left: Sequence[Hashable]) -> None:
        self.every = (1 << len(left)) - 1
        self._places: dict[Hashable, list[int]] = {}
        for index, item in enumerate(left):
            self._places.setdefault(item, []).append(index)
        self._frequent = {
            item: _with_bits(places) for item, places in self._places.items() if len(places) > _FEW
        }

    def of(self, item: Hashable) -> int:
        """The mask of an item that the left side has."""
        mask = self._frequent.get(item)
        return _with_bits(self._places[item]) if mask is None else mask


def _with_bits(places: Sequence[int]) -> int:
    mask = 0
    for place in places:
        mask |= 1 << place
    return mask


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


def word_changes(left: str, right: str) -> tuple[list[Span], list[Span]]:
    """The ranges of characters that only the left line has, and those only the right one has."""
    old, new = _TOKEN.findall(left), _TOKEN.findall(right)
    if max(len(old), len(new)) > _MAX_TOKENS:
        head = _equal_head(left, right)
        tail = _equal_head(left[head:][::-1], right[head:][::-1])
        return _unless_empty(head, len(left) - tail), _unless_empty(head, len(right) - tail)
    pairs = common_pairs(old, new)
    return _other_spans(old, {i for i, _ in pairs}), _other_spans(new, {j for _, j in pairs})


def _other_spans(tokens: list[str], kept: set[int]) -> list[Span]:
    """Where the tokens that are not kept stand, joined across single spaces between them."""
    spans: list[Span] = []
    at = 0
    for index, token in enumerate(tokens):
        end = at + len(token)
        if index not in kept:
            spans.append((at, end))
        at = end
    # Two words that were replaced are one mark, not two with a hole.
    text = "".join(tokens)
    joined: list[Span] = []
    for start, end in spans:
        if joined and text[joined[-1][1] : start].isspace() | (joined[-1][1] == start):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _equal_head(left: str, right: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # by halves: comparing slices is quick, comparing characters is not
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _unless_empty(start: int, end: int) -> list[Span]:
    return [(start, end)] if end > start else []
