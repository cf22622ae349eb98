"""Attention as the formula says it, in float32: the specification every backend must meet.

Holds the whole score matrix, so memory grows with the square of the length.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from chomp.errors import require
from chomp.kernels.attention.mask import AttentionMask

# Axes: B batch, Q query positions, T key positions, H query heads, G key-value heads,
# R query heads per key-value head (H = G R), K head width, W width of a head's values.

# Finite, so that a row with nothing to see (padding) gives a finite average instead of NaN.
MASKED_SCORE = -1e30


def reference_attention(
    q: Float[Array, "B Q H K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T G W"],
    mask: AttentionMask,
    *,
    query_offset: int | Int[Array, ""] = 0,
) -> Float[Array, "B Q H W"]:
    """softmax(q k^T / sqrt(K)) v under `mask`, each key-value head serving H/G query heads.

    Scores and softmax are float32; the result has the dtype of `v`. Query i stands at position
    `query_offset + i` of the keys' line.
    """
    heads, kv_heads = q.shape[2], k.shape[2]
    require(
        heads % kv_heads == 0,
        f"{heads} query heads with {kv_heads} key-value heads",
        allowed="query heads that are a multiple of key-value heads",
        fix="change num_heads or num_kv_heads",
    )
    # [B Q H K] -> [B Q G R K]; the heads' sharding stays on the major part, G. With its mesh, so
    # that this also runs where no mesh is set: that sharding then has an empty one.
    sharding = jax.typeof(q).sharding
    b, s, h, w = sharding.spec
    grouped = NamedSharding(sharding.mesh, PartitionSpec(b, s, h, None, w))
    groups = (kv_heads, heads // kv_heads)
    q = jnp.reshape(q, (*q.shape[:2], *groups, q.shape[3]), out_sharding=grouped)
    scores = jnp.einsum("bqgrk,btgk->bgrqt", q, k, preferred_element_type=jnp.float32)
    scores = scores * q.shape[-1] ** -0.5
    allowed = mask.allowed(q.shape[1], k.shape[1], query_offset=query_offset)
    scores = jnp.where(allowed[:, None, None], scores, MASKED_SCORE)
    probs = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    out = jnp.einsum("bgrqt,btgw->bqgrw", probs, v)
    values = NamedSharding(sharding.mesh, PartitionSpec(b, s, h, jax.typeof(v).sharding.spec[3]))
    return jnp.reshape(out, (*out.shape[:2], heads, out.shape[-1]), out_sharding=values)
