"""The base model: a Llama-style decoder on plain arrays. Pre-norm, no biases, untied head.

Read it from the top: config, modules, the whole transformer. Every weight is made beside its
`PartitionSpec`. To change the architecture, copy this folder and edit the copy.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int
from jaxtyping import PRNGKeyArray as Key

from chomp.config import Config
from chomp.errors import require_at_most, require_divides, require_positive
from chomp.kernels.attention import AttentionMask, KeyValueCache, attention
from chomp.kernels.loss import Reduction, linear_cross_entropy, next_tokens
from chomp.kernels.rotary import rotary
from chomp.mesh import BATCH_AXES, abstract_mesh

# Axes: B batch, S sequence, D model width, H query heads, G key-value heads, K head width,
# E heads laid side by side (HK or GK), F MLP width, V vocabulary.
Tokens = Int[Array, "B S"]
Hidden = Float[Array, "B S D"]
Logits = Float[Array, "B S V"]  # always float32
Layer = KeyValueCache | None  # what a layer has seen; None outside of decoding
Cache = tuple[Layer, ...]

# Where activations lie: rows over the batch axes, heads over `model`.
ROWS = P(BATCH_AXES, None, None)
COLUMNS = P(BATCH_AXES, None, "model")
HEADS = P(BATCH_AXES, None, "model", None)

# What the backward pass recomputes: nothing, each block, or a block but its matrix products.
REMAT = {
    "none": lambda apply: apply,
    "block": jax.checkpoint,
    "matmuls": partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable),
}


@dataclass(frozen=True, kw_only=True)
class GrugModelConfig(Config):
    """Shape of the model. Only the vocabulary has no default: it belongs to the tokenizer."""

    vocab_size: int
    hidden_dim: int = 512
    intermediate_dim: int = 1536
    num_layers: int = 6
    num_heads: int = 8
    num_kv_heads: int = 8
    head_dim: int | None = None  # None: hidden_dim / num_heads
    max_seq_len: int = 1024
    mlp: Literal["relu2", "swiglu"] = "relu2"
    qk_norm: bool = True
    rope_theta: float = 10_000.0
    sliding_window: int | None = None  # tokens each query sees; None: the whole prefix
    layer_norm_eps: float = 1e-5
    initializer_std: float = 0.02
    remat: Literal["none", "block", "matmuls"] = "none"  # see REMAT

    def __post_init__(self) -> None:
        require_positive(self)
        require_divides("num_kv_heads", self.num_kv_heads, "num_heads", self.num_heads)
        if self.head_dim is None:
            require_divides("num_heads", self.num_heads, "hidden_dim", self.hidden_dim)

    @property
    def inferred_head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden_dim // self.num_heads

    def flops_per_token(self, seq_len: int) -> float:
        """Forward operations per token in a row of `seq_len`: 2 per multiply-add, causal."""
        window = min(self.sliding_window or seq_len, seq_len)
        # Query i sees min(i, window) keys, i = 1..seq_len: the mean over the row.
        keys_seen = window - window * (window - 1) / (2 * seq_len)
        d, width, heads = self.hidden_dim, self.inferred_head_dim, self.num_heads
        attention = 2 * width * (d * (heads + self.num_kv_heads) + keys_seen * heads)
        mlp = (3 if self.mlp == "swiglu" else 2) * d * self.intermediate_dim
        return 2.0 * (self.num_layers * (attention + mlp) + d * self.vocab_size)


def _weight(key: Key, path: str, shape: tuple[int, int], spec: P, std: float) -> Array:
    """A weight drawn from a key of its own path: no mesh and no other weight can change it."""
    own_key = jax.random.fold_in(key, crc32(path.encode()))
    return jax.reshard(std * jax.random.truncated_normal(own_key, -3.0, 3.0, shape), spec)


def _ones(dim: int) -> Float[Array, " D"]:
    return jax.reshard(jnp.ones(dim), P(None))


def rms_norm(x: Float[Array, "... D"], scale: Float[Array, " D"], eps: float) -> Array:
    """x / rms(x) times a learned scale, computed in float32, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    scale = jnp.broadcast_to(scale.astype(jnp.float32), x.shape)
    return (x32 * inverse_rms * scale).astype(x.dtype)


class Attention(eqx.Module):
    """Grouped-query attention with rotary positions and, if asked, normalised queries and keys."""

    w_q: Float[Array, "D HK"]
    w_k: Float[Array, "D GK"]
    w_v: Float[Array, "D GK"]
    w_o: Float[Array, "HK D"]
    q_norm: Float[Array, " K"] | None
    k_norm: Float[Array, " K"] | None
    cfg: GrugModelConfig = eqx.field(static=True)

    @staticmethod
    def init(cfg: GrugModelConfig, path: str, *, key: Key) -> "Attention":
        """Random projections in, zeros out: each block starts as the identity."""
        d, k, std = cfg.hidden_dim, cfg.inferred_head_dim, cfg.initializer_std
        hk, gk, spec = cfg.num_heads * k, cfg.num_kv_heads * k, P("data", "model")
        return Attention(
            w_q=_weight(key, f"{path}/w_q", (d, hk), spec, std),
            w_k=_weight(key, f"{path}/w_k", (d, gk), spec, std),
            w_v=_weight(key, f"{path}/w_v", (d, gk), spec, std),
            w_o=jax.reshard(jnp.zeros((hk, d)), P("model", "data")),
            q_norm=_ones(k) if cfg.qk_norm else None,
            k_norm=_ones(k) if cfg.qk_norm else None,
            cfg=cfg,
        )

    def _heads(self, x: Hidden, weight: Array) -> Float[Array, "B S H K"]:
        # FSDP by hand: collect the shards over `data`, keep the split over `model`.
        flat = jnp.einsum("bsd,de->bse", x, jax.reshard(weight, P(None, "model")))
        return jnp.reshape(flat, (*x.shape[:2], -1, self.cfg.inferred_head_dim), out_sharding=HEADS)

    def __call__(self, x: Hidden, mask: AttentionMask, cache: Layer) -> tuple[Hidden, Layer]:
        """What each position gathers; with a cache, x comes after what the cache has seen."""
        start = jnp.int32(0) if cache is None else cache.length
        q, k, v = self._heads(x, self.w_q), self._heads(x, self.w_k), self._heads(x, self.w_v)
        if self.q_norm is not None and self.k_norm is not None:
            eps = self.cfg.layer_norm_eps
            q, k = rms_norm(q, self.q_norm, eps), rms_norm(k, self.k_norm, eps)
        positions = start + jnp.arange(x.shape[1])
        q, k = (rotary(heads, positions, theta=self.cfg.rope_theta) for heads in (q, k))
        if cache is not None:
            k, v, _ = cache = cache.extended(k, v)
        window = self.cfg.sliding_window or mask.sliding_window
        heads = attention(q, k, v, mask.with_sliding_window(window), query_offset=start)
        flat = jnp.reshape(heads, (*x.shape[:2], -1), out_sharding=COLUMNS)
        w_o = jax.reshard(self.w_o, P("model", None))
        return jnp.einsum("bse,ed->bsd", flat, w_o, out_sharding=ROWS), cache


class MLP(eqx.Module):
    """Two products around relu², or three around a SiLU gate."""

    w_up: Float[Array, "D F"]
    w_gate: Float[Array, "D F"] | None
    w_down: Float[Array, "F D"]

    @staticmethod
    def init(cfg: GrugModelConfig, path: str, *, key: Key) -> "MLP":
        """Random in, zeros out."""
        shape, std = (cfg.hidden_dim, cfg.intermediate_dim), cfg.initializer_std
        w_up = _weight(key, f"{path}/w_up", shape, P("data", "model"), std)
        w_gate = _weight(key, f"{path}/w_gate", shape, P("data", "model"), std)
        w_down = jax.reshard(jnp.zeros(shape[::-1]), P("model", "data"))
        return MLP(w_up, w_gate if cfg.mlp == "swiglu" else None, w_down)

    def __call__(self, x: Hidden) -> Hidden:
        up = jnp.einsum("bsd,df->bsf", x, jax.reshard(self.w_up, P(None, "model")))
        inner = jnp.square(jax.nn.relu(up))
        if self.w_gate is not None:
            gate = jnp.einsum("bsd,df->bsf", x, jax.reshard(self.w_gate, P(None, "model")))
            inner = up * jax.nn.silu(gate)
        w_down = jax.reshard(self.w_down, P("model", None))
        return jnp.einsum("bsf,fd->bsd", inner, w_down, out_sharding=ROWS)


class Block(eqx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    attn_norm: Float[Array, " D"]
    attn: Attention
    mlp_norm: Float[Array, " D"]
    mlp: MLP

    @staticmethod
    def init(cfg: GrugModelConfig, path: str, *, key: Key) -> "Block":
        """One layer; `path` names it among the others."""
        return Block(
            attn_norm=_ones(cfg.hidden_dim),
            attn=Attention.init(cfg, f"{path}/attn", key=key),
            mlp_norm=_ones(cfg.hidden_dim),
            mlp=MLP.init(cfg, f"{path}/mlp", key=key),
        )

    def __call__(self, x: Hidden, mask: AttentionMask, cache: Layer) -> tuple[Hidden, Layer]:
        """The residual stream after this layer, and the layer's cache if it has one."""
        eps = self.attn.cfg.layer_norm_eps
        gathered, cache = self.attn(rms_norm(x, self.attn_norm, eps), mask, cache)
        x = x + gathered
        return x + self.mlp(rms_norm(x, self.mlp_norm, eps)), cache


class Transformer(eqx.Module):
    """Token ids to hidden states to logits."""

    token_embed: Float[Array, "V D"]
    blocks: tuple[Block, ...]
    final_norm: Float[Array, " D"]
    lm_head: Float[Array, "D V"]
    cfg: GrugModelConfig = eqx.field(static=True)

    @staticmethod
    def init(cfg: GrugModelConfig, *, key: Key) -> "Transformer":
        """Fresh weights, equal on every mesh."""
        v, d, std = cfg.vocab_size, cfg.hidden_dim, cfg.initializer_std
        return Transformer(
            token_embed=_weight(key, "token_embed", (v, d), P("model", "data"), std),
            blocks=tuple(Block.init(cfg, f"blocks/{i}", key=key) for i in range(cfg.num_layers)),
            final_norm=_ones(d),
            lm_head=_weight(key, "lm_head", (d, v), P("data", "model"), std),
            cfg=cfg,
        )

    def param_groups(self) -> "Transformer":
        """A tree of this shape whose leaves say how the optimizer treats each weight."""
        groups = jax.tree.map(lambda weight: "matrix" if weight.ndim > 1 else "vector", self)
        return eqx.tree_at(lambda model: model.token_embed, groups, "embedding")

    def _trunk(
        self, token_ids: Tokens, mask: AttentionMask, cache: Cache | None = None
    ) -> tuple[Hidden, Cache]:
        # The table is collected first: looking up in a sharded one makes XLA do that anyway, worse.
        table = jax.reshard(self.token_embed, P(None, None))
        x = table.at[token_ids].get(out_sharding=ROWS)
        apply, seen = REMAT[self.cfg.remat](Block.__call__), []
        for block, layer in zip(self.blocks, cache or (None,) * len(self.blocks), strict=True):
            x, layer = apply(block, x, mask, layer)
            seen.append(layer)
        return rms_norm(x, self.final_norm, self.cfg.layer_norm_eps), tuple(seen)

    def __call__(
        self, token_ids: Tokens, mask: AttentionMask | None = None, *, key: Key | None = None
    ) -> Hidden:
        """Hidden state of every position, normalised and ready for the head. No mask: causal."""
        del key  # a variant with dropout draws from it; base has none
        length, limit = token_ids.shape[1], self.cfg.max_seq_len
        require_at_most("train.seq_len", length, "model.max_seq_len", limit)
        return self._trunk(token_ids, mask or AttentionMask.causal())[0]

    def _unembed(self, hidden: Hidden) -> Logits:
        head = jax.reshard(self.lm_head, P(None, "model"))
        return jnp.einsum("bsd,dv->bsv", hidden, head, preferred_element_type=jnp.float32)

    def logits(self, token_ids: Tokens, mask: AttentionMask | None = None) -> Logits:
        """Next-token logits of every position."""
        return self._unembed(self(token_ids, mask))

    def next_token_loss(
        self,
        token_ids: Tokens,
        loss_weight: Float[Array, "B S"],
        *,
        mask: AttentionMask | None = None,
        reduction: Reduction = "mean",
        logsumexp_weight: float = 0.0,
        key: Key | None = None,
    ) -> Float[Array, "..."]:
        """Loss of predicting token i+1 at position i; the last position has nothing to predict."""
        hidden, labels = self(token_ids, mask, key=key), next_tokens(token_ids)
        return linear_cross_entropy(
            hidden,
            jax.reshard(self.lm_head, P(None, "model")),
            labels,
            loss_weight,
            reduction=reduction,
            logsumexp_weight=logsumexp_weight,
        )

    def init_cache(self, batch_size: int, max_len: int) -> Cache:
        """An empty cache for `batch_size` generations of at most `max_len` tokens."""
        shape = (batch_size, max_len, self.cfg.num_kv_heads, self.cfg.inferred_head_dim)
        empty = jax.reshard(jnp.zeros(shape, self.lm_head.dtype), HEADS)
        return (KeyValueCache(empty, empty, jnp.int32(0)),) * len(self.blocks)

    def decode_step(self, cache: Cache, token_ids: Tokens) -> tuple[Logits, Cache]:
        """Logits after each of S new tokens, and the cache with them; they must fit into it."""
        hidden, cache = self._trunk(token_ids, AttentionMask.causal(), cache)
        return self._unembed(hidden), cache


def debug_mesh_and_token_pspec(num_devices: int) -> tuple[AbstractMesh, P]:
    """An abstract mesh of that many devices, and the spec of a batch of tokens on it."""
    return abstract_mesh(data=num_devices), P(BATCH_AXES, None)
