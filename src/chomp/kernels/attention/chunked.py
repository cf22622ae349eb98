"""Exact self attention in plain XLA, with memory that grows with the length, not its square.

The fast one on CPU and the fallback elsewhere. Queries go in blocks, each against every key its
mask may show it, so a block's softmax is a whole one: no running maximum, no correction. Backward,
the scores of each block are computed again, as FlashAttention-2 does (arXiv 2307.08691).
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from chomp.errors import divisors, require
from chomp.kernels.attention.mask import AttentionMask
from chomp.kernels.attention.reference import MASKED_SCORE

# Axes: B batch, S positions, H query heads, G key-value heads (each serves R = H/G query heads),
# C queries of a block, M their rows (R C, one head's under the other's), T keys of a block,
# K head width, W width of a head's values.

# Queries are cut into spans, and a span stops at its last key: four spans of a causal row compute
# 5/8 of its square. Eight compute 9/16, take twice as long to compile, and on two CPU cores were
# no faster at 1024 tokens and a third slower at 256 (2026-11-15).
NUM_SPANS = 4
# On two CPU cores blocks of 64 took 1.5 times as long as 128 at 1024 tokens, and 256 no less than
# 128; at 128 tokens, blocks of 32 took a fifth less than 64 (2026-11-15).
MIN_BLOCK, MAX_BLOCK = 32, 128
# Rows of the batch go through together while their scores take no more than this. 16 rows of 4
# heads and 256 tokens took 30 ms one by one, 26 by twos and by fours, 31 by eights and 39 ms all
# at once, forward and backward on two CPU cores (2026-11-15).
SCORE_BYTES = 4 * 2**20
# Where values are `WIDE` times as wide as keys or more, a score is little beside its products. Two
# spans, up to 1024 tokens of one block each, compute 3/4 of a causal square, and are no slower: 298
# ms of CPU against 310 (two rows of 1024, keys of 256, values of 2048, forward and backward), and
# 497 against 517 for one of 2048; they compile in 0.6 s against 1.8. Not under a window, of which
# long blocks see too much: 1139 ms against 1029 for 4096 tokens under one of 1024 (2026-11-16).
WIDE, WIDE_NUM_SPANS, WIDE_MAX_BLOCK, WIDE_SCORE_BYTES = 4, 2, 512, 8 * 2**20

# A position: known while tracing in a span of one block, a loop's variable in one of several.
Position = int | Int[Array, ""]
# Gradients of a span's keys and values, summed so far. Keys last: 12 % less for the whole at 1024
# tokens than keys first (2026-11-15).
KeySums = tuple[Float[Array, "G K T"], Float[Array, "G W T"]]


class Span(NamedTuple):
    """`num_blocks` blocks of `block` queries from `start`, each shown `num_keys` keys."""

    start: int
    block: int
    num_blocks: int
    # All keys of the span lie between these two; under a window a block sees only some of them.
    first_key: int
    end_key: int
    num_keys: int


class Row(NamedTuple):
    """What one row of the batch is attended with."""

    q: Float[Array, "S H K"]
    k: Float[Array, "S G K"]
    v: Float[Array, "S G W"]
    # Documents as a column and as a row. Cut out of one array inside a loop, XLA for CPU compares
    # them one by one: 3.9 ms instead of 0.4 for a million scores (2026-11-15).
    query_ids: Int[Array, "S 1"] | None
    key_ids: Int[Array, "1 S"] | None


class Seen(NamedTuple):
    """What a block of queries gets to see, from key `first` on."""

    first: Position
    k: Float[Array, "G T K"]
    v: Float[Array, "G T W"]
    allowed: Bool[Array, "C T"] | None  # None: all of it


def chunked_attention(
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G W"],
    mask: AttentionMask,
) -> Float[Array, "B S H W"]:
    """softmax(q k^T / sqrt(K)) v under `mask`, each key-value head serving H/G query heads.

    For arrays of one device: under a mesh, call it inside shard_map. Scores, softmax and sums are
    float32; the factors of each product and the result have the dtype of the arrays.
    """
    heads, kv_heads = q.shape[2], k.shape[2]
    require(
        heads % kv_heads == 0,
        f"{heads} query heads with {kv_heads} key-value heads",
        allowed="query heads that are a multiple of key-value heads",
        fix=f"set num_kv_heads to one of {divisors(heads)}",
    )
    mask.require_length(q.shape[1], k.shape[1])
    ids = mask.segment_ids
    if ids is not None:
        ids = jnp.broadcast_to(jnp.asarray(ids), q.shape[:2])
    return _attention(mask.with_segment_ids(None), q, k, v, ids)


def query_spans(
    length: int, *, is_causal: bool, sliding_window: int | None, is_wide: bool = False
) -> tuple[Span, ...]:
    """The blocks of a row of `length` queries, with the keys that some query of each may see."""
    most, parts = (WIDE_MAX_BLOCK, WIDE_NUM_SPANS) if is_wide else (MAX_BLOCK, NUM_SPANS)
    block = min(length, max(MIN_BLOCK, min(most, length // parts)))
    num_blocks = max(1, length // (block * parts))
    spans: list[Span] = []
    start = 0
    while start < length:
        left = length - start
        # What whole blocks leave over makes a last, smaller one.
        size, count = (block, min(num_blocks, left // block)) if left >= block else (left, 1)
        end_key = start + size * count if is_causal else length
        first_key = 0 if sliding_window is None else max(0, start - sliding_window + 1)
        num_keys = end_key - first_key
        if is_causal and sliding_window is not None:
            num_keys = min(num_keys, size + sliding_window - 1)
        spans.append(Span(start, size, count, first_key, end_key, num_keys))
        start += size * count
    return tuple(spans)


def rows_at_once(
    batch: int, length: int, heads: int, spans: tuple[Span, ...], *, is_wide: bool = False
) -> int:
    """How many rows of the batch go through together, a divisor of it."""
    most, block = (WIDE_SCORE_BYTES, WIDE_MAX_BLOCK) if is_wide else (SCORE_BYTES, MAX_BLOCK)
    # XLA for CPU runs spans of one block side by side, the blocks of a longer one in turn.
    queries = length if all(span.num_blocks == 1 for span in spans) else block
    row_bytes = 4 * heads * queries * length
    return max(rows for rows in divisors(batch) if rows == 1 or rows * row_bytes <= most)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    mask: AttentionMask,
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G W"],
    ids: Int[Array, "B S"] | None,
) -> Float[Array, "B S H W"]:
    """Attention under a mask whose documents come beside it, so that the mask can be static."""
    return _forward(mask, q, k, v, ids)[0]


def _forward(
    mask: AttentionMask,
    q: Float[Array, "B S H K"],
    k: Float[Array, "B S G K"],
    v: Float[Array, "B S G W"],
    ids: Int[Array, "B S"] | None,
) -> tuple[Float[Array, "B S H W"], tuple[Any, ...]]:
    rows = Row(q, k, v, *((None, None) if ids is None else (ids[:, :, None], ids[:, None, :])))
    out, log_sums = _over_rows(_row_result, mask, rows)
    return out, (rows, out, log_sums)


def _backward(
    mask: AttentionMask, residuals: tuple[Any, ...], d_out: Float[Array, "B S H W"]
) -> tuple[Array | None, ...]:
    # The barrier keeps XLA from finding the scores of the forward pass here and saving those.
    (rows, out, log_sums), d_out = lax.optimization_barrier((residuals, d_out))
    dots = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1, keepdims=True)
    dq, dk, dv = _over_rows(_row_gradients, mask, rows, d_out, log_sums, dots)
    return dq, dk, dv, None


_attention.defvjp(_forward, _backward)


def _over_rows(of_row: Callable[..., Any], mask: AttentionMask, rows: Any, *rest: Array) -> Any:
    """`of_row` of every row of the batch: some together, one group after the other."""
    batch, length, heads, width = rows.q.shape
    window = mask.sliding_window
    is_wide = window is None and rows.v.shape[3] >= WIDE * width
    spans = query_spans(length, is_causal=mask.is_causal, sliding_window=window, is_wide=is_wide)
    together = rows_at_once(batch, length, heads, spans, is_wide=is_wide)
    run = functools.partial(of_row, mask, spans)
    if together == batch:
        return jax.vmap(run)(rows, *rest)
    # Single rows go without a batch axis: one of length 1 cost 15 % at 1024 tokens (2026-11-15).
    size = None if together == 1 else together
    return lax.map(lambda row: run(*row), (rows, *rest), batch_size=size)


def _row_result(
    mask: AttentionMask, spans: tuple[Span, ...], row: Row
) -> tuple[Float[Array, "S H W"], Float[Array, "S H 1"]]:
    """Attention of one row, and the logarithm of each query's sum of exp(score)."""
    keys = _heads_first(row.k), _heads_first(row.v)
    heads, kv_heads = row.q.shape[1], row.k.shape[1]

    def step(nothing: None, start: Position, *, span: Span) -> tuple[None, tuple[Array, Array]]:
        seen = _seen(mask, span, start, keys, row)
        q = _query_rows(_cut(row.q, start, span.block, 0), kv_heads)
        out, log_sums = _block_result(seen, q)
        out, log_sums = _of_query_rows(out, heads), _of_query_rows(log_sums, heads)
        return nothing, (out.astype(row.v.dtype), log_sums)

    parts = [_over_blocks(functools.partial(step, span=span), None, span)[1] for span in spans]
    out, log_sums = (jnp.concatenate(part) for part in zip(*parts, strict=True))
    return out, log_sums


def _row_gradients(
    mask: AttentionMask,
    spans: tuple[Span, ...],
    row: Row,
    d_out: Float[Array, "S H W"],
    log_sums: Float[Array, "S H 1"],
    dots: Float[Array, "S H 1"],
) -> tuple[Float[Array, "S H K"], Float[Array, "S G K"], Float[Array, "S G W"]]:
    """Gradients of one row's q, k and v; `dots` are the products of `d_out` and the result."""
    keys = _heads_first(row.k), _heads_first(row.v)
    heads, kv_heads = row.q.shape[1], row.k.shape[1]

    def step(sums: KeySums, start: Position, *, span: Span) -> tuple[KeySums, Array]:
        seen = _seen(mask, span, start, keys, row)
        of_queries = (row.q, d_out, log_sums, dots)
        rows = (_query_rows(_cut(x, start, span.block, 0), kv_heads) for x in of_queries)
        dq, dk, dv = _block_gradients(seen, *rows)
        at = seen.first - span.first_key
        sums = _add_at(sums[0], dk, at), _add_at(sums[1], dv, at)
        return sums, _of_query_rows(dq, heads).astype(row.q.dtype)

    dq_parts, key_parts = [], []
    for span in spans:
        # Like the keys, so that inside shard_map the sums vary over the same axes of the mesh.
        seen = (x[:, span.first_key : span.end_key].mT for x in keys)
        zeros = tuple(jnp.zeros_like(x, dtype=jnp.float32) for x in seen)
        sums, dq = _over_blocks(functools.partial(step, span=span), zeros, span)
        dq_parts.append(dq)
        key_parts.append(sums)
    dk, dv = (_sum_spans(spans, parts) for parts in zip(*key_parts, strict=True))
    return jnp.concatenate(dq_parts), dk.astype(row.k.dtype), dv.astype(row.v.dtype)


def _block_result(
    seen: Seen, q: Float[Array, "G M K"]
) -> tuple[Float[Array, "G M W"], Float[Array, "G M 1"]]:
    scores = _scores(seen, q)
    largest = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    out = _dot(weights.astype(seen.v.dtype), seen.v, 2, 1) / total
    return out, largest + jnp.log(total)


def _block_gradients(
    seen: Seen,
    q: Float[Array, "G M K"],
    d_out: Float[Array, "G M W"],
    log_sums: Float[Array, "G M 1"],
    dots: Float[Array, "G M 1"],
) -> tuple[Float[Array, "G M K"], Float[Array, "G K T"], Float[Array, "G W T"]]:
    """Gradients of q and, with the keys last, of k and v; float32."""
    probs = jnp.exp(_scores(seen, q) - log_sums)
    d_probs = _dot(d_out, seen.v, 2, 2)
    d_scores = (probs * (d_probs - dots) * q.shape[-1] ** -0.5).astype(q.dtype)
    dk, dv = _dot(q, d_scores, 1, 1), _dot(d_out, probs.astype(d_out.dtype), 1, 1)
    return _dot(d_scores, seen.k, 2, 1), dk, dv


def _scores(seen: Seen, q: Float[Array, "G M K"]) -> Float[Array, "G M T"]:
    scores = _dot(q, seen.k, 2, 2) * q.shape[-1] ** -0.5
    if seen.allowed is None:
        return scores
    repeats = q.shape[1] // seen.allowed.shape[0]
    return jnp.where(jnp.tile(seen.allowed, (repeats, 1))[None], scores, MASKED_SCORE)


def _seen(
    mask: AttentionMask,
    span: Span,
    start: Position,
    keys: tuple[Float[Array, "G S K"], Float[Array, "G S W"]],
    row: Row,
) -> Seen:
    """What the queries of the span's block at `start` see of `keys`, the row's k and v."""
    first: Position = span.first_key
    if mask.sliding_window is not None and span.num_keys < span.end_key - span.first_key:
        wanted = start - mask.sliding_window + 1
        first = jnp.clip(wanted, span.first_key, span.end_key - span.num_keys)
    query = (start + jnp.arange(span.block))[:, None]
    key = (first + jnp.arange(span.num_keys))[None, :]
    rules = []
    if mask.is_causal:
        rules.append(key <= query)
    if mask.sliding_window is not None:
        rules.append(key > query - mask.sliding_window)
    if row.query_ids is not None and row.key_ids is not None:
        of_queries = _cut(row.query_ids, start, span.block, 0)
        rules.append(of_queries == _cut(row.key_ids, first, span.num_keys, 1))
    allowed = functools.reduce(jnp.logical_and, rules) if rules else None
    k, v = (_cut(x, first, span.num_keys, 1) for x in keys)
    return Seen(first, k, v, allowed)


def _over_blocks(step: Callable[..., Any], carry: Any, span: Span) -> tuple[Any, Any]:
    """The last carry of `step` over the span's blocks, and its results one behind the other."""
    if span.num_blocks == 1:
        return step(carry, span.start)
    starts = span.start + span.block * jnp.arange(span.num_blocks)
    carry, results = lax.scan(step, carry, starts)
    return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)


def _add_at(total: Float[Array, "G K S"], part: Float[Array, "G K T"], at: Position) -> Array:
    """`total` with `part` added from position `at` on."""
    if part.shape == total.shape:
        return total + part
    here = lax.dynamic_slice_in_dim(total, at, part.shape[2], axis=2)
    return lax.dynamic_update_slice_in_dim(total, here + part, at, axis=2)


def _sum_spans(spans: tuple[Span, ...], parts: tuple[Array, ...]) -> Float[Array, "S G K"]:
    """What the spans found for their own keys, as one sum for each key of the row."""
    edges = sorted({edge for span in spans for edge in (span.first_key, span.end_key)})
    pieces = []
    for low, high in itertools.pairwise(edges):
        found = [
            part[:, :, low - span.first_key : high - span.first_key]
            for span, part in zip(spans, parts, strict=True)
            if span.first_key <= low and high <= span.end_key
        ]
        pieces.append(functools.reduce(jnp.add, found))
    return jnp.concatenate(pieces, axis=2).transpose(2, 0, 1)


def _cut(x: Array, start: Position, size: int, axis: int) -> Array:
    """`size` positions of `x` from `start` on."""
    if isinstance(start, int):
        return lax.slice_in_dim(x, start, start + size, axis=axis)
    return lax.dynamic_slice_in_dim(x, start, size, axis=axis)


def _heads_first(x: Float[Array, "S G K"]) -> Float[Array, "G S K"]:
    return x.transpose(1, 0, 2)


def _query_rows(x: Float[Array, "C H K"], kv_heads: int) -> Float[Array, "G M K"]:
    """The queries of a key-value head one under the other, so that its keys are not repeated."""
    queries, heads, width = x.shape
    grouped = x.reshape(queries, kv_heads, heads // kv_heads, width)
    return grouped.transpose(1, 2, 0, 3).reshape(kv_heads, -1, width)


def _of_query_rows(x: Float[Array, "G M K"], heads: int) -> Float[Array, "C H K"]:
    kv_heads, _, width = x.shape
    grouped = x.reshape(kv_heads, heads // kv_heads, -1, width)
    return grouped.transpose(2, 0, 1, 3).reshape(-1, heads, width)


def _dot(a: Array, b: Array, a_axis: int, b_axis: int) -> Float[Array, "G _ _"]:
    """Products of `a` and `b` summed over one axis of each, by key-value head, in float32."""
    axes = (((a_axis,), (b_axis,)), ((0,), (0,)))
    return lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)
