"""Rows of a store: fixed windows over its line of tokens, with the document of each position.

Training windows lie side by side. Evaluation windows overlap by one token, so that every token is
predicted exactly once, and the last, shorter one is padded: nothing is dropped.
"""

import numpy as np
from jaxtyping import Int

from chomp.data.store import TokenStore
from chomp.errors import DataError, message, require
from chomp.kernels.attention.mask import PAD_SEGMENT

# Axes: N rows, T tokens of a row.


class ConcatRows:
    """The rows of one store; row i is a function of i alone."""

    def __init__(self, store: TokenStore, seq_len: int, *, is_eval: bool = False) -> None:
        require(
            seq_len >= 2,
            given=f"rows of {seq_len} tokens",
            allowed="2 tokens or more: one that is read and one that is predicted",
            fix="raise train.seq_len",
        )
        self.store = store
        self.seq_len = seq_len
        self._stride = seq_len - 1 if is_eval else seq_len
        if is_eval:
            # The first token is never a target; each row adds `stride` targets.
            self.num_rows = max(-(-(store.num_tokens - 1) // self._stride), 0)
        else:
            self.num_rows = store.num_tokens // seq_len
        if self.num_rows == 0:
            raise DataError(
                message(
                    given=f"store {store.path} of {store.num_tokens} tokens for rows of {seq_len}",
                    allowed="two tokens or more" if is_eval else "at least one whole row",
                    fix="add documents to the component or shorten train.seq_len",
                )
            )

    def read(
        self, rows: Int[np.ndarray, " N"]
    ) -> tuple[Int[np.ndarray, "N T"], Int[np.ndarray, "N T"]]:
        """Tokens and segment ids; segments count documents from 0 in each row, padding is -1."""
        starts = rows * self._stride
        tokens = np.zeros((len(rows), self.seq_len), np.int32)
        segments = np.full((len(rows), self.seq_len), PAD_SEGMENT, np.int32)
        windows = self.store.read_windows(starts, self.seq_len)
        for i, (start, window) in enumerate(zip(starts, windows, strict=True)):
            tokens[i, : len(window)] = window
            positions = np.arange(start, start + len(window))
            # A position belongs to the first document that ends after it.
            document = np.searchsorted(self.store.document_ends, positions, side="right")
            segments[i, : len(window)] = document - document[0]
        return tokens, segments
