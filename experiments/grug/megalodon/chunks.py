"""Attention inside chunks: a document is cut every C tokens, and a token sees its own chunk so far.

What happened before the chunk reaches it through the moving average alone, so a step costs the same
per token at any length, and a stream that is continued keeps C keys.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int
from jaxtyping import PRNGKeyArray as Key

from chomp.kernels.attention import AttentionMask, Backend, attention
from chomp.kernels.attention.reference import MASKED_SCORE
from chomp.mesh import BATCH_AXES
from experiments.grug.megalodon.norm import Places

# Axes: B batch, S sequence, H heads, K width of queries and keys, W width of values, C chunk, N
# blocks of a row, Q queries and T keys of a block, R keys kept while decoding.
Heads = Float[Array, "B S H K"]
Values = Float[Array, "B S H W"]

DropoutMode = Literal["post_softmax", "dropkey"]


def chunk_mask(mask: AttentionMask, places: Places, chunk: int) -> AttentionMask:
    """Who sees whom: `mask` with a new document wherever a chunk of one begins."""
    if places.shape[1] <= chunk or mask.segment_ids is None:
        return mask  # there is one chunk, or chunks are as regular as rows
    begins = jnp.asarray(places % chunk == 0)
    return mask.with_segment_ids(jnp.cumsum(begins, axis=1, dtype=jnp.int32))


def chunk_attention(
    q: Heads, k: Heads, v: Values, mask: AttentionMask, chunk: int, backend: Backend
) -> Values:
    """Attention under a mask from `chunk_mask`."""
    length = q.shape[1]
    if length <= chunk:
        return attention(q, k, v, mask, backend=backend)
    if mask.segment_ids is not None:
        # The window says the same once more, for kernels that skip what lies outside of it.
        return attention(q, k, v, mask.with_sliding_window(chunk), backend=backend)
    parts = (_by_chunks(x, chunk) for x in (q, k, v))
    out = attention(*parts, mask, backend=backend)
    shape = (q.shape[0], -1, *out.shape[2:])
    out = jnp.reshape(out, shape, out_sharding=jax.typeof(v).sharding.spec)
    return out[:, :length]


def _by_chunks(x: Heads, chunk: int) -> Float[Array, "BN C H K"]:
    """The chunks of a row as rows; what the last one lacks is zeros behind its causal mask."""
    batch, length, *rest = x.shape
    num = -(-length // chunk)
    x = jnp.pad(x, ((0, 0), (0, num * chunk - length), (0, 0), (0, 0)))
    spec = P(BATCH_AXES, None, *jax.typeof(x).sharding.spec[2:])
    return jnp.reshape(x, (batch * num, chunk, *rest), out_sharding=spec)


def dropped_attention(
    q: Heads,
    k: Heads,
    v: Values,
    reach: Places,
    block: int,
    *,
    rate: float | Float[Array, ""],
    mode: DropoutMode,
    key: Key,
) -> Values:
    """Attention of which weights, or before the softmax keys, are left out at random.

    Each token sees the `reach` tokens before it, fewer than `block`. All scores of a block are
    there at once: kernels that keep none cannot leave some out.
    """
    length, block = q.shape[1], min(block, q.shape[1])
    num = -(-length // block)
    reach = jnp.broadcast_to(jnp.asarray(reach), q.shape[:2])
    q, k, v, reach = (_blocked(x, num, block) for x in (q, k, v, reach))
    k, v = _with_previous(k), _with_previous(v)  # that far, and no further, can anyone see
    distance = (block + jnp.arange(block)[:, None] - jnp.arange(2 * block)[None])[None, None]
    allowed = (distance >= 0) & (distance <= reach[..., None])
    scores = jnp.einsum("bnqhk,bnthk->bnhqt", q, k, preferred_element_type=jnp.float32)
    scores = scores * q.shape[-1] ** -0.5
    keep = jax.random.bernoulli(key, 1.0 - rate, scores.shape, out_sharding=_spec(scores))
    if mode == "dropkey":
        allowed = allowed[:, :, None] & keep
        shares = jax.nn.softmax(jnp.where(allowed, scores, MASKED_SCORE), axis=-1)
        shares = jnp.where(allowed, shares, 0.0)  # a query without a key gets nothing
    else:
        shares = jax.nn.softmax(jnp.where(allowed[:, :, None], scores, MASKED_SCORE), axis=-1)
        shares = jnp.where(keep, shares / (1.0 - rate), 0.0)
    out = jnp.einsum("bnhqt,bnthw->bnqhw", shares.astype(v.dtype), v)
    return out.reshape(out.shape[0], -1, *out.shape[3:])[:, :length]


def _spec(x: Array) -> P:
    spec: P = jax.typeof(x).sharding.spec
    return spec


def _blocked(x: Array, num: int, block: int) -> Array:
    ends = ((0, 0), (0, num * block - x.shape[1]), *((0, 0) for _ in x.shape[2:]))
    return jnp.pad(x, ends).reshape(x.shape[0], num, block, *x.shape[2:])


def _with_previous(x: Float[Array, "B N C H K"]) -> Float[Array, "B N T H K"]:
    before = jax.lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (1, -1, 0), *((0, 0, 0),) * 3))
    return jnp.concatenate([before, x], axis=2)


def decoded_attention(
    q: Heads,
    ring: tuple[Float[Array, "B R H K"], Float[Array, "B R H W"]],
    new: tuple[Heads, Values],
    length: Int[Array, ""],
    sees: Callable[[Array, Array], Bool[Array, "S T"]],
) -> tuple[Values, tuple[Array, Array]]:
    """Attention of tokens that come after `length` others, of which the last R are in a ring.

    `sees(query, key)` says which earlier place a place sees. With the ring that has the new ones.
    """
    size, count = ring[0].shape[1], q.shape[1]
    query = length + jnp.arange(count)
    slots = jnp.arange(size)
    # The last place before `length` that went into each slot; below 0 nothing did yet.
    kept = length - 1 - (length - 1 - slots) % size
    place = jnp.concatenate([kept, query])[None]
    allowed = (place >= 0) & (place <= query[:, None]) & sees(query[:, None], place)
    k, v = (jnp.concatenate(pair, axis=1) for pair in zip(ring, new, strict=True))
    scores = jnp.einsum("bshk,bthk->bhst", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(allowed[None, None], scores * q.shape[-1] ** -0.5, MASKED_SCORE)
    out = jnp.einsum("bhst,bthw->bshw", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)
    filled = tuple(old.at[:, query % size].set(x) for old, x in zip(ring, new, strict=True))
    return out, (filled[0], filled[1])
