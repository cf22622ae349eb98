"""The one example type, and the rules that say which predictions count.

Position i's weight scores the prediction of token i+1, so the last weight of a row is 0. Padding
has segment id -1 and weight 0. An end-of-document token belongs to the document it ends.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from chomp.kernels.attention import AttentionMask

# Axes: N rows, T tokens of a row.


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
        ignore_id: int | None = None,
        sliding_window: int | None = None,
        isolate_documents: bool = True,
    ) -> "GrugLmExample":
        """Causal examples from rows whose positions carry the index of their document.

        `mask_boundary_loss`: the last token of a document does not predict the next document.
        `train_on_eos=False`: nobody is asked to predict the end of a document.
        `loss_weights`: of the documents themselves; they multiply what the rules leave.
        `ignore_id`: nobody is asked to predict that token.
        `isolate_documents=False`: attention goes over the whole row, whatever document it is in.
        """
        counts = is_scored(
            tokens,
            segment_ids,
            eos_id=eos_id,
            mask_boundary_loss=mask_boundary_loss,
            train_on_eos=train_on_eos,
            ignore_id=ignore_id,
        )
        weight = np.zeros(tokens.shape, np.float32)
        weight[:, :-1] = counts if loss_weights is None else counts * loss_weights[:, :-1]
        return GrugLmExample(
            tokens=tokens,
            loss_weight=weight,
            attn_mask=AttentionMask.causal(
                sliding_window=sliding_window,
                segment_ids=segment_ids if isolate_documents else None,
            ),
        )


def is_scored(
    tokens: Int[np.ndarray, "N T"],
    segment_ids: Int[np.ndarray, "N T"],
    *,
    eos_id: int,
    mask_boundary_loss: bool,
    train_on_eos: bool,
    ignore_id: int | None,
) -> Bool[np.ndarray, "N T-1"]:
    """Whether each position's prediction of the next token counts; the last has none to predict."""
    here, following = segment_ids[:, :-1], segment_ids[:, 1:]
    counts = (here >= 0) & (following >= 0)
    if mask_boundary_loss:
        counts &= following == here
    for unscored in (ignore_id, None if train_on_eos else eos_id):
        if unscored is not None:
            counts &= tokens[:, 1:] != unscored
    return counts
