"""Rows made of encoded documents in memory: one line of tokens cut into rows, or packed documents.

What lies in a row is what `RowBatch` says; where the documents come from is not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from chomp.data.packing import LongDocuments, cut_documents, pack
from chomp.data.permutation import Permutation
from chomp.data.rows import RowBatch, spread
from chomp.data.store.encoding import EncodedBatch
from chomp.kernels.attention.mask import PAD_SEGMENT

# Axes: L tokens of a line, N documents.


@dataclass(frozen=True, kw_only=True, eq=False)
class Carry:
    """The end of a line that filled no row: the next documents go on from it."""

    tokens: Int[np.ndarray, " L"] = field(default_factory=lambda: np.zeros(0, np.int32))
    lengths: Int[np.ndarray, " N"] = field(default_factory=lambda: np.zeros(0, np.int64))
    loss_weights: Float32[np.ndarray, " L"] | None = None

    def as_json(self) -> dict[str, list[Any] | None]:
        """The same in lists; exact, because float32 goes through JSON unchanged."""
        return {
            name: None if array is None else array.tolist() for name, array in vars(self).items()
        }

    @staticmethod
    def from_json(lists: Mapping[str, Any]) -> "Carry":
        """The carry that `as_json` wrote."""
        weights = lists["loss_weights"]
        return Carry(
            tokens=np.asarray(lists["tokens"], np.int32),
            lengths=np.asarray(lists["lengths"], np.int64),
            loss_weights=None if weights is None else np.asarray(weights, np.float32),
        )


def joined(batches: Sequence[EncodedBatch]) -> EncodedBatch:
    """The documents of all batches in one, ids as int32; a batch without weights has weights 1."""
    weights = None
    if any(batch.loss_weights is not None for batch in batches):
        weights = np.concatenate(
            [
                np.ones(len(batch.ids), np.float32)
                if batch.loss_weights is None
                else batch.loss_weights
                for batch in batches
            ]
        )
    ids = (batch.ids.astype(np.int32) for batch in batches)
    return EncodedBatch(
        ids=np.concatenate([np.zeros(0, np.int32), *ids]),
        lengths=np.concatenate([np.zeros(0, np.int64), *(batch.lengths for batch in batches)]),
        loss_weights=weights,
    )


def concat_rows(batch: EncodedBatch, carry: Carry, seq_len: int) -> tuple[RowBatch, Carry]:
    """The line that goes on from `carry`, cut every `seq_len` tokens, and what is left of it."""
    before = EncodedBatch(ids=carry.tokens, lengths=carry.lengths, loss_weights=carry.loss_weights)
    line = joined([before, batch])
    cut = len(line.ids) // seq_len * seq_len
    document = np.repeat(np.arange(len(line.lengths), dtype=np.int32), line.lengths)
    segments = document[:cut].reshape(-1, seq_len)
    weights = line.loss_weights
    rows = RowBatch(
        tokens=line.ids[:cut].reshape(-1, seq_len),
        segment_ids=segments - segments[:, :1],
        loss_weights=None if weights is None else weights[:cut].reshape(-1, seq_len),
    )
    ends = np.cumsum(line.lengths)
    left = Carry(
        tokens=line.ids[cut:],
        # The first of them may have begun before the cut.
        lengths=np.diff(ends[ends > cut], prepend=cut),
        loss_weights=None if weights is None else weights[cut:],
    )
    return rows, left


def packed_rows(
    batch: EncodedBatch,
    seq_len: int,
    *,
    max_documents: int,
    rule: LongDocuments,
    shuffle_key: str | None,
) -> tuple[RowBatch, int]:
    """The documents packed into rows, and how many tokens the rule for long ones left out.

    Rows are shuffled by the key; without one they are in the order of their first documents.
    """
    pieces = cut_documents(batch.lengths, seq_len, rule)
    plan = pack(pieces.length, seq_len, max_documents)
    counts, order = plan.pieces_per_row, plan.order
    if shuffle_key is not None and len(counts) > 0:
        by_row = Permutation(len(counts), shuffle_key)(np.arange(len(counts)))
        row_pieces = np.split(order, plan.row_ends[:-1])
        counts, order = counts[by_row], np.concatenate([row_pieces[row] for row in by_row])
    lengths = pieces.length[order]
    starts = (np.cumsum(batch.lengths) - batch.lengths)[pieces.document] + pieces.offset
    source = _ranges(starts[order], lengths)
    row_tokens = np.add.reduceat(lengths, np.cumsum(counts) - counts) if len(counts) else counts
    is_token = np.arange(seq_len) < row_tokens[:, None]
    segments = np.full(is_token.shape, PAD_SEGMENT, np.int32)
    segments[is_token] = np.repeat(_ranges(np.zeros_like(counts), counts), lengths)
    weights = batch.loss_weights
    rows = RowBatch(
        tokens=spread(batch.ids[source], is_token.shape, is_token, np.int32),
        segment_ids=segments,
        loss_weights=None
        if weights is None
        else spread(weights[source], is_token.shape, is_token, np.float32),
    )
    return rows, pieces.dropped_tokens


def _ranges(starts: Int[np.ndarray, " N"], lengths: Int[np.ndarray, " N"]) -> Int[np.ndarray, " L"]:
    """The numbers start..start+length-1 of each range, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
