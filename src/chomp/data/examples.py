"""The one example type, the rules that say which predictions count, and what a model takes.

Position i's weight scores the prediction of token i+1, so the last weight of a row is 0. Padding
has segment id -1 and weight 0. An end-of-document token belongs to the document it ends.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, Int32

from chomp.errors import DataError
from chomp.kernels.attention import AttentionMask
from chomp.kernels.attention.mask import documents_of_rows, max_segments

# Axes: N rows, T tokens of a row.

log = logging.getLogger(__name__)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class GrugLmExample:
    """Rows of tokens with their loss weights and mask; a batch is the same type with more axes.

    Arrays are numpy while a batch is built and device arrays once it is placed.
    """

    tokens: Any  # integer, [..., T]
    loss_weight: Any  # float32, [..., T]
    attn_mask: AttentionMask

    def with_max_segments(self, max_segments: int | None) -> "GrugLmExample":
        """The same rows, telling attention how much room their documents need."""
        mask = self.attn_mask.with_max_segments(max_segments)
        return dataclasses.replace(self, attn_mask=mask)

    @staticmethod
    def from_rows(
        tokens: Int[np.ndarray, "N T"],
        segment_ids: Int[np.ndarray, "N T"],
        *,
        eos_id: int,
        mask_boundary_loss: bool = True,
        train_on_eos: bool = True,
        loss_weights: Float[np.ndarray, "N T"] | None = None,
        isolate_documents: bool = True,
    ) -> "GrugLmExample":
        """Causal examples from rows whose positions carry the index of their document.

        `mask_boundary_loss`: the last token of a document does not predict the next document.
        `train_on_eos=False`: nobody is asked to predict the end of a document.
        `loss_weights`: of the documents themselves; they multiply what the rules leave.
        `isolate_documents=False`: attention goes over the whole row, whatever document it is in.
        """
        here, following = segment_ids[:, :-1], segment_ids[:, 1:]
        counts = (here >= 0) & (following >= 0)
        if mask_boundary_loss:
            counts &= following == here
        if not train_on_eos:
            counts &= tokens[:, 1:] != eos_id
        weight = np.zeros(tokens.shape, np.float32)
        weight[:, :-1] = counts if loss_weights is None else counts * loss_weights[:, :-1]
        mask = AttentionMask.causal(segment_ids=segment_ids if isolate_documents else None)
        return GrugLmExample(tokens=tokens, loss_weight=weight, attn_mask=mask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowLimits:
    """What a model takes of a batch, checked on the host before a device sees it.

    On a device, an id past the vocabulary would be looked up as another token, and documents past a
    kernel's room would turn the loss into NaN.
    """

    vocab_size: int | None = None  # every id is below it; None: no limit
    counts_documents: bool = False  # whether the kernel's tables have a size
    shards: int = 1  # parts that the mesh cuts a batch into
    _warned: set[int] = dataclasses.field(default_factory=set, repr=False, compare=False)

    def require_tokens(self, tokens: Int32[np.ndarray, "N T"], where: Callable[[int], str]) -> None:
        """Raise `DataError` unless every id is in the vocabulary; `where` names a row.

        One pass over the tokens: 3 microseconds for 32 rows of 1024.
        """
        # Seen as unsigned, a negative id is a large one: one maximum finds both kinds.
        vocab_size = self.vocab_size
        if vocab_size is None or tokens.view(np.uint32).max(initial=0) < vocab_size:
            return
        row, column = np.argwhere((tokens < 0) | (tokens >= vocab_size))[0].tolist()
        raise DataError(
            f"{where(row)}: the id {tokens[row, column]} at position {column}",
            allowed=f"ids from 0 to {vocab_size - 1}, the model's vocabulary",
            fix="set model.vocab_size to the tokenizer's size or more, or build the store with "
            "the tokenizer of this run",
        )

    def max_segments(
        self,
        segment_ids: Int[np.ndarray, "N T"] | None,
        where: Callable[[int], str],
        *,
        batch_size: int,
        is_whole_batch: bool = True,
    ) -> int | None:
        """The room a kernel needs for the documents of these rows; None: it needs none.

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
        if room > usual and room not in self._warned:
            first = where(int(np.argmax(found)) * rows)
            if not is_whole_batch:
                raise DataError(
                    f"{most} documents in the {rows} rows of a device, the first of them {first}",
                    allowed=f"{rows * usual}, which is {usual} a row: the room that the chosen "
                    "attention backend has among several processes",
                    fix="set model.attention=chunked, or leave documents of a few tokens out",
                )
            self._warned.add(room)
            log.warning(
                "%d documents in the %d rows of a device, the first of them %s: attention is "
                "compiled with room for %d a row instead of %d, which is slower and takes more "
                "memory. Leave documents of a few tokens out, or set model.attention=chunked.",
                *(most, rows, first, room, usual),
            )
        return room
