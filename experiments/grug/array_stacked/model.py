"""The base model with its layers stacked: one block, whose arrays have the layers in front.

A scan applies it, so one layer is compiled however many there are. Weights and results are base's.
"""

from dataclasses import dataclass
from typing import Literal
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int
from jaxtyping import PRNGKeyArray as Key

from chomp.config import Config, setting
from chomp.errors import require_at_most, require_divides
from chomp.kernels import loss
from chomp.kernels.attention import AttentionMask, Backend, KeyValueCache, attention
from chomp.kernels.embedding import embedded
from chomp.kernels.norm import rms_norm
from chomp.kernels.projection import projection, projections
from chomp.kernels.remat import Remat
from chomp.kernels.rotary import Angles, require_pairs, rotary_angles, rotate
from chomp.mesh import BATCH_AXES, abstract_mesh
from experiments.grug.array_stacked.scanned import scanned

# Axes: L layers, B batch, S sequence, D model width, H query heads, G key-value heads, K head
# width, E a width cut over `model` (HK, GK or F), F MLP width, V vocabulary. A block sees no L.
Tokens = Int[Array, "B S"]
Hidden = Float[Array, "B S D"]
Logits = Float[Array, "B S V"]  # always float32
Layer = KeyValueCache | None  # what a layer has seen; None outside of decoding
LayerOut = tuple[Hidden, Layer]
Mask = AttentionMask | None  # None: causal

# Where activations lie: rows over the batch axes, heads over `model`.
ROWS = P(BATCH_AXES, None, None)
HEADS = P(BATCH_AXES, None, "model", None)


# verbatim: base
@dataclass(frozen=True, kw_only=True)
class GrugModelConfig(Config):
    """Shape of the model. Only the vocabulary has no default: it belongs to the tokenizer."""

    # Upper bounds are far above any real model: they catch slips, which would otherwise end as a
    # lack of memory or of time. A tokenizer has fewer than 2**24 ids, a row at most 2**20 tokens.

    vocab_size: int = setting(ge=1, lt=2**24)
    hidden_dim: int = setting(default=512, ge=1, le=2**20)
    intermediate_dim: int = setting(default=1536, ge=1, le=2**20)
    num_layers: int = setting(default=6, ge=1, le=4096)
    num_heads: int = setting(default=8, ge=1, le=2**16)
    # Fewer than num_heads: groups of queries share keys and values.
    num_kv_heads: int = setting(default=8, ge=1, le=2**16)
    head_dim: int | None = setting(default=None, ge=1, le=2**16)  # None: hidden_dim / num_heads
    max_seq_len: int = setting(default=1024, ge=1, le=2**20)  # of a row; no weight depends on it
    mlp: Literal["relu2", "swiglu"] = "relu2"  # relu squared, or a SiLU gate: a third product
    qk_norm: bool = True  # of queries and keys, so that attention logits stay bounded
    # Larger: slower turns, which tell longer distances apart.
    rope_theta: float = setting(default=10_000.0, ge=1, le=1e12)
    document_positions: bool = False  # positions begin again with each document of a row
    # Tokens each query sees; None: the whole prefix.
    sliding_window: int | None = setting(default=None, ge=1, le=2**20)
    # Logits end as cap * tanh(logits / cap).
    logit_soft_cap: float | None = setting(default=None, gt=0, le=1e6)
    layer_norm_eps: float = setting(default=1e-5, gt=0, lt=1)
    initializer_std: float = setting(default=0.02, gt=0, le=10)
    remat: Remat = setting(default="none", mark="schedule")  # what the backward pass makes again
    attention: Backend = setting(default="auto", mark="schedule")  # which kernel

    def __post_init__(self) -> None:
        require_divides("num_kv_heads", self.num_kv_heads, "num_heads", self.num_heads)
        if self.head_dim is None:
            require_divides("num_heads", self.num_heads, "hidden_dim", self.hidden_dim)
        require_pairs(self.inferred_head_dim)

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
    own_key = jax.random.fold_in(key, crc32(path.encode()))  # `hash` is salted anew by each process
    return std * jax.random.truncated_normal(own_key, -3.0, 3.0, shape, out_sharding=spec)


# FSDP and tensor parallelism by hand: a weight's shards over `data` are collected for its product,
# its cut over `model` stays. Into columns that need no exchange, out of them with a sum.
def _columns(x: Hidden, *weights: Array) -> tuple[Float[Array, "B S _"], ...]:
    return projections(x, *(jax.reshard(weight, P(None, "model")) for weight in weights))


def _rows(x: Float[Array, "B S E"], weight: Array) -> Hidden:
    return projection(x, jax.reshard(weight, P("model", None)), out_sharding=ROWS)


# verbatim: base
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
        # Cut over `data` to be stored, over `model` into whole heads that are used where they lie.
        hk, gk, spec = cfg.num_heads * k, cfg.num_kv_heads * k, P("data", "model")
        return Attention(
            w_q=_weight(key, f"{path}/w_q", (d, hk), spec, std),
            w_k=_weight(key, f"{path}/w_k", (d, gk), spec, std),
            w_v=_weight(key, f"{path}/w_v", (d, gk), spec, std),
            w_o=jnp.zeros((hk, d), out_sharding=P("model", "data")),
            # Vectors lie whole on every device: collecting them would cost more than keeping them.
            q_norm=jnp.ones(k, out_sharding=P(None)) if cfg.qk_norm else None,
            k_norm=jnp.ones(k, out_sharding=P(None)) if cfg.qk_norm else None,
            cfg=cfg,
        )

    def _heads(self, flat: Array, norm: Array | None = None) -> Float[Array, "B S H K"]:
        k = self.cfg.inferred_head_dim
        heads = jnp.reshape(flat, (*flat.shape[:2], -1, k), out_sharding=HEADS)
        return heads if norm is None else rms_norm(heads, norm, self.cfg.layer_norm_eps)

    def __call__(self, x: Hidden, mask: AttentionMask, angles: Angles, cache: Layer) -> LayerOut:
        """What each position gathers; with a cache, x comes after what the cache has seen."""
        start = 0 if cache is None else cache.length  # positions that came before x
        q, k, v = _columns(x, self.w_q, self.w_k, self.w_v)
        q = rotate(self._heads(q, self.q_norm), angles)  # turned last: norms weigh pairs unevenly
        k, v = rotate(self._heads(k, self.k_norm), angles), self._heads(v)
        if cache is not None:
            k, v, _ = cache = cache.extended(k, v)  # kept turned: a step turns only its own
        heads = attention(q, k, v, mask, query_offset=start, backend=self.cfg.attention)
        flat = jnp.reshape(heads, (*x.shape[:2], -1), out_sharding=P(BATCH_AXES, None, "model"))
        return _rows(flat, self.w_o), cache


# verbatim: base
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
        w_down = jnp.zeros(shape[::-1], out_sharding=P("model", "data"))
        return MLP(w_up, w_gate if cfg.mlp == "swiglu" else None, w_down)

    def __call__(self, x: Hidden) -> Hidden:
        if self.w_gate is None:
            (up,) = _columns(x, self.w_up)
            return _rows(jnp.square(jax.nn.relu(up)), self.w_down)  # Primer, arXiv 2109.08668
        up, gate = _columns(x, self.w_up, self.w_gate)
        return _rows(up * jax.nn.silu(gate), self.w_down)


# verbatim: base
class Block(eqx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    attn_norm: Float[Array, " D"]
    attn: Attention
    mlp_norm: Float[Array, " D"]
    mlp: MLP

    @staticmethod
    def init(cfg: GrugModelConfig, path: str, *, key: Key) -> "Block":
        """One layer; `path` names it among the others."""
        attn = Attention.init(cfg, f"{path}/attn", key=key)
        attn_norm, mlp_norm = (jnp.ones(cfg.hidden_dim, out_sharding=P(None)) for _ in range(2))
        return Block(attn_norm, attn, mlp_norm, MLP.init(cfg, f"{path}/mlp", key=key))

    def __call__(self, x: Hidden, mask: AttentionMask, angles: Angles, cache: Layer) -> LayerOut:
        """The residual stream after this layer, and the layer's cache if it has one."""
        eps = self.attn.cfg.layer_norm_eps
        gathered, cache = self.attn(rms_norm(x, self.attn_norm, eps), mask, angles, cache)
        x = x + gathered  # the stream itself is never normed: gradients pass as they are
        return x + self.mlp(rms_norm(x, self.mlp_norm, eps)), cache


class Transformer(eqx.Module):
    """Token ids to hidden states to logits."""

    token_embed: Float[Array, "V D"]
    blocks: Block  # every array is [L, ...]
    final_norm: Float[Array, " D"]
    lm_head: Float[Array, "D V"]
    cfg: GrugModelConfig = eqx.field(static=True)

    @staticmethod
    def init(cfg: GrugModelConfig, *, key: Key) -> "Transformer":
        """Fresh weights, equal on every mesh."""
        v, d, std = cfg.vocab_size, cfg.hidden_dim, cfg.initializer_std
        # Each drawn from base's keys, then stacked: twice for a moment, in room that Adam takes.
        layers = [Block.init(cfg, f"blocks/{i}", key=key) for i in range(cfg.num_layers)]
        return Transformer(
            token_embed=_weight(key, "token_embed", (v, d), P("model", "data"), std),
            blocks=jax.tree.map(lambda *own: jnp.stack(own), *layers),  # cut as each layer is
            final_norm=jnp.ones(d, out_sharding=P(None)),
            lm_head=_weight(key, "lm_head", (d, v), P("data", "model"), std),  # stays cut in use
            cfg=cfg,
        )

    def param_groups(self) -> "Transformer":
        """How the optimizer treats each weight: by its axes in one layer, a norm is no matrix."""
        groups = jax.tree.map(lambda weight: "matrix" if weight.ndim > 1 else "vector", self)
        layers = jax.tree.map(lambda weight: "matrix" if weight.ndim > 2 else "vector", self.blocks)
        return eqx.tree_at(lambda m: (m.token_embed, m.blocks), groups, ("embedding", layers))

    def _trunk(self, token_ids: Tokens, mask: AttentionMask, cache: Layer = None) -> LayerOut:
        cfg = self.cfg
        x = embedded(self.token_embed, token_ids, out_sharding=ROWS)
        mask = mask.with_sliding_window(cfg.sliding_window or mask.sliding_window)
        documents = mask if cfg.document_positions else AttentionMask.causal()
        positions = documents.positions(x.shape[1]) + (cache.length[0] if cache else 0)
        angles = rotary_angles(positions, width=cfg.inferred_head_dim, theta=cfg.rope_theta)
        layers, remat = (self.blocks, cache), "none" if cache else cfg.remat
        x, cache = scanned(lambda x, own: own[0](x, mask, angles, own[1]), x, layers, remat)
        return rms_norm(x, self.final_norm, cfg.layer_norm_eps), cache

    def __call__(self, token_ids: Tokens, mask: Mask = None, *, key: Key | None = None) -> Hidden:
        """Hidden state of every position, ready for the head. Base draws nothing from `key`."""
        limit = ("model.max_seq_len", self.cfg.max_seq_len)
        require_at_most("train.seq_len", token_ids.shape[1], *limit)  # while tracing: no cost
        return self._trunk(token_ids, mask or AttentionMask.causal())[0]

    def _head(self) -> Float[Array, "D V"]:
        """The unembedding. Tied: `jax.reshard(self.token_embed.T, P(None, "model"))`, this line."""
        return jax.reshard(self.lm_head, P(None, "model"))

    def _unembed(self, hidden: Hidden) -> Logits:
        # float32: between 16 and 32 bfloat16 has only every eighth.
        logits = jnp.einsum("bsd,dv->bsv", hidden, self._head(), preferred_element_type=jnp.float32)
        return loss.soft_capped(logits, self.cfg.logit_soft_cap)

    def logits(self, token_ids: Tokens, mask: Mask = None) -> Logits:
        """Next-token logits of every position."""
        return self._unembed(self(token_ids, mask))

    def next_token_loss(
        self,
        token_ids: Tokens,
        loss_weight: Float[Array, "B S"],
        *,
        mask: Mask = None,
        reduction: loss.Reduction = "mean",
        logsumexp_weight: float = 0.0,
        key: Key | None = None,
    ) -> Float[Array, "..."]:
        """Loss of predicting token i+1 at position i; the last position has nothing to predict."""
        return loss.linear_cross_entropy(  # a chunk of tokens at a time, never all logits
            self(token_ids, mask, key=key),
            self._head(),
            loss.next_tokens(token_ids),
            loss_weight,
            reduction=reduction,
            logsumexp_weight=logsumexp_weight,
            logit_soft_cap=self.cfg.logit_soft_cap,
        )

    def next_token_scores(self, token_ids: Tokens, mask: Mask = None) -> loss.Scores:
        """Those losses, none weighted, and whether each token i+1 was the likeliest one."""
        hidden, cap = self(token_ids, mask), self.cfg.logit_soft_cap
        return loss.next_token_scores(hidden, self._head(), token_ids, logit_soft_cap=cap)

    def init_cache(self, batch_size: int, max_len: int) -> KeyValueCache:
        """An empty cache, stacked, for `batch_size` generations of at most `max_len` tokens."""
        cfg, num = self.cfg, self.cfg.num_layers
        shape = (num, batch_size, max_len, cfg.num_kv_heads, cfg.inferred_head_dim)
        empty = jax.reshard(jnp.zeros(shape, self.lm_head.dtype), P(None, *HEADS))
        return KeyValueCache(empty, empty, jnp.zeros(num, jnp.int32))

    def decode_step(self, cache: KeyValueCache, token_ids: Tokens) -> tuple[Logits, KeyValueCache]:
        """Logits after each of S new tokens, and the cache with them; they must fit into it."""
        hidden, cache = self._trunk(token_ids, AttentionMask.causal(), cache)
        return self._unembed(hidden), cache


def debug_mesh_and_token_pspec(num_devices: int) -> tuple[AbstractMesh, P]:
    """An abstract mesh of that many devices, and the spec of a batch of tokens on it."""
    return abstract_mesh(data=num_devices), P(BATCH_AXES, None)
