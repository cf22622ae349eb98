"""The longest common subsequence of two sequences: what stays when one is edited into the other.

Exact, so the lines counted as added and deleted are the fewest that turn one file into the other,
as `diff --minimal` counts them. `difflib` is not exact: it takes the longest run first, whatever
that costs elsewhere, and is cubic where lines repeat. Here one row of the table of lengths is one
integer with a bit for each item of the left side (Hyyrö, "Bit-parallel LCS-length computation
revisited", 2004), so that a row costs a few operations on long integers: two files of 5,000 lines
take some 20 ms, alike or not.
"""

from collections.abc import Hashable, Sequence
from itertools import islice

# Rows kept between two that are made again on the way back: the square root of 65,536 lines.
_ROWS_KEPT = 256
# Masks of items that are this rare are made when needed: 50,000 of them would not fit in memory.
_FEW = 4


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
