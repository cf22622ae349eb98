"""Who may attend to whom, as data instead of a dense matrix, and the table of documents for cuDNN.

A backend that can skip masked work reads the description; the reference turns it into booleans.
Padding has segment id -1; what padded positions compute is finite and meaningless. The ids of a row
count its documents up, so a document is a run of equal ids and no id comes back later.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from chomp.errors import require

# Axes: B batch (rows), S positions, Q query positions, T key positions, N = B M documents that the
# table has room for.


PAD_SEGMENT = -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionMask:
    """Causality, window and documents of one batch of rows."""

    is_causal: bool = dataclasses.field(default=True, metadata={"static": True})
    # How many keys a query sees looking back, itself included; None: the whole prefix.
    sliding_window: int | None = dataclasses.field(default=None, metadata={"static": True})
    # Documents of a row, padding being one, on average over a device's rows: what a kernel whose
    # tables have a size makes room for; None: its own default. The host counts (`data.row_limits`).
    max_segments: int | None = dataclasses.field(default=None, metadata={"static": True})
    # Document of each position, [.., S] with any leading axes; None: one document a row.
    # Any array kind: rows are built in numpy and become device arrays later.
    segment_ids: Any = None

    def __post_init__(self) -> None:
        require(
            self.sliding_window is None or self.sliding_window > 0,
            f"sliding_window={self.sliding_window}",
            allowed="a positive number of tokens, or None for no window",
            fix="set sliding_window=None to see the whole prefix",
        )

    @staticmethod
    def causal(*, sliding_window: int | None = None, segment_ids: Any = None) -> "AttentionMask":
        """Each position sees itself and what came before it, in its own document."""
        return AttentionMask(sliding_window=sliding_window, segment_ids=segment_ids)

    def with_sliding_window(self, sliding_window: int | None) -> "AttentionMask":
        """The same mask under another window."""
        return dataclasses.replace(self, sliding_window=sliding_window)

    def with_segment_ids(self, segment_ids: Any) -> "AttentionMask":
        """The same mask over other documents."""
        return dataclasses.replace(self, segment_ids=segment_ids)

    def with_max_segments(self, max_segments: int | None) -> "AttentionMask":
        """The same mask with other room for documents."""
        return dataclasses.replace(self, max_segments=max_segments)

    def positions(self, length: int) -> Int[Array, "#B S"] | Int[np.ndarray, "#B S"]:
        """Place of each token in its own document, from 0; without documents, in the row.

        The latter is known while tracing, and comes as numpy.
        """
        place = np.arange(length, dtype=np.int32)[None]
        if self.segment_ids is None:
            return place
        self.require_length(length, length)
        starts = jnp.where(document_starts(jnp.asarray(self.segment_ids)), place, 0)
        return place - jax.lax.cummax(starts, axis=1)

    def require_length(self, query_len: int, key_len: int) -> None:
        """Raise `ConfigError` unless the ids, if any, are one for each query and each key."""
        ids = self.segment_ids
        require(
            ids is None or (ids.ndim == 2 and ids.shape[1] == query_len == key_len),
            f"segment_ids of shape {getattr(ids, 'shape', None)} for {query_len} queries "
            f"and {key_len} keys",
            allowed="[batch, length] with length equal to both",
            fix="pass one id per position; decoding with a cache takes no segment ids",
        )

    def allowed(
        self, query_len: int, key_len: int, *, query_offset: int | Int[Array, ""] = 0
    ) -> Bool[Array, "#B Q T"]:
        """Dense form: True where the query may see the key.

        Query i stands at position `query_offset + i` of the keys' line (decoding with a cache).
        """
        query = query_offset + jnp.arange(query_len)[:, None]
        key = jnp.arange(key_len)[None, :]
        allowed = jnp.ones((query_len, key_len), bool)
        if self.is_causal:
            allowed &= key <= query
        if self.sliding_window is not None:
            allowed &= key > query - self.sliding_window
        if self.segment_ids is None:
            return allowed[None]
        self.require_length(query_len, key_len)
        ids = self.segment_ids
        return allowed[None] & (ids[:, :, None] == ids[:, None, :])


def document_starts(segment_ids: Int[Array, "B S"]) -> Bool[Array, "B S"]:
    """True at the first position of each run of equal ids; padding is a run like any other."""
    # A pad, not jnp.roll or two slices: under JAX 0.11 a slice of one element forgets its sharding.
    zero = jnp.zeros((), segment_ids.dtype)
    before = jax.lax.pad(segment_ids, zero, ((0, 0, 0), (1, -1, 0)))
    is_first = jnp.arange(segment_ids.shape[1])[None] == 0
    return is_first | (segment_ids != before)


# ---- Where documents start and how long they are, as cuDNN takes them ---------------------------
#
# The number of documents is data, the size of the table is not. There is room for `max_segments`
# documents per row, and the rows of a device share it: one row of many short documents may use what
# others leave. The host counts before a batch is sent, and makes more room for a batch that needs
# it (`chomp.data.examples`): each size of the table is a program of its own.


# Each entry costs time and memory, used or not: forward and backward of 16 rows of 2048 took 1.86,
# 2.27, 2.76 and 4.37 ms with 14, 22, 32 and 64 entries a row, and 3.8, 5.8, 8.4 and 16.5 GiB (16
# heads of 128 on an H200, November 2026; unmasked: 2.46 ms).
FEWEST_SEGMENTS = 12
TOKENS_PER_SEGMENT = 128


class DocumentTable(NamedTuple):
    """Starts and lengths of all documents in order, counted from the first row's first token."""

    starts: Int32[Array, " N"]  # behind the last document: the number of tokens
    lengths: Int32[Array, " N"]  # behind the last document: 0
    fits: Bool[Array, ""]  # whether all documents are in the table


def max_segments(seq_len: int, documents: int = 1) -> int:
    """How many documents a row of `seq_len` has room for on average, padding being one of them.

    The usual room, doubled until `documents` fit: a run needs few of the sizes.
    """
    room = max(FEWEST_SEGMENTS, seq_len // TOKENS_PER_SEGMENT)
    while room < documents:
        room *= 2
    return room


def document_table(
    segment_ids: Int[Array, "B S"], max_segments_of_row: int | None = None
) -> DocumentTable:
    """The documents of all rows, padding as one of its row's, so that every position is in one.

    What does not fit is left out, and `fits` says so. None: the usual room.
    """
    rows, length = segment_ids.shape
    tokens, room = rows * length, rows * (max_segments_of_row or max_segments(length))
    is_start = document_starts(segment_ids).reshape(-1)
    order = jnp.cumsum(is_start.astype(jnp.int32)) - 1
    # Every start goes to the entry of its number; positions that start nothing go nowhere.
    entry = jnp.where(is_start, order, room + 1)
    place = jnp.arange(tokens, dtype=jnp.int32)
    starts = jnp.full(room + 1, tokens, jnp.int32).at[entry].set(place, mode="drop")
    return DocumentTable(starts[:-1], starts[1:] - starts[:-1], order[-1] < room)


def documents_of_rows(segment_ids: Int[np.ndarray, "*rows S"]) -> Int[np.ndarray, "*rows"]:
    """How many entries each row takes, on the host: its runs of equal ids."""
    changes = segment_ids[..., 1:] != segment_ids[..., :-1]
    return 1 + np.count_nonzero(changes, axis=-1)
