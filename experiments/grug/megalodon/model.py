"""Megalodon (arXiv 2404.08801): a moving average carries the past, attention looks around a chunk.

Layers are stacked and scanned. The average, the norm over time and products with weights are in
`layers.py`, attention and what decoding keeps in `attention.py`. Documents of a row never see each
other: averages, norms, positions and chunks begin again with each, unless rows come without
documents (`data.stream_semantics`).
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int
from jaxtyping import PRNGKeyArray as Key

from chomp.kernels import loss
from chomp.kernels.attention import AttentionMask
from chomp.kernels.layers import Angles, embed, remat, rotary_angles
from chomp.mesh import BATCH_AXES, abstract_mesh
from experiments.grug.megalodon.attention import (
    Attention,
    BatchContext,
    Cache,
    LayerCache,
    empty_cache,
)
from experiments.grug.megalodon.config import GrugModelConfig
from experiments.grug.megalodon.layers import (
    ROWS,
    TimestepNorm,
    dropout,
    into_columns,
    layer_norm,
    matrices,
    out_of_columns,
    own_key,
    recompute,
    table,
    zeros,
)

# Axes: *L layers, B batch, S sequence, D model width, F FFN width, V vocabulary. A layer sees no L:
# a scan takes the arrays of all layers apart.
Tokens = Int[Array, "B S"]
Hidden = Float[Array, "B S D"]
Logits = Float[Array, "B S V"]  # always float32
Mask = AttentionMask | None  # None: causal


class FFN(eqx.Module):
    """Two products around a SiLU, or three with a gate, after a norm."""

    norm_scale: Float[Array, "*L D"] | None
    norm_bias: Float[Array, "*L D"] | None
    w_1: Float[Array, "*L D F"]
    w_2: Float[Array, "*L F D"]
    w_3: Float[Array, "*L D F"] | None
    rescale: Float[Array, "*L D"] | None
    cfg: GrugModelConfig = eqx.field(static=True)

    @staticmethod
    def init(cfg: GrugModelConfig, *, key: Key) -> "FFN":
        """Of all layers, stacked."""
        num, d, f = cfg.num_layers, cfg.model_dim, cfg.ffn_hidden_dim
        into, out = P(None, "data", "model"), P(None, "model", "data")

        def weight(name: str, fan_in: int, fan_out: int, spec: P) -> Array:
            return matrices(key, f"ffn/{name}", (num, fan_in, fan_out), spec, cfg.init_mode)

        shrinking = 0.1 * 0.5 ** jnp.arange(num, dtype=jnp.float32)
        return FFN(
            norm_scale=zeros(num, d) if cfg.norm_affine else None,
            norm_bias=zeros(num, d) if cfg.norm_affine else None,
            w_1=weight("w_1", d, f, into),
            w_2=weight("w_2", f, d, out),
            w_3=weight("w_3", d, f, into) if cfg.swiglu else None,
            rescale=zeros(num, d) + shrinking[:, None] if cfg.rescale_nffn else None,
            cfg=cfg,
        )

    def __call__(self, y: Hidden, key: Key | None) -> Hidden:
        """What is added to the stream."""

        def normed(y: Array) -> Hidden:
            scale = jnp.ones(y.shape[-1]) if self.norm_scale is None else 1.0 + self.norm_scale
            bias = jnp.zeros(y.shape[-1]) if self.norm_bias is None else self.norm_bias
            return layer_norm(y, scale, bias, self.cfg.norm_eps)

        def gated(*hidden: Array) -> Hidden:
            active = jax.nn.silu(hidden[0])
            active = active * hidden[1] if len(hidden) == 2 else active
            return out_of_columns(
                dropout(active, self.cfg.hidden_dropout, key, "ffn hidden"), self.w_2
            )

        into = (self.w_1,) if self.w_3 is None else (self.w_1, self.w_3)
        y = recompute(normed, y)
        hidden = recompute(gated, *(into_columns(y, weight) for weight in into))
        added = dropout(hidden, self.cfg.dropout, key, "ffn")
        if self.rescale is None:
            return added
        return (added.astype(jnp.float32) * self.rescale[None, None]).astype(added.dtype)


class Block(eqx.Module):
    """Two hops: attention adds to the stream, the FFN sees that and adds to what came in."""

    attn: Attention
    ffn: FFN

    def __call__(self, x: Hidden, context: BatchContext, key: Key | None) -> Hidden:
        """The residual stream after this layer."""
        return x + self.ffn(self.attn(x, context, key), key)

    def decode(
        self, x: Hidden, angles: Angles, cache: LayerCache, length: Int[Array, ""]
    ) -> tuple[Hidden, LayerCache]:
        """The same while decoding."""
        y, cache = self.attn.decode(x, angles, cache, length)
        return x + self.ffn(y, None), cache


class Transformer(eqx.Module):
    """Token ids to hidden states to logits."""

    token_embed: Float[Array, "V D"]
    blocks: Block  # every array is [L, ...]
    final_norm: TimestepNorm
    lm_head: Float[Array, "D V"] | None  # None: the embedding
    cfg: GrugModelConfig = eqx.field(static=True)

    @staticmethod
    def init(cfg: GrugModelConfig, *, key: Key) -> "Transformer":
        """Fresh weights, equal on every mesh."""
        v, d = cfg.vocab_size, cfg.model_dim
        head = None
        if not cfg.share_emb:
            head = table(key, "lm_head", (d, cfg.num_logits), P("data", "model"), d)
        return Transformer(
            token_embed=table(key, "token_embed", (v, d), P("model", "data"), d),
            blocks=Block(Attention.init(cfg, key=key), FFN.init(cfg, key=key)),
            final_norm=TimestepNorm.init(d, num_groups=cfg.norm_num_groups, eps=cfg.norm_eps),
            lm_head=head,
            cfg=cfg,
        )

    def param_groups(self) -> "Transformer":
        """How the optimizer treats each weight.

        `dynamics`, float32 under any precision and never decayed: averages, norms, what scales
        queries and keys, the factors of FFNs.
        """
        groups = jax.tree.map(lambda weight: "dynamics", self)
        matrices = [f"attn.w_{name}" for name in ("z", "v", "r", "h1", "h2")]
        matrices += [f"ffn.w_{number}" for number in (1, 2, 3)]
        biases = [f"attn.b_{name}" for name in ("z", "v", "r", "h1")]
        labels: dict[str, str] = {
            "token_embed": "embedding",
            "lm_head": "matrix",
            **{f"blocks.{name}": "matrix" for name in matrices},
            **{f"blocks.{name}": "vector" for name in biases},
        }
        for path, label in labels.items():
            groups = _labelled(groups, path, label)
        return groups

    def _embed(self, token_ids: Tokens) -> Hidden:
        x = embed(self.token_embed, token_ids, out_sharding=ROWS)
        return x * math.sqrt(self.cfg.model_dim) if self.cfg.scale_emb else x

    def __call__(self, token_ids: Tokens, mask: Mask = None, *, key: Key | None = None) -> Hidden:
        """Hidden state of every position, ready for the head; with a key, under dropout."""
        cfg, mask = self.cfg, mask or AttentionMask.causal()
        context = BatchContext.of(cfg, mask, token_ids.shape[1])
        x = dropout(self._embed(token_ids), cfg.dropout, key, "embedding")
        keys = None if key is None else jax.random.split(own_key(key, "layers"), cfg.num_layers)

        def layer(x: Hidden, own: tuple[Block, Key | None]) -> tuple[Hidden, None]:
            return own[0](x, context, own[1]), None

        x, _ = jax.lax.scan(remat(layer, cfg.remat), x, (self.blocks, keys))
        return self.final_norm(x, context.sums)

    def _head(self) -> Float[Array, "D V"]:
        weight = self.token_embed.T if self.lm_head is None else self.lm_head
        return jax.reshard(weight, P(None, "model"))

    def _unembed(self, hidden: Hidden) -> Logits:
        return jnp.einsum("bsd,dv->bsv", hidden, self._head(), preferred_element_type=jnp.float32)

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
        return loss.linear_cross_entropy(
            self(token_ids, mask, key=key),
            self._head(),
            loss.next_tokens(token_ids),
            loss_weight,
            reduction=reduction,
            logsumexp_weight=logsumexp_weight,
        )

    def next_token_scores(self, token_ids: Tokens, mask: Mask = None) -> loss.Scores:
        """Those losses, none weighted, and whether each token i+1 was the likeliest one."""
        return loss.next_token_scores(self(token_ids, mask), self._head(), token_ids)

    def init_cache(self, batch_size: int, max_len: int) -> Cache:
        """An empty cache; beyond a chunk it takes no more room, however long texts become."""
        attn = jax.tree.map(lambda x: x[0], self.blocks.attn)  # one layer is like the others
        return empty_cache(
            self.cfg,
            attn.norm.empty_state(batch_size),
            attn.ema.empty_state(batch_size),
            num_kept=min(self.cfg.sliding_window, max_len),
            dtype=self.token_embed.dtype,
        )

    def decode_step(self, cache: Cache, token_ids: Tokens) -> tuple[Logits, Cache]:
        """Logits after each of S new tokens, and the cache with them."""
        kept, (batch, length) = cache.layers.keys.shape[2], token_ids.shape
        # At most as many at once as are kept: more would overwrite what others still look at.
        num = (length - 1) // kept
        cache, hidden = self._continue(cache, token_ids[:, : length - num * kept])
        if num:
            # Where they lie is said: of one row in one piece the reshape would forget it.
            pieces = jnp.reshape(
                token_ids[:, length - num * kept :], (batch, num, kept), out_sharding=ROWS
            )
            cache, rest = jax.lax.scan(
                lambda *piece: self._continue(*piece), cache, pieces.swapaxes(0, 1)
            )
            rest = jnp.reshape(rest.swapaxes(0, 1), (batch, num * kept, -1), out_sharding=ROWS)
            hidden = jnp.concatenate([hidden, rest], axis=1)
        return self._unembed(hidden), cache

    def _continue(self, cache: Cache, token_ids: Tokens) -> tuple[Cache, Hidden]:
        cfg, length = self.cfg, cache.length
        positions = (length + jnp.arange(token_ids.shape[1]))[None]
        rotated = positions if cfg.attention_window else positions % cfg.chunk_size
        angles = rotary_angles(rotated, width=cfg.inferred_head_dim, theta=cfg.rope_base)

        def layer(x: Hidden, own: tuple[Block, LayerCache]) -> tuple[Hidden, LayerCache]:
            return own[0].decode(x, angles, own[1], length)

        x, layers = jax.lax.scan(layer, self._embed(token_ids), (self.blocks, cache.layers))
        hidden, norm = self.final_norm.decode(x, cache.final_norm, length)
        return Cache(layers, norm, length + token_ids.shape[1]), hidden


def _labelled(groups: Transformer, path: str, label: str) -> Transformer:
    """`groups` with a label at a dotted path; a weight that this model does not have stays out."""

    def at(tree: Any) -> Any:
        for name in path.split("."):
            tree = getattr(tree, name)
        return tree

    return groups if at(groups) is None else eqx.tree_at(at, groups, label)


def debug_mesh_and_token_pspec(num_devices: int) -> tuple[AbstractMesh, P]:
    """An abstract mesh of that many devices, and the spec of a batch of tokens on it."""
    return abstract_mesh(data=num_devices), P(BATCH_AXES, None)
