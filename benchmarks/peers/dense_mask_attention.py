"""The peer of packed documents: cuDNN's attention under a dense boolean mask.

What JAX offers in public for documents: every score is computed, and those across documents are
masked away.
"""

import jax
from jaxtyping import Array, Float, Int

from chomp.kernels.attention import AttentionMask, Backend
from chomp.kernels.attention.api import on_local_shards

# Axes: B batch, S sequence, H query heads, G key-value heads, K head width.


def dense_mask_attention(
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G K"],
    mask: AttentionMask,
    *,
    query_offset: int | Int[Array, ""] = 0,
    backend: Backend = "auto",
) -> Float[Array, "B S H K"]:
    """Causal attention inside each document; takes the place of `chomp.kernels.attention`."""
    assert isinstance(query_offset, int)  # training only: there is no cache
    del backend
    return on_local_shards(_of_one_device, q, k, v, mask)


def _of_one_device(q: Array, k: Array, v: Array, mask: AttentionMask) -> Array:
    ids = mask.segment_ids
    is_same_document = (ids[:, :, None] == ids[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        q, k, v, mask=is_same_document, is_causal=True, implementation="cudnn"
    )
