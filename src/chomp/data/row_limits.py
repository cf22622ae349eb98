"""What a model takes of a batch, asked on the host before a device sees it.

On a device, an id past the vocabulary would be looked up as another token without a word, and
documents past a kernel's room would turn the loss into NaN: their number is counted here, and the
batch says how much room it needs. A store's ids are its tokenizer's,
which is asked when it is opened; this holds for streams and for stores of a faulty writer too.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int, Int32

from chomp.errors import DataError
from chomp.kernels.attention.documents import documents_of_rows, max_segments

# Axes: N rows, T tokens of a row.

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RowLimits:
    """What rows may hold, and what an attention kernel has to be told of their documents."""

    vocab_size: int | None = None  # every id is below it; None: no limit
    counts_documents: bool = False  # whether the kernel's tables have a size
    shards: int = 1  # parts that the mesh cuts a batch into
    _told: set[int] = field(default_factory=set, repr=False, compare=False)

    def require_tokens(self, tokens: Int32[np.ndarray, "N T"], where: Callable[[int], str]) -> None:
        """Raise `DataError` unless every id is in the vocabulary; `where` names a row.

        One pass over the tokens: 3 microseconds for 32 rows of 1024.
        """
        # Seen as unsigned, a negative id is a large one: one maximum finds both kinds.
        if self.vocab_size is None or not tokens.size:
            return
        if tokens.view(np.uint32).max() >= self.vocab_size:
            raise _outside_vocabulary(tokens, self.vocab_size, where)

    def max_segments(
        self,
        segment_ids: Int[np.ndarray, "N T"] | None,
        where: Callable[[int], str],
        *,
        batch_size: int,
        is_whole_batch: bool = True,
    ) -> int | None:
        """The room a kernel needs for the documents of these rows; None: it need not be told.

        The rows are those of whole devices, in the order of a batch of that size. More room than
        usual is said once for each size: it is another program, and costs time and memory. Where a
        process sees a part of the batch only, it is refused: all have to run one program.
        """
        if not self.counts_documents or segment_ids is None:
            return None
        rows = batch_size // self.shards
        found = documents_of_rows(segment_ids).reshape(-1, rows).sum(axis=1)
        most, usual = int(found.max(initial=0)), max_segments(segment_ids.shape[-1])
        room = max_segments(segment_ids.shape[-1], -(-most // rows))
        if room > usual and room not in self._told:
            first = where(int(np.argmax(found)) * rows)
            if not is_whole_batch:
                raise _too_many_documents(most, rows, usual, first)
            self._told.add(room)
            log.warning(
                "%d documents in the %d rows of a device, the first of them %s: attention is "
                "compiled with room for %d a row instead of %d, which is slower and takes more "
                "memory. Leave documents of a few tokens out, or set model.attention=chunked.",
                *(most, rows, first, room, usual),
            )
        return room


def _outside_vocabulary(
    tokens: Int[np.ndarray, "N T"], vocab_size: int, where: Callable[[int], str]
) -> DataError:
    row, column = np.argwhere((tokens < 0) | (tokens >= vocab_size))[0].tolist()
    return DataError(
        f"{where(row)}: the id {tokens[row, column]} at position {column}",
        allowed=f"ids from 0 to {vocab_size - 1}, the model's vocabulary",
        fix="set model.vocab_size to the tokenizer's size or more, or build the store with the "
        "tokenizer of this run",
    )


def _too_many_documents(found: int, rows: int, most: int, first: str) -> DataError:
    return DataError(
        f"{found} documents in the {rows} rows of a device, the first of them {first}",
        allowed=f"{rows * most}, which is {most} a row: the room that the chosen attention "
        "backend has among several processes",
        fix="set model.attention=chunked, or leave documents of a few tokens out",
    )
