"""The one example type, and the rules that say which predictions count.

Position i's weight scores the prediction of token i+1, so the last weight of a row is 0. Padding
has segment id -1 and weight 0. An end-of-document token belongs to the document it ends.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

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

    @staticmethod
    def from_rows(
        tokens: Int[np.ndarray, "N T"],
        segment_ids: Int[np.ndarray, "N T"],
        *,
        eos_id: int,
        mask_boundary_loss: bool = True,
        train_on_eos: bool = True,
    ) -> "GrugLmExample":
        """Causal examples from rows whose positions carry the index of their document.

        `mask_boundary_loss`: the last token of a document does not predict the next document.
        `train_on_eos=False`: nobody is asked to predict the end of a document.
        """
        weight = loss_weights(
            tokens,
            segment_ids,
            eos_id=eos_id,
            mask_boundary_loss=mask_boundary_loss,
            train_on_eos=train_on_eos,
        )
        return GrugLmExample(
            tokens=tokens,
            loss_weight=weight,
            attn_mask=AttentionMask.causal(segment_ids=segment_ids),
        )


def loss_weights(
    tokens: Int[np.ndarray, "N T"],
    segment_ids: Int[np.ndarray, "N T"],
    *,
    eos_id: int,
    mask_boundary_loss: bool,
    train_on_eos: bool,
) -> Float[np.ndarray, "N T"]:
    """1 where the next token's prediction counts, else 0; the last position never counts."""
    counts = np.minimum(segment_ids[:, 1:], segment_ids[:, :-1]) >= 0
    if mask_boundary_loss:
        counts &= segment_ids[:, 1:] == segment_ids[:, :-1]
    if not train_on_eos:
        counts &= tokens[:, 1:] != eos_id
    weight = np.zeros(tokens.shape, np.float32)
    weight[:, :-1] = counts
    return weight
