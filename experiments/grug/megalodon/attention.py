"""Attention of a Megalodon: gated, over a chunk of what the moving average has gathered.

A document is cut every C tokens, and a token sees its own chunk so far. What happened before
reaches it through the moving average alone, so a step costs the same per token at any length, and a
stream that is continued keeps C keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, DTypeLike, Float, Int
from jaxtyping import PRNGKeyArray as Key

from chomp.kernels.attention import AttentionMask, Backend, attention
from chomp.kernels.attention.reference import MASKED_SCORE
from chomp.kernels.ema import EmaState
from chomp.kernels.layers import Angles, rms_norm, rotary_angles, rotate
from chomp.kernels.self_check import KernelShapes
from chomp.mesh import BATCH_AXES
from experiments.grug.megalodon.config import DropoutMode, GrugModelConfig
from experiments.grug.megalodon.layers import (
    COLUMNS,
    ComplexEma,
    NormState,
    Positions,
    RunningSums,
    TimestepNorm,
    add_bias,
    bias_silu,
    dropout,
    into_columns,
    matrices,
    out_of_columns,
    own_key,
    product,
    recompute,
    zeros,
)

# Axes: *L layers, B batch, S sequence, D model width, Z width of queries and keys (H heads of K), E
# width of values (H heads of W), C chunk, N blocks of a row, Q queries and T keys of a block, R
# keys kept while decoding. A layer sees no L: a scan takes the arrays of all layers apart.
Hidden = Float[Array, "B S D"]
Heads = Float[Array, "B S H K"]
Values = Float[Array, "B S H W"]


class BatchContext(NamedTuple):
    """What all layers need to know about the tokens of a batch."""

    positions: Positions | None  # in their documents; None: rows are one document each
    sums: RunningSums
    reach: Positions  # how many earlier tokens attention sees
    mask: AttentionMask  # the same for kernels
    angles: Angles

    @staticmethod
    def of(cfg: GrugModelConfig, mask: AttentionMask, length: int) -> "BatchContext":
        """The surroundings of rows of that length."""
        positions, chunk = mask.positions(length), cfg.chunk_size
        known = None if mask.segment_ids is None else positions
        if cfg.attention_window is None:
            reach = rotated = positions % chunk  # positions begin again with each chunk
            seen = chunk_mask(mask, positions, chunk)
        else:
            reach, rotated = positions.clip(max=cfg.attention_window - 1), positions
            seen = mask.with_sliding_window(cfg.attention_window)
        angles = rotary_angles(rotated, width=cfg.inferred_head_dim, theta=cfg.rope_base)
        return BatchContext(known, RunningSums.of(positions), reach, seen, angles)


class LayerCache(NamedTuple):
    """What one layer keeps of a stream: the last R keys and values, a norm, an average."""

    keys: Float[Array, "B R H K"]  # rotated already
    values: Float[Array, "B R H W"]
    norm: NormState
    ema: EmaState


class Cache(NamedTuple):
    """What the model keeps of streams; the same size however long they are."""

    layers: LayerCache  # every array is [L, ...]
    final_norm: NormState
    length: Int[Array, ""]  # tokens so far, of all rows


class Attention(eqx.Module):
    """Gated attention over a chunk, of what a moving average has gathered."""

    norm: TimestepNorm
    ema: ComplexEma
    ema_norm: Float[Array, "*L D"] | None  # on top of 1, as the other scales
    w_z: Float[Array, "*L D Z"]
    b_z: Float[Array, "*L Z"]
    qk_scale: Float[Array, "*L 2 Z"]  # of queries and of keys, which are one projection
    qk_bias: Float[Array, "*L 2 Z"]
    w_v: Float[Array, "*L D E"]
    b_v: Float[Array, "*L E"]
    w_r: Float[Array, "*L D E"]
    b_r: Float[Array, "*L E"]
    w_h1: Float[Array, "*L D D"]
    b_h1: Float[Array, "*L D"]
    w_h2: Float[Array, "*L E D"]
    cfg: GrugModelConfig = eqx.field(static=True)

    @staticmethod
    def init(cfg: GrugModelConfig, *, key: Key) -> "Attention":
        """Of all layers, stacked."""
        num, d, z, e = cfg.num_layers, cfg.model_dim, cfg.z_dim, cfg.value_dim
        into, out = P(None, "data", "model"), P(None, "model", "data")

        def weight(name: str, fan_in: int, fan_out: int, spec: P) -> Array:
            return matrices(key, f"attn/{name}", (num, fan_in, fan_out), spec, cfg.init_mode)

        return Attention(
            norm=TimestepNorm.init(num, d, num_groups=cfg.norm_num_groups, eps=cfg.norm_eps),
            ema=ComplexEma.init(num, d, cfg.cema_ndim, key=own_key(key, "ema")),
            ema_norm=zeros(num, d) if cfg.norm_affine else None,
            w_z=weight("w_z", d, z, into),
            b_z=zeros(num, z),
            qk_scale=zeros(num, 2, z),
            qk_bias=zeros(num, 2, z),
            w_v=weight("w_v", d, e, into),
            b_v=zeros(num, e),
            w_r=weight("w_r", d, e, into),
            b_r=zeros(num, e),
            w_h1=weight("w_h1", d, d, out),
            b_h1=zeros(num, d),
            w_h2=weight("w_h2", e, d, out),
            cfg=cfg,
        )

    def __call__(self, x: Hidden, context: BatchContext, key: Key | None) -> Hidden:
        """The stream with what each position gathered."""
        u = recompute(lambda x: self.norm(x, context.sums), x)
        c = recompute(lambda u: self.ema(u, context.positions), u)
        m = recompute(lambda c: self._normed(c, key), c)
        q, k, v = self._heads(u, m, context.angles)
        return x + self._output(m, self._attend(q, k, v, context, key), key)

    def decode(
        self, x: Hidden, angles: Angles, cache: LayerCache, length: Int[Array, ""]
    ) -> tuple[Hidden, LayerCache]:
        """The same of tokens that come after `length` others, and what is kept with them."""
        u, norm = self.norm.decode(x, cache.norm, length)
        c, ema = self.ema.decode(u, cache.ema)
        m = self._normed(c, None)
        q, k, v = self._heads(u, m, angles)
        chunk, window = self.cfg.chunk_size, self.cfg.attention_window

        def sees(query: Array, place: Array) -> Array:
            return query // chunk == place // chunk if window is None else query - place < window

        ring = cache.keys, cache.values
        o, ring = decode_attention(q, ring, (k, v), length, sees)
        return x + self._output(m, o, None), LayerCache(*ring, norm, ema)

    def _normed(self, c: Hidden, key: Key | None) -> Hidden:
        scale = jnp.ones(c.shape[-1]) if self.ema_norm is None else 1.0 + self.ema_norm
        m = rms_norm(c, scale, self.cfg.norm_eps)
        return dropout(m, self.cfg.hidden_dropout, key, "averaged")

    def _heads(
        self, u: Hidden, m: Hidden, angles: Angles
    ) -> tuple[Float[Array, "B S H K"], Float[Array, "B S H K"], Float[Array, "B S H W"]]:
        cfg, width = self.cfg, self.cfg.inferred_head_dim
        specs = KernelShapes.of(cfg, seq_len=u.shape[1]).attention_specs(
            jax.sharding.get_abstract_mesh()
        )
        by_head = (*u.shape[:2], cfg.num_heads, -1)

        def queries_and_keys(z: Array) -> tuple[Array, Array]:
            per_head = (2, 1, 1, cfg.num_heads, width)
            scale, bias = (x.reshape(per_head) for x in (1.0 + self.qk_scale, self.qk_bias))
            z = jnp.reshape(add_bias(z, self.b_z), by_head, out_sharding=specs[0])
            z = z * jax.lax.rsqrt(jnp.mean(jnp.square(z), axis=-1, keepdims=True) + cfg.norm_eps)
            # Both are divided by sqrt(K); kernels do that to scores too, so queries are not.
            q = (z * scale[0] + bias[0] * width**0.5).astype(m.dtype)
            k = (z * scale[1] * width**-0.5 + bias[1]).astype(m.dtype)
            return rotate(q, angles), rotate(k, angles)

        z = product(m, self.w_z, P(None, specs[0][2]), P(BATCH_AXES, None, specs[0][2]))
        q, k = recompute(queries_and_keys, z)
        v = recompute(lambda v: bias_silu(v, self.b_v), into_columns(u, self.w_v))
        return q, k, jnp.reshape(v, by_head, out_sharding=specs[1])

    def _attend(
        self, q: Array, k: Array, v: Array, context: BatchContext, key: Key | None
    ) -> Float[Array, "B S H W"]:
        cfg = self.cfg
        if key is not None and cfg.attention_dropout > 0.0:
            rate, mode = cfg.attention_dropout, cfg.attention_dropout_mode
            key, block = own_key(key, "scores"), cfg.sliding_window
            return attention_with_dropout(
                q, k, v, context.reach, block, rate=rate, mode=mode, key=key
            )
        if cfg.attention_window is not None:
            return attention(q, k, v, context.mask, backend=cfg.attention)
        return chunk_attention(q, k, v, context.mask, cfg.chunk_size, cfg.attention)

    def _output(self, m: Hidden, o: Float[Array, "B S H W"], key: Key | None) -> Hidden:
        """What the sub-layer adds to the stream: the average itself, and gated attention."""

        def gated(r: Array, o: Array) -> Hidden:
            o = jnp.reshape(o, r.shape, out_sharding=COLUMNS) * bias_silu(r, self.b_r)
            return out_of_columns(dropout(o, self.cfg.dropout, key, "o"), self.w_h2)

        o = recompute(gated, into_columns(m, self.w_r), o)
        h = add_bias(out_of_columns(m, self.w_h1), self.b_h1) + o.astype(jnp.float32)
        return dropout(h.astype(m.dtype), self.cfg.dropout, key, "h")


# ---- Kernels ------------------------------------------------------------------------------------


def chunk_mask(mask: AttentionMask, positions: Positions, chunk: int) -> AttentionMask:
    """Who sees whom: `mask` with a new document wherever a chunk of one begins."""
    if positions.shape[1] <= chunk or mask.segment_ids is None:
        return mask  # there is one chunk, or chunks are as regular as rows
    begins = jnp.asarray(positions % chunk == 0)
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


def attention_with_dropout(
    q: Heads,
    k: Heads,
    v: Values,
    reach: Positions,
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
        probs = jax.nn.softmax(jnp.where(allowed, scores, MASKED_SCORE), axis=-1)
        probs = jnp.where(allowed, probs, 0.0)  # a query without a key gets nothing
    else:
        probs = jax.nn.softmax(jnp.where(allowed[:, :, None], scores, MASKED_SCORE), axis=-1)
        probs = jnp.where(keep, probs / (1.0 - rate), 0.0)
    out = jnp.einsum("bnhqt,bnthw->bnqhw", probs.astype(v.dtype), v)
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


def decode_attention(
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


# ---- Decoding -----------------------------------------------------------------------------------


def empty_cache(
    cfg: GrugModelConfig, norm: NormState, ema: EmaState, *, num_kept: int, dtype: DTypeLike
) -> Cache:
    """A cache of streams that have not begun; `norm` and `ema` are one layer's empty states."""
    num, batch = cfg.num_layers, norm.mean.shape[0]
    specs = KernelShapes.of(cfg, seq_len=1).attention_specs(jax.sharding.get_abstract_mesh())

    def ring(width: int, spec: P) -> Array:
        empty = jnp.zeros((num, batch, num_kept, cfg.num_heads, width), dtype)
        return jax.reshard(empty, P(None, *spec))

    layers = LayerCache(
        keys=ring(cfg.inferred_head_dim, specs[0]),
        values=ring(cfg.value_head_dim, specs[1]),
        norm=_placed(norm, num),
        ema=_placed(ema, num),
    )
    return Cache(layers, _placed(norm), jnp.int32(0))


def _placed(state: Any, *front: int) -> Any:
    """Zeros like `state`, its rows over the batch axes, with more axes in front."""

    def zeros(x: Array) -> Array:
        spec = P(*(None for _ in front), BATCH_AXES, *(None,) * (x.ndim - 1))
        return jax.reshard(jnp.zeros((*front, *x.shape), x.dtype), spec)

    return jax.tree.map(zeros, state)
