"""Plans for rows of whole documents: which pieces share a row, computed from lengths alone.

No token is read here. Best-fit decreasing: pieces are placed longest first, each into the fullest
row that still has room. A plan holds every piece exactly once and no row is overfull.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from chomp.errors import DataError

# Axes: N documents, P pieces, R rows.

LongDocuments = Literal["split", "truncate", "drop"]

# Documents planned together. Memory is bounded by it, and what the last rows of a window waste is
# a few rows in ten thousands.
PACKING_WINDOW = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """Documents cut to the length of a row; pieces are in the order of documents and offsets."""

    document: Int[np.ndarray, " P"]
    offset: Int[np.ndarray, " P"]  # of the piece's first token in its document
    length: Int[np.ndarray, " P"]
    dropped_tokens: int  # what "truncate" and "drop" leave out


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedPlan:
    """Row i holds the pieces `order[row_ends[i - 1] : row_ends[i]]`, in ascending order."""

    order: Int[np.ndarray, " P"]
    row_ends: Int[np.ndarray, " R"]

    @property
    def pieces_per_row(self) -> Int[np.ndarray, " R"]:
        """How many pieces each row holds."""
        return np.diff(self.row_ends, prepend=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedWindow:
    """The rows of one window of documents, as pieces in the order of rows."""

    document: Int[np.ndarray, " P"]
    offset: Int[np.ndarray, " P"]
    length: Int[np.ndarray, " P"]
    pieces_per_row: Int[np.ndarray, " R"]
    long_documents: int  # documents longer than a row
    dropped_tokens: int


def cut_documents(lengths: Int[np.ndarray, " N"], row_len: int, rule: LongDocuments) -> Pieces:
    """The documents as pieces of at most `row_len` tokens; an empty document makes none.

    Documents longer than a row are split every `row_len` tokens, truncated to the first `row_len`,
    or dropped.
    """
    if rule == "split":
        counts = -(-lengths // row_len)
    elif rule == "truncate":
        counts = (lengths > 0).astype(np.int64)
    else:
        counts = ((lengths > 0) & (lengths <= row_len)).astype(np.int64)
    document = np.repeat(np.arange(len(lengths)), counts)
    number_in_document = np.arange(len(document)) - (np.cumsum(counts) - counts)[document]
    offset = number_in_document * row_len
    length = np.minimum(lengths[document] - offset, row_len)
    return Pieces(
        document=document,
        offset=offset,
        length=length,
        dropped_tokens=int(lengths.sum() - length.sum()),
    )


def pack(lengths: Int[np.ndarray, " P"], row_len: int, max_documents: int) -> PackedPlan:
    """Rows of at most `row_len` tokens and `max_documents` pieces that hold every piece once.

    Of the rows with equal room the one with the fewest free places is taken, of those the one that
    has waited longest. Rows are in the order of their first pieces, so a plan follows the order of
    documents as far as packing lets it. A quarter of a microsecond a piece (web lengths).
    """
    _require_fitting(lengths, row_len, max_documents)
    open_rows, rows = _OpenRows(row_len, max_documents), list[int]()
    sizes, counts = np.unique(lengths, return_counts=True)
    for size, count in zip(sizes[::-1].tolist(), counts[::-1].tolist(), strict=True):
        rows += open_rows.place(size, count)
    row_of_piece = np.empty(len(lengths), np.int64)
    row_of_piece[np.argsort(-lengths, kind="stable")] = rows
    return _in_order(row_of_piece, max(rows, default=-1) + 1)


def pack_windows(
    windows: Iterable[tuple[int, Int[np.ndarray, " N"]]],
    row_len: int,
    *,
    max_documents: int,
    rule: LongDocuments,
) -> Iterator[PackedWindow]:
    """The rows of each window (number of its first document, lengths of its documents).

    Document numbers that come back count from the beginning of the store, offsets within documents.
    """
    for first_document, lengths in windows:
        pieces = cut_documents(lengths, row_len, rule)
        plan = pack(pieces.length, row_len, max_documents)
        yield PackedWindow(
            document=first_document + pieces.document[plan.order],
            offset=pieces.offset[plan.order],
            length=pieces.length[plan.order],
            pieces_per_row=plan.pieces_per_row,
            long_documents=int((lengths > row_len).sum()),
            dropped_tokens=pieces.dropped_tokens,
        )


def _in_order(row_of_piece: Int[np.ndarray, " P"], num_rows: int) -> PackedPlan:
    """The plan with rows renumbered in the order of their first pieces."""
    first_piece = np.empty(num_rows, np.int64)
    # Written from the last piece to the first, so a row's first piece is what stays.
    first_piece[row_of_piece[::-1]] = np.arange(len(row_of_piece))[::-1]
    rank = np.empty(num_rows, np.int64)
    rank[np.argsort(first_piece)] = np.arange(num_rows)
    row_of_piece = rank[row_of_piece]
    return PackedPlan(
        order=np.argsort(row_of_piece, kind="stable"),
        row_ends=np.cumsum(np.bincount(row_of_piece, minlength=num_rows)),
    )


class _OpenRows:
    """Rows that still have room, and the one rule of best fit.

    Rows with equal room and equal free places are alike, so they wait in one queue. Its key is
    `room * base + places`: sorted keys are rows from the fullest to the emptiest.
    """

    def __init__(self, row_len: int, max_documents: int) -> None:
        self._base = max_documents + 1
        self._new_key = row_len * self._base + max_documents
        self._new_capacity = row_len, max_documents
        self._num_rows = 0
        self._keys: list[int] = []
        self._queues: dict[int, list[int]] = {}

    def place(self, size: int, left: int) -> list[int]:
        """The rows that take `left` pieces of one size, which is below all sizes before it."""
        keys, placed, moved = self._keys, list[int](), list[tuple[int, list[int]]]()
        start = used = bisect_left(keys, size * self._base)
        while left:
            if used == len(keys):
                self._open(size, left)
            room, places = divmod(keys[used], self._base)
            queue = self._queues[keys[used]]
            # A row that took a piece is now the fullest with room, so it takes all that it can.
            each = min(room // size, places, left)
            rows = queue[: left // each]
            placed += rows if each == 1 else [row for row in rows for _ in range(each)]
            left -= each * len(rows)
            moved.append((keys[used] - each * (size * self._base + 1), rows))
            del queue[: len(rows)]
            used += not queue
        for key in keys[start:used]:
            del self._queues[key]
        del keys[start:used]
        for key, rows in moved:
            self._enqueue(key, rows)
        return placed

    def _open(self, size: int, left: int) -> None:
        # As many new rows as the pieces need, so that none of them stays empty.
        row_len, max_documents = self._new_capacity
        count = -(-left // min(row_len // size, max_documents))
        self._keys.append(self._new_key)
        self._queues[self._new_key] = list(range(self._num_rows, self._num_rows + count))
        self._num_rows += count

    def _enqueue(self, key: int, rows: list[int]) -> None:
        if key < self._base or key % self._base == 0:
            return  # no room or no place is left
        if key in self._queues:
            self._queues[key] += rows
        else:
            self._queues[key] = rows
            insort(self._keys, key)


def _require_fitting(lengths: Int[np.ndarray, " P"], row_len: int, max_documents: int) -> None:
    if max_documents < 1 or row_len < 1:
        raise DataError(
            f"rows of {row_len} tokens and {max_documents} documents",
            allowed="at least 1 token and at least 1 document",
            fix="raise the row length, or the limit on documents in a row",
        )
    if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= row_len:
        raise DataError(
            f"pieces of {lengths.min()} to {lengths.max()} tokens for rows of {row_len}",
            allowed=f"pieces of 1 to {row_len} tokens",
            fix="cut the documents with cut_documents first",
        )
