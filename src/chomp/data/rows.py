"""Rows of a store, each a function of its number alone: windows over its line, or packed documents.

Training windows lie side by side. Evaluation windows overlap by one token, so that every token is
predicted exactly once, and the last, shorter one is padded: nothing is dropped. A store in which
nothing is predicted has no evaluation window. Packed rows hold whole documents, several short ones
side by side, with padding where none fits.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from chomp.data.packing import (
    PIECE_LENGTHS,
    PIECE_STARTS,
    PLAN_SHARD,
    ROW_ENDS,
    PackingRule,
    plan_folder,
)
from chomp.data.store.array import FlatArray
from chomp.data.store.store import TokenStore
from chomp.data.store.verify import PLAN
from chomp.errors import DataError, require
from chomp.kernels.attention.mask import PAD_SEGMENT
from chomp.storage import join, read_json

# Axes: N rows, T tokens of a row, P pieces of documents, L tokens of all rows without padding.


@dataclass(frozen=True, kw_only=True, eq=False)
class RowBatch:
    """Rows as arrays: token ids, the document of each position, and weights if the store has any.

    Segments count the documents of a row from 0; padding is token 0 in segment -1. A weight scores
    the prediction of the token after it.
    """

    tokens: Int[np.ndarray, "N T"]
    segment_ids: Int[np.ndarray, "N T"]
    loss_weights: Float[np.ndarray, "N T"] | None = None
    # The store's number of segment 0, where the others are those that follow: in windows.
    first_documents: Int[np.ndarray, " N"] | None = None

    @staticmethod
    def empty(count: int, seq_len: int) -> "RowBatch":
        """Rows that count for nothing."""
        shape = (count, seq_len)
        return RowBatch(
            tokens=np.zeros(shape, np.int32), segment_ids=np.full(shape, PAD_SEGMENT, np.int32)
        )

    def take(self, rows: Bool[np.ndarray, " N"]) -> "RowBatch":
        """Some of the rows."""
        return self._with_each(lambda values: values[rows])

    def padded_to(self, count: int) -> "RowBatch":
        """The rows, and empty ones behind them up to `count`."""
        lacking = count - len(self.tokens)
        if lacking == 0:  # most batches: nothing is copied
            return self
        padded = self._with_each(lambda x: np.pad(x, ((0, lacking), (0, 0))[: x.ndim]))
        padded.segment_ids[-lacking:] = PAD_SEGMENT
        return padded

    def _with_each(self, function: Callable[[np.ndarray], np.ndarray]) -> "RowBatch":
        arrays = {name: values for name, values in vars(self).items() if values is not None}
        return replace(self, **{name: function(values) for name, values in arrays.items()})


class Piece(NamedTuple):
    """A part of a row: `length` tokens of the store's line from `start` on, at `column`."""

    start: int
    length: int
    column: int = 0


class ConcatRows:
    """Windows over the line, wherever documents begin and end."""

    def __init__(self, store: TokenStore, seq_len: int, *, is_eval: bool = False) -> None:
        require_row_len(seq_len)
        self.store = store
        self.seq_len = seq_len
        self._stride = seq_len - 1 if is_eval else seq_len
        if is_eval:
            # The first token is never a target; each row adds `stride` targets.
            self.num_rows = max(-(-(store.num_tokens - 1) // self._stride), 0)
        else:
            self.num_rows = store.num_tokens // seq_len
            # Nothing to train on is a mistake; nothing held out is reported by evaluation.
            _require_rows(self)

    def read(self, rows: Int[np.ndarray, " N"]) -> RowBatch:
        """Those rows, in the order asked for."""
        starts = rows * self._stride
        lengths = np.minimum(self.seq_len, self.store.num_tokens - starts)
        tokens = self.store.read(starts, lengths)
        weights = self.store.read_loss_weights(starts, lengths)
        # A document that begins inside a window raises the segment of all positions from there on.
        first_documents, window, place = self.store.documents.beginnings(starts, lengths)
        segments = np.zeros((len(rows), self.seq_len), np.int32)
        segments[window, place] = 1
        np.cumsum(segments, axis=1, out=segments)
        is_token: Bool[np.ndarray, "N T"] | None = None
        if len(tokens) < segments.size:  # the last window of an evaluation
            is_token = np.arange(self.seq_len) < lengths[:, None]
            segments[~is_token] = PAD_SEGMENT
        return _row_batch(tokens, segments, is_token, weights, first_documents)

    def pieces(self, row: int) -> list[Piece]:
        """One piece: the window."""
        start = row * self._stride
        return [Piece(start, min(self.seq_len, self.store.num_tokens - start))]

    def rows_with(self, start: int, stop: int) -> list[int]:
        """The rows that hold any token of start..stop-1 of the store's line."""
        first = max(start - (self.seq_len - self._stride), 0) // self._stride
        return list(range(first, min((stop - 1) // self._stride + 1, self.num_rows)))


class PackedRows:
    """The packed rows of one store; row i is a function of i alone."""

    def __init__(self, store: TokenStore, rule: PackingRule) -> None:
        require_row_len(rule.row_len)
        self.store = store
        self.seq_len = rule.row_len
        folder = plan_folder(store, rule)
        # num_rows, num_pieces, kept_tokens, dropped_tokens, long_documents.
        self.figures: dict[str, Any] = read_json(join(folder, PLAN))
        self.num_rows = self.figures["num_rows"]
        _require_rows(self)
        self._row_ends = FlatArray.open(join(folder, ROW_ENDS))
        self._starts = FlatArray.open(join(folder, PIECE_STARTS))
        self._lengths = FlatArray.open(join(folder, PIECE_LENGTHS))

    def read(self, rows: Int[np.ndarray, " N"]) -> RowBatch:
        """Those rows, in the order asked for."""
        first, counts = self._pieces_of(rows)
        starts = self._starts.read(first, counts)
        lengths = self._lengths.read(first, counts)
        return rows_of_pieces(
            self.store.read(starts, lengths),
            lengths,
            counts,
            self.seq_len,
            weights=self.store.read_loss_weights(starts, lengths),
        )

    def pieces(self, row: int) -> list[Piece]:
        """What a row is made of, in order."""
        first, counts = self._pieces_of(np.asarray([row]))
        starts, lengths = self._starts.read(first, counts), self._lengths.read(first, counts)
        columns = np.cumsum(lengths) - lengths
        return list(map(Piece, starts.tolist(), lengths.tolist(), columns.tolist()))

    def rows_with(self, start: int, stop: int) -> list[int]:
        """The rows that hold any token of start..stop-1; reads the plan from its beginning."""

        def end_of(row: int) -> int:
            return int(self._row_ends.read(np.asarray([row]), np.asarray([1]))[0])

        found: set[int] = set()
        for first in range(0, len(self._starts), PLAN_SHARD):
            span = np.asarray([first]), np.asarray([min(PLAN_SHARD, len(self._starts) - first)])
            starts, lengths = self._starts.read(*span), self._lengths.read(*span)
            hits = first + np.flatnonzero((starts < stop) & (starts + lengths > start))
            numbers = range(self.num_rows)
            found |= {bisect.bisect_right(numbers, hit, key=end_of) for hit in hits.tolist()}
        return sorted(found)

    def _pieces_of(
        self, rows: Int[np.ndarray, " N"]
    ) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """The first piece of each row, and how many it has."""
        # In one read: the end of the row before, which row 0 has not, and that of the row.
        counts = np.where(rows == 0, 1, 2)
        ends = self._row_ends.read(np.maximum(rows - 1, 0), counts)
        last = np.cumsum(counts) - 1
        first = np.where(rows == 0, 0, ends[last - 1])
        return first, ends[last] - first


Rows = ConcatRows | PackedRows


def rows_of_pieces(
    tokens: Num[np.ndarray, " L"],
    lengths: Int[np.ndarray, " P"],
    counts: Int[np.ndarray, " N"],
    seq_len: int,
    *,
    weights: Num[np.ndarray, " L"] | None,
) -> RowBatch:
    """Packed rows from the tokens of their pieces in one line; `counts` are pieces of each row."""
    row_of_piece = np.repeat(np.arange(len(counts)), counts)
    number_in_row = np.arange(len(lengths)) - np.repeat(np.cumsum(counts) - counts, counts)
    row_tokens = np.bincount(row_of_piece, lengths, minlength=len(counts))
    is_token = np.arange(seq_len) < row_tokens[:, None]
    segments = np.full(is_token.shape, PAD_SEGMENT, np.int32)
    segments[is_token] = np.repeat(number_in_row, lengths)
    return _row_batch(tokens, segments, is_token, weights)


def require_row_len(seq_len: int) -> None:
    """Refuse rows in which nothing is predicted."""
    require(
        seq_len >= 2,
        f"rows of {seq_len} tokens",
        allowed="2 tokens or more: one that is read and one that is predicted",
        fix="raise train.seq_len",
    )


def _row_batch(
    tokens: Num[np.ndarray, " L"],
    segments: Int[np.ndarray, "N T"],
    is_token: Bool[np.ndarray, "N T"] | None,
    weights: Num[np.ndarray, " L"] | None,
    first_documents: Int[np.ndarray, " N"] | None = None,
) -> RowBatch:
    """Rows from their tokens in one line; `is_token` None: everywhere is one."""
    shape = segments.shape
    return RowBatch(
        tokens=_spread(tokens, shape, is_token, np.int32),
        segment_ids=segments,
        loss_weights=None if weights is None else _spread(weights, shape, is_token, np.float32),
        first_documents=first_documents,
    )


# Not inside of `_row_batch`: its annotations would be made for every batch, 25 us for four rows.
def _spread(
    flat: Num[np.ndarray, " L"],
    shape: tuple[int, ...],
    is_token: Bool[np.ndarray, "N T"] | None,
    dtype: type,
) -> Num[np.ndarray, "N T"]:
    if is_token is None:
        return flat.astype(dtype).reshape(shape)
    rows: np.ndarray = np.zeros(shape, dtype)
    rows[is_token] = flat
    return rows


def _require_rows(rows: Rows) -> None:
    """Refuse a store that does not make a single row to train on."""
    if rows.num_rows == 0:
        store, allowed, fix = rows.store, "at least one whole row", "shorten train.seq_len"
        if isinstance(rows, PackedRows):
            allowed = "a document that is not dropped"
            fix = "set data.packing.long_documents to split or truncate, or lengthen train.seq_len"
        raise DataError(
            f"component {store.manifest.identity.name!r}: store {store.path} of "
            f"{store.num_tokens} tokens for rows of {rows.seq_len}",
            allowed=allowed,
            fix=f"add documents to the component, or {fix}",
        )
