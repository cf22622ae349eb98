"""Our Megalodon and the public `megalodon-jax` package side by side: the same weights in both.

The package keeps matrices as [out, in], layers as a tuple, time constants with an axis of one, and
turns neighbouring pairs where we turn halves of a head.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import megalodon_jax
import numpy as np
from jaxtyping import Array

from experiments.grug.megalodon.model import GrugModelConfig, Transformer

# Ours in one layer -> theirs in one layer.
_MATRICES = {
    "attn/w_z": "attn.wz.weight",
    "attn/w_v": "attn.wv.weight",
    "attn/w_r": "attn.wr.weight",
    "attn/w_h1": "attn.wh1.weight",
    "attn/w_h2": "attn.wh2.weight",
    "ffn/w_1": "ffn.fc1.weight",
    "ffn/w_2": "ffn.fc2.weight",
    "ffn/w_3": "ffn.fc3.weight",
}
_AS_THEY_ARE = {
    "attn/norm/scale": "attn.timenorm.weight",
    "attn/norm/bias": "attn.timenorm.bias",
    "attn/ema/gamma_re": "attn.cema.gamma_real",
    "attn/ema/gamma_im": "attn.cema.gamma_imag",
    "attn/ema/omega": "attn.cema.omega",
    "attn/ema_norm": "attn.rmsnorm.gamma",
    "attn/b_z": "attn.wz.bias",
    "attn/b_v": "attn.wv.bias",
    "attn/b_r": "attn.wr.bias",
    "attn/b_h1": "attn.wh1.bias",
    "attn/qk_scale": "attn.gamma",
    "attn/qk_bias": "attn.beta",
    "ffn/norm_scale": "ffn.norm.weight",
    "ffn/norm_bias": "ffn.norm.bias",
    "ffn/rescale": "ffn.alpha",
}
_TIME_CONSTANTS = {"attn/ema/alpha": "alpha", "attn/ema/delta": "delta", "attn/ema/theta": "theta"}
_TURNED = ("attn/w_z", "attn/b_z", "attn/qk_scale", "attn/qk_bias")  # queries and keys on the end


def their_config(cfg: GrugModelConfig, **changes: Any) -> megalodon_jax.MegalodonConfig:
    """The package's config of the same model."""
    same = "vocab_size model_dim num_layers num_heads z_dim value_dim ffn_hidden_dim cema_ndim "
    same += "chunk_size attention_window norm_num_groups norm_eps norm_affine rope_base swiglu "
    same += "rescale_nffn scale_emb share_emb output_size"
    known = {name: getattr(cfg, name) for name in same.split()}
    return megalodon_jax.MegalodonConfig(**known | changes)


def their_model(ours: Transformer, **changes: Any) -> megalodon_jax.MegalodonForCausalLM:
    """The package's model with our weights."""
    cfg = their_config(ours.cfg, **changes)

    def drawn() -> megalodon_jax.MegalodonForCausalLM:
        return megalodon_jax.MegalodonForCausalLM(cfg, key=jax.random.key(0))

    # Only its structure is used: drawing its weights takes seconds. The scale of an embedding is a
    # number that the package cannot compute while it is traced.
    model = drawn() if cfg.scale_emb else jax.eval_shape(drawn)
    leaves = as_theirs(ours)

    def replaced(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        assert leaf.shape == leaves[name].shape, (name, leaf.shape, leaves[name].shape)
        return jnp.asarray(leaves.pop(name))

    model = jax.tree_util.tree_map_with_path(replaced, model)
    assert not leaves, sorted(leaves)
    return model


def as_theirs(ours: Transformer) -> dict[str, np.ndarray]:
    """A tree like our model (weights or gradients), as arrays by the package's own paths."""
    cfg = ours.cfg
    found = {
        ".model.embed.weight": ours.token_embed,
        ".model.norm.weight": ours.final_norm.scale,
        ".model.norm.bias": ours.final_norm.bias,
    }
    if ours.lm_head is not None:
        found[".lm_head.weight"] = ours.lm_head.T
    stacks = {_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(ours.blocks)}
    for ours_name, leaf in stacks.items():
        name, change = _conversion(ours_name, cfg)
        for index in range(cfg.num_layers):
            found[f".model.layers[{index}].{name}"] = change(np.asarray(leaf[index]))
    return {name: np.asarray(leaf) for name, leaf in found.items()}


def leaves_of(theirs: Any) -> dict[str, np.ndarray]:
    """The arrays of a tree like the package's model by their paths."""
    found = jax.tree_util.tree_leaves_with_path(theirs)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in found}


def as_ours(theirs: Any, template: Transformer) -> Transformer:
    """A tree like the package's model in the form of ours; `template` says of which shape."""
    leaves, cfg = leaves_of(theirs), template.cfg

    def replaced(path: Any, leaf: Array) -> Array:
        name = _path(path)
        if not name.startswith("blocks/"):
            place = {"token_embed": ".model.embed.weight", "lm_head": ".lm_head.weight"}
            place |= {"final_norm/scale": ".model.norm.weight"}
            place |= {"final_norm/bias": ".model.norm.bias"}
            value = leaves[place[name]]
            return jnp.asarray(value.T if name == "lm_head" else value)
        back = _conversion(name.removeprefix("blocks/"), cfg, is_back=True)
        layers = [leaves[f".model.layers[{i}].{back[0]}"] for i in range(cfg.num_layers)]
        return jnp.stack([jnp.asarray(back[1](layer)) for layer in layers]).reshape(leaf.shape)

    return jax.tree_util.tree_map_with_path(replaced, template)


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _conversion(
    name: str, cfg: GrugModelConfig, *, is_back: bool = False
) -> tuple[str, Callable[[np.ndarray], np.ndarray]]:
    """The package's name of a leaf of one layer, and what becomes of its array."""
    order = _neighbours(cfg, is_back=is_back)
    if name in _TIME_CONSTANTS:
        end = (1, 1) if name.endswith("theta") else (1,)
        shape: Callable[[np.ndarray], np.ndarray] = (
            (lambda x: x.reshape(x.shape[: -len(end)]))
            if is_back
            else (lambda x: x.reshape(*x.shape, *end))
        )
        return f"attn.cema.{_TIME_CONSTANTS[name]}", shape
    if name in _MATRICES:
        if name not in _TURNED:
            return _MATRICES[name], lambda x: x.T
        return _MATRICES[name], (lambda x: x[order].T) if is_back else (lambda x: x.T[order])
    turned = (lambda x: x[..., order]) if name in _TURNED else (lambda x: x)
    return _AS_THEY_ARE[name], turned


def _neighbours(cfg: GrugModelConfig, *, is_back: bool) -> np.ndarray:
    """Where each of the package's pairs of neighbours lies in our halves, or the other way."""
    width = cfg.inferred_head_dim
    one_head = np.arange(width).reshape(2, -1).T.ravel()  # 0, K/2, 1, K/2 + 1, ...
    order = np.concatenate([one_head + head * width for head in range(cfg.num_heads)])
    return np.argsort(order) if is_back else order


def deviations(found: Mapping[str, Array], expected: Mapping[str, Array]) -> dict[str, float]:
    """The largest difference of each leaf, relative to the leaf's largest entry."""
    assert found.keys() == expected.keys()
    return {
        name: float(
            np.max(np.abs(found[name] - expected[name])) / (np.max(np.abs(expected[name])) + 1e-12)
        )
        for name in found
    }
