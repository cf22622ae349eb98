"""Rows of a store: fixed windows over its line of tokens, with the document of each position.

Training windows lie side by side. Evaluation windows overlap by one token, so that every token is
predicted exactly once, and the last, shorter one is padded: nothing is dropped. A store in which
nothing is predicted has no evaluation window.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from chomp.data.store.token_store import TokenStore
from chomp.errors import DataError, require
from chomp.kernels.attention.mask import PAD_SEGMENT

# Axes: N rows, T tokens of a row, L tokens of all rows without padding.


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


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a row: `length` tokens of the store's line from `start` on, at `column`."""

    start: int
    length: int
    column: int = 0


@runtime_checkable
class Rows(Protocol):
    """The rows of one store; row i is a function of i alone."""

    store: TokenStore
    seq_len: int
    num_rows: int

    def read(self, rows: Int[np.ndarray, " N"]) -> RowBatch:
        """Those rows, in the order asked for."""
        ...

    def pieces(self, row: int) -> list[Piece]:
        """What a row is made of, in order."""
        ...

    def rows_with(self, start: int, stop: int) -> list[int]:
        """The rows that hold any token of start..stop-1 of the store's line."""
        ...


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
            # Nothing to train on is a mistake; nothing held out is a fact that evaluation tells.
            if self.num_rows == 0:
                raise too_small(store, seq_len, "at least one whole row")

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
        shape = segments.shape
        return RowBatch(
            tokens=spread(tokens, shape, is_token, np.int32),
            segment_ids=segments,
            loss_weights=None if weights is None else spread(weights, shape, is_token, np.float32),
            first_documents=first_documents,
        )

    def pieces(self, row: int) -> list[Piece]:
        """One piece: the window."""
        start = row * self._stride
        return [Piece(start=start, length=min(self.seq_len, self.store.num_tokens - start))]

    def rows_with(self, start: int, stop: int) -> list[int]:
        """The rows that hold any token of start..stop-1 of the store's line."""
        first = max(start - (self.seq_len - self._stride), 0) // self._stride
        return list(range(first, min((stop - 1) // self._stride + 1, self.num_rows)))


def spread(
    flat: Num[np.ndarray, " L"],
    shape: tuple[int, ...],
    is_token: Bool[np.ndarray, "N T"] | None,
    dtype: type,
) -> Num[np.ndarray, "N T"]:
    """Rows from the tokens of all of them in one line; zeros where there is no token.

    `is_token` None: everywhere is one.
    """
    if is_token is None:
        return flat.astype(dtype).reshape(shape)
    rows: np.ndarray = np.zeros(shape, dtype)
    rows[is_token] = flat
    return rows


def require_row_len(seq_len: int) -> None:
    """Refuse rows in which nothing is predicted."""
    require(
        seq_len >= 2,
        f"rows of {seq_len} tokens",
        allowed="2 tokens or more: one that is read and one that is predicted",
        fix="raise train.seq_len",
    )


def too_small(
    store: TokenStore,
    seq_len: int,
    allowed: str,
    fix: str = "add documents to the component or shorten train.seq_len",
) -> DataError:
    """The error of a store that does not make a single row."""
    name = store.manifest.identity.name
    return DataError(
        f"component {name!r}: store {store.path} of {store.num_tokens} tokens for rows "
        f"of {seq_len}",
        allowed=allowed,
        fix=fix,
    )
