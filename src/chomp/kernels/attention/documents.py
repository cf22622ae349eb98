"""Where the documents of a batch start and how long they are, in the form cuDNN takes.

The number of documents is data, the size of the table is not. There is room for `max_segments`
documents a row, and the rows of a device share their room: one of many short documents may use what
others leave. The host counts before a batch is sent, and makes more room for a batch that needs it
(`chomp.data.examples`): each size of the table is a program of its own.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from chomp.kernels.attention.mask import document_starts

# Axes: B rows, S positions, N = B M documents that the table has room for.

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
