"""Megalodon (arXiv 2404.08801): a moving average carries the past, attention looks around a chunk.

Layers are stacked and scanned. The average and the norm over time are in `ema.py` and `norm.py`,
attention in `chunks.py`, products with weights in `products.py`. Documents of a row never see each
other: averages, norms, positions and chunks begin again with each, unless rows come without
documents (`data.stream_semantics`).
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int
from jaxtyping import PRNGKeyArray as Key

from chomp.kernels import loss
from chomp.kernels.attention import AttentionMask, attention
from chomp.kernels.layers import Angles, embed, remat, rms_norm, rotary_angles, rotate
from chomp.kernels.self_check import KernelShapes
from chomp.mesh import BATCH_AXES, abstract_mesh
from experiments.grug.megalodon.cache import Cache, LayerCache, empty_cache
from experiments.grug.megalodon.chunks import (
    chunk_attention,
    chunk_mask,
    decoded_attention,
    dropped_attention,
)
from experiments.grug.megalodon.config import GrugModelConfig
from experiments.grug.megalodon.ema import ComplexEma
from experiments.grug.megalodon.norm import Places, RunningSums, TimestepNorm, layer_norm
from experiments.grug.megalodon.products import (
    COLUMNS,
    ROWS,
    activated,
    biased,
    dropped,
    into_columns,
    made_again,
    out_of_columns,
    product,
)
from experiments.grug.megalodon.weights import matrices, own_key, table, zeros

# Axes: *L layers, B batch, S sequence, D model width, Z width of queries and keys (H heads of K), E
# width of values (H heads of W), F FFN width, V vocabulary. A layer sees no L: a scan takes the
# arrays of all layers apart.
Tokens = Int[Array, "B S"]
Hidden = Float[Array, "B S D"]
Logits = Float[Array, "B S V"]  # always float32
Mask = AttentionMask | None  # None: causal


class Around(NamedTuple):
    """What all layers need to know about the tokens of a batch."""

    places: Places | None  # in their documents; None: rows are one document each
    sums: RunningSums
    reach: Places  # how many earlier tokens attention sees
    mask: AttentionMask  # the same for kernels
    angles: Angles

    @staticmethod
    def of(cfg: GrugModelConfig, mask: AttentionMask, length: int) -> "Around":
        """The surroundings of rows of that length."""
        places, chunk = mask.positions(length), cfg.chunk_size
        known = None if mask.segment_ids is None else places
        if cfg.attention_window is None:
            reach = turned = places % chunk  # positions begin again with each chunk
            seen = chunk_mask(mask, places, chunk)
        else:
            reach, turned = places.clip(max=cfg.attention_window - 1), places
            seen = mask.with_sliding_window(cfg.attention_window)
        angles = rotary_angles(turned, width=cfg.inferred_head_dim, theta=cfg.rope_base)
        return Around(known, RunningSums.of(places), reach, seen, angles)


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

    def __call__(self, x: Hidden, around: Around, key: Key | None) -> Hidden:
        """The stream with what each position gathered."""
        u = made_again(lambda x: self.norm(x, around.sums), x)
        c = made_again(lambda u: self.ema(u, around.places), u)
        m = made_again(lambda c: self._averaged(c, key), c)
        q, k, v = self._heads(u, m, around.angles)
        return x + self._added(m, self._gathered(q, k, v, around, key), key)

    def continued(
        self, x: Hidden, angles: Angles, cache: LayerCache, length: Int[Array, ""]
    ) -> tuple[Hidden, LayerCache]:
        """The same of tokens that come after `length` others, and what is kept with them."""
        u, norm = self.norm.continued(x, cache.norm, length)
        c, ema = self.ema.continued(u, cache.ema)
        m = self._averaged(c, None)
        q, k, v = self._heads(u, m, angles)
        chunk, window = self.cfg.chunk_size, self.cfg.attention_window

        def sees(query: Array, place: Array) -> Array:
            return query // chunk == place // chunk if window is None else query - place < window

        ring = cache.keys, cache.values
        o, ring = decoded_attention(q, ring, (k, v), length, sees)
        return x + self._added(m, o, None), LayerCache(*ring, norm, ema)

    def _averaged(self, c: Hidden, key: Key | None) -> Hidden:
        scale = jnp.ones(c.shape[-1]) if self.ema_norm is None else 1.0 + self.ema_norm
        m = rms_norm(c, scale, self.cfg.norm_eps)
        return dropped(m, self.cfg.hidden_dropout, key, "averaged")

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
            z = jnp.reshape(biased(z, self.b_z), by_head, out_sharding=specs[0])
            z = z * jax.lax.rsqrt(jnp.mean(jnp.square(z), axis=-1, keepdims=True) + cfg.norm_eps)
            # Both are divided by sqrt(K); kernels do that to scores too, so queries are not.
            q = (z * scale[0] + bias[0] * width**0.5).astype(m.dtype)
            k = (z * scale[1] * width**-0.5 + bias[1]).astype(m.dtype)
            return rotate(q, angles), rotate(k, angles)

        z = product(m, self.w_z, P(None, specs[0][2]), P(BATCH_AXES, None, specs[0][2]))
        q, k = made_again(queries_and_keys, z)
        v = made_again(lambda v: activated(v, self.b_v), into_columns(u, self.w_v))
        return q, k, jnp.reshape(v, by_head, out_sharding=specs[1])

    def _gathered(
        self, q: Array, k: Array, v: Array, around: Around, key: Key | None
    ) -> Float[Array, "B S H W"]:
        cfg = self.cfg
        if key is not None and cfg.attention_dropout > 0.0:
            rate, mode = cfg.attention_dropout, cfg.attention_dropout_mode
            key, block = own_key(key, "scores"), cfg.sliding_window
            return dropped_attention(q, k, v, around.reach, block, rate=rate, mode=mode, key=key)
        if cfg.attention_window is not None:
            return attention(q, k, v, around.mask, backend=cfg.attention)
        return chunk_attention(q, k, v, around.mask, cfg.chunk_size, cfg.attention)

    def _added(self, m: Hidden, o: Float[Array, "B S H W"], key: Key | None) -> Hidden:
        """What the sub-layer adds to the stream: the average itself, and gated attention."""

        def gated(r: Array, o: Array) -> Hidden:
            o = jnp.reshape(o, r.shape, out_sharding=COLUMNS) * activated(r, self.b_r)
            return out_of_columns(dropped(o, self.cfg.dropout, key, "o"), self.w_h2)

        o = made_again(gated, into_columns(m, self.w_r), o)
        h = biased(out_of_columns(m, self.w_h1), self.b_h1) + o.astype(jnp.float32)
        return dropped(h.astype(m.dtype), self.cfg.dropout, key, "h")


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
                dropped(active, self.cfg.hidden_dropout, key, "ffn hidden"), self.w_2
            )

        into = (self.w_1,) if self.w_3 is None else (self.w_1, self.w_3)
        y = made_again(normed, y)
        hidden = made_again(gated, *(into_columns(y, weight) for weight in into))
        added = dropped(hidden, self.cfg.dropout, key, "ffn")
        if self.rescale is None:
            return added
        return (added.astype(jnp.float32) * self.rescale[None, None]).astype(added.dtype)


class Block(eqx.Module):
    """Two hops: attention adds to the stream, the FFN sees that and adds to what came in."""

    attn: Attention
    ffn: FFN

    def __call__(self, x: Hidden, around: Around, key: Key | None) -> Hidden:
        """The residual stream after this layer."""
        return x + self.ffn(self.attn(x, around, key), key)

    def continued(
        self, x: Hidden, angles: Angles, cache: LayerCache, length: Int[Array, ""]
    ) -> tuple[Hidden, LayerCache]:
        """The same while decoding."""
        y, cache = self.attn.continued(x, angles, cache, length)
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

    def _embedded(self, token_ids: Tokens) -> Hidden:
        x = embed(self.token_embed, token_ids, out_sharding=ROWS)
        return x * math.sqrt(self.cfg.model_dim) if self.cfg.scale_emb else x

    def __call__(self, token_ids: Tokens, mask: Mask = None, *, key: Key | None = None) -> Hidden:
        """Hidden state of every position, ready for the head; with a key, under dropout."""
        cfg, mask = self.cfg, mask or AttentionMask.causal()
        around = Around.of(cfg, mask, token_ids.shape[1])
        x = dropped(self._embedded(token_ids), cfg.dropout, key, "embedding")
        keys = None if key is None else jax.random.split(own_key(key, "layers"), cfg.num_layers)

        def layer(x: Hidden, own: tuple[Block, Key | None]) -> tuple[Hidden, None]:
            return own[0](x, around, own[1]), None

        x, _ = jax.lax.scan(remat(layer, cfg.remat), x, (self.blocks, keys))
        return self.final_norm(x, around.sums)

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
        cache, hidden = self._continued(cache, token_ids[:, : length - num * kept])
        if num:
            # Where they lie is said: of one row in one piece the reshape would forget it.
            pieces = jnp.reshape(
                token_ids[:, length - num * kept :], (batch, num, kept), out_sharding=ROWS
            )
            cache, rest = jax.lax.scan(
                lambda *piece: self._continued(*piece), cache, pieces.swapaxes(0, 1)
            )
            rest = jnp.reshape(rest.swapaxes(0, 1), (batch, num * kept, -1), out_sharding=ROWS)
            hidden = jnp.concatenate([hidden, rest], axis=1)
        return self._unembed(hidden), cache

    def _continued(self, cache: Cache, token_ids: Tokens) -> tuple[Cache, Hidden]:
        cfg, length = self.cfg, cache.length
        places = (length + jnp.arange(token_ids.shape[1]))[None]
        turned = places if cfg.attention_window else places % cfg.chunk_size
        angles = rotary_angles(turned, width=cfg.inferred_head_dim, theta=cfg.rope_base)

        def layer(x: Hidden, own: tuple[Block, LayerCache]) -> tuple[Hidden, LayerCache]:
            return own[0].continued(x, angles, own[1], length)

        x, layers = jax.lax.scan(layer, self._embedded(token_ids), (self.blocks, cache.layers))
        hidden, norm = self.final_norm.continued(x, cache.final_norm, length)
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
