"""Stacked layers are base's: weights, losses, gradients, updates, decoding, and checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding

from chomp.checkpoint import (
    CheckpointConfig,
    CheckpointMetadata,
    list_checkpoints,
    save_step_checkpoint,
)
from chomp.checkpoint.arrays import named_leaves
from chomp.config import config_to_mapping
from chomp.errors import CheckpointError, ChompError, StorageError
from chomp.kernels.attention import AttentionMask
from chomp.kernels.precision import Precision
from chomp.mesh import abstract_arrays, place_batch
from chomp.optim import GrugOptimizerConfig
from chomp.tracking.run_files import CHECKPOINTS
from experiments.grug.array_stacked import model as stacked_model
from experiments.grug.array_stacked import train as stacked_train
from experiments.grug.array_stacked.convert import (
    base_from_stacked,
    convert,
    form_of,
    stacked_from_base,
)
from experiments.grug.base import model as base_model
from experiments.grug.base import train as base_train
from experiments.grug.moe import model as moe_model
from tests import tiny

# Grouped heads and a gate, and every size can be cut into four by `data` and in two by `model`.
SHAPE = {
    "vocab_size": 24,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "max_seq_len": 16,
    "mlp": "swiglu",
    "attention": "reference",  # compiles fastest; which kernel attends is the block's own affair
}
B, S = 4, 12
OPTIMIZERS = {
    "adamw": GrugOptimizerConfig(lr=1e-2, weight_decay=0.1, warmup_steps=0),
    "muon": GrugOptimizerConfig(name="muon", lr=1e-3, weight_decay=0.1, warmup_steps=0),
}


@dataclass(frozen=True)
class Pair:
    """The same weights, every one of which matters, in both models on one mesh."""

    base: base_model.Transformer
    stacked: stacked_model.Transformer


def stack(blocks: Any, like: Any) -> Any:
    """Base's blocks as the one block of a stacked model."""
    stacked = jax.tree.map(lambda *own: jnp.stack(own), *blocks)
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(stacked))


def abstract(module: Any, **changes: Any) -> Any:
    """The shapes of a template's model."""
    config = module.GrugModelConfig(**SHAPE, **changes)
    return abstract_arrays(lambda: module.Transformer.init(config, key=jax.random.key(0)))


@cache
def pair_on(mesh: Mesh, remat: str = "none") -> Pair:
    random = np.random.default_rng(0)

    # Drawn on the host: a program that draws every weight takes seconds to compile.
    def drawn(leaf: Any) -> jax.Array:
        value = 0.3 * random.normal(size=leaf.shape) + (leaf.ndim == 1)
        return jax.device_put(value.astype(np.float32), NamedSharding(mesh, leaf.sharding.spec))

    with jax.set_mesh(mesh):
        base = jax.tree.map(drawn, abstract(base_model, remat=remat))
        like = abstract(stacked_model, remat=remat)
        blocks = stack(base.blocks, like.blocks)
        ends = (base.final_norm, base.lm_head)
        return Pair(base, stacked_model.Transformer(base.token_embed, blocks, *ends, like.cfg))


def rows() -> np.ndarray:
    """Random token ids."""
    return np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (B, S), dtype=np.int32)


def host(tree: Any) -> dict[str, np.ndarray]:
    """Leaves by name, as numpy."""
    return {name: np.asarray(leaf) for name, leaf in named_leaves(tree).items()}


def assert_same(found: Any, expected: Any, *, rtol: float = 1e-6, atol: float = 1e-6) -> None:
    """`found`, of the stacked model, equals `expected`, of base; both are trees of a model."""
    mine, wanted = host(found), stacked_from_base(host(expected))
    assert mine.keys() == wanted.keys()
    for name, value in mine.items():
        np.testing.assert_allclose(value, wanted[name], rtol=rtol, atol=atol, err_msg=name)


@jax.jit
def loss_and_gradient(model: Any, tokens: jax.Array, weight: jax.Array, ids: jax.Array) -> Any:
    """The loss over documents, and its gradients."""

    def loss(model: Any) -> jax.Array:
        mask = AttentionMask.causal(segment_ids=ids)
        return model.next_token_loss(tokens, weight, mask=mask, logsumexp_weight=1e-2)

    return jax.value_and_grad(loss)(model)


def batch_on(mesh: Mesh) -> Any:
    ids = np.broadcast_to(np.repeat([0, 1], S // 2), (B, S)).astype(np.int32)
    weight = np.linspace(0.0, 1.5, B * S, dtype=np.float32).reshape(B, S)
    return place_batch((rows(), weight, ids), mesh, batch_axis=0)


def test_fresh_weights_are_bitwise_those_of_base_and_lie_as_they_do(eight_device_mesh):
    with jax.set_mesh(eight_device_mesh):
        base, stacked = (
            module.Transformer.init(module.GrugModelConfig(**SHAPE), key=jax.random.key(3))
            for module in (base_model, stacked_model)
        )
    assert_same(stacked, base, rtol=0, atol=0)
    layers = dict(named_leaves(base.blocks[0]))
    for name, stack in named_leaves(stacked.blocks).items():
        assert tuple(stack.sharding.spec) == (None, *layers[name].sharding.spec), name


@pytest.mark.parametrize(
    ("mesh", "remat"), [("one_device_mesh", "none"), ("eight_device_mesh", "block")]
)
def test_the_loss_and_its_gradients_are_those_of_base(mesh, remat, request):
    mesh = request.getfixturevalue(mesh)
    pair = pair_on(mesh, remat)
    with jax.set_mesh(mesh):
        loss, gradient = loss_and_gradient(pair.stacked, *batch_on(mesh))
        expected, base_gradient = loss_and_gradient(pair.base, *batch_on(mesh))
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert_same(gradient, base_gradient)
    for weight, slope in zip(jax.tree.leaves(pair.stacked), jax.tree.leaves(gradient), strict=True):
        assert slope.sharding.spec == weight.sharding.spec


def test_every_weight_is_in_the_group_it_has_in_base(one_device_mesh):
    pair = pair_on(one_device_mesh)
    stacked, base = (
        dict(named_groups(model.param_groups())) for model in (pair.stacked, pair.base)
    )
    assert base.keys() - stacked.keys() == {name for name in base if name.startswith("blocks/")}
    for name, group in stacked.items():
        layers = [f"blocks/{i}/{name.removeprefix('blocks/')}" for i in range(2)]
        assert {base[own] for own in (layers if name.startswith("blocks/") else [name])} == {group}


def named_groups(groups: Any) -> list[tuple[str, str]]:
    leaves = jax.tree.leaves_with_path(groups)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), x) for path, x in leaves]


@pytest.mark.parametrize(
    ("name", "mesh"), [("adamw", "one_device_mesh"), ("muon", "eight_device_mesh")]
)
def test_an_update_is_that_of_base(name, mesh, request):
    mesh = request.getfixturevalue(mesh)
    pair = pair_on(mesh, "none" if name == "adamw" else "block")

    @jax.jit
    def updated(model: Any, gradient: Any) -> Any:
        optimizer = OPTIMIZERS[name].build(10, model.param_groups())
        return optimizer.update(gradient, optimizer.init(model), model)[0]

    with jax.set_mesh(mesh):
        # Any gradient will do, if it is of different size everywhere and has no structure.
        found = updated(pair.stacked, jax.tree.map(jnp.sin, pair.stacked))
        expected = updated(pair.base, jax.tree.map(jnp.sin, pair.base))
    assert_same(found, expected, rtol=1e-4, atol=1e-6)


def test_logits_are_those_of_base_all_at_once_and_by_decoding(one_device_mesh):
    with jax.set_mesh(one_device_mesh):
        pair, tokens = pair_on(one_device_mesh), jnp.asarray(rows())
        logits_of = jax.jit(lambda model: model.logits(tokens))
        model, whole = pair.stacked, np.asarray(logits_of(pair.stacked))
        expected = np.asarray(logits_of(pair.base))
        step = jax.jit(lambda cache, tokens: model.decode_step(cache, tokens))
        logits, kept = step(model.init_cache(B, S), tokens[:, :9])
        pieces = [logits]
        for i in range(9, S):
            logits, kept = step(kept, tokens[:, i : i + 1])
            pieces.append(logits)
    np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(kept.length, [S] * 2)
    np.testing.assert_allclose(np.concatenate(pieces, 1), whole, rtol=1e-5, atol=1e-5)


# ---- Checkpoints ----------------------------------------------------------------------------


def state_of(train: Any, model: Any, optimizer: GrugOptimizerConfig) -> Any:
    """The shapes of a template's state, averages too."""
    like, key = abstract(model), jax.random.key(0)
    rule = optimizer.build(10, like.param_groups())
    return jax.eval_shape(
        lambda: train.initial_state(like.cfg, optimizer=rule, mp=Precision(), key=key, ema_beta=0.9)
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_state_of_base_becomes_one_of_this_template_and_back(name, one_device_mesh):
    def zeros(state: Any) -> dict[str, np.ndarray]:
        return {name: np.zeros(x.shape, x.dtype) for name, x in named_leaves(state).items()}

    with jax.set_mesh(one_device_mesh):
        base = zeros(state_of(base_train, base_model, OPTIMIZERS[name]))
        stacked = zeros(state_of(stacked_train, stacked_model, OPTIMIZERS[name]))
    assert (form_of(base), form_of(stacked)) == ("base", "stacked")
    for found, expected in (
        (stacked_from_base(base), stacked),
        (base_from_stacked(stacked), base),
    ):
        shapes = ({n: (x.shape, x.dtype) for n, x in t.items()} for t in (found, expected))
        assert next(shapes) == next(shapes)


@given(
    st.integers(1, 12),
    st.lists(st.sampled_from(["attn/w_q", "mlp/w_up", "norm"]), min_size=1, unique=True),
)
def test_converting_there_and_back_changes_nothing(num_layers, weights):
    base = {
        f"{field}/blocks/{i}/{name}": np.full((2, 3), 100 * i + len(name), np.float32)
        for field in ("params", "opt_state/1/0/mu")
        for i in range(num_layers)
        for name in weights
    } | {"params/lm_head": np.ones(3), "step": np.int32(7).reshape(())}
    stacked = stacked_from_base(base)
    assert all(len(value) == num_layers for name, value in stacked.items() if "blocks" in name)
    again = base_from_stacked(stacked)
    assert again.keys() == base.keys()
    assert all(np.array_equal(again[name], base[name]) for name in base)


@pytest.mark.parametrize(
    ("turn", "leaves", "words"),
    [
        (stacked_from_base, {"blocks/0/w": (2,), "blocks/2/w": (2,)}, r"blocks/w in .*\[0, 2\]"),
        (stacked_from_base, {"blocks/0/w": (2,), "blocks/1/w": (3,)}, "blocks/w as"),
        (
            stacked_from_base,
            {"blocks/0/w": (2,), "blocks/1/w": (2,), "blocks/0/v": (2,)},
            r"blocks/v in the layers \[0\] of 2",
        ),
        (base_from_stacked, {"blocks/w": (2, 3), "blocks/v": (3, 3)}, "different lengths"),
    ],
)
def test_layers_that_are_not_alike_are_refused_by_name(turn: Callable[[Any], Any], leaves, words):
    with pytest.raises(CheckpointError, match=words) as refused:
        turn({name: np.zeros(shape) for name, shape in leaves.items()})
    assert "Allowed: " in str(refused.value)
    assert "Fix: " in str(refused.value)


def saved(folder: Path, leaves: dict[str, np.ndarray], model: Any = None) -> Path:
    """A run folder with one checkpoint, which holds these arrays of a model of that config."""
    about = CheckpointMetadata(
        step=3,
        run_id="a",
        attempt=1,
        config_hash="",
        config={} if model is None else {"model": config_to_mapping(model)},
        data_fingerprint="",
        data_offset=0,
        tokens_seen=0,
    )
    save_step_checkpoint(str(folder / CHECKPOINTS), jax.tree.map(jnp.asarray, leaves), about)
    return folder


def weights_of(model: Any, *fields: str) -> dict[str, np.ndarray]:
    """Random weights of an abstract model, once for each of a state's fields."""
    random = np.random.default_rng(0)
    return {
        f"{field}/{name}": random.normal(size=leaf.shape).astype(np.float32)
        for field in fields
        for name, leaf in named_leaves(model).items()
    }


def test_a_checkpoint_is_converted_to_the_bit_and_says_where_it_comes_from(tmp_path: Path):
    like = abstract(base_model)
    leaves = weights_of(like, "params", "ema_params", "opt_state/mu")
    base = saved(tmp_path / "base", leaves, like.cfg)
    there, back = tmp_path / "there", tmp_path / "back"
    assert convert(str(base), str(there)) == str(there / "checkpoints/step-3")
    assert convert(str(there), str(back), to="base") == str(back / "checkpoints/step-3")
    assert tiny.receipt(back, 3) == tiny.receipt(base, 3)
    found = list_checkpoints(str(there / CHECKPOINTS))[0].metadata
    assert found.arrays["ema_params/blocks/mlp/w_up"]["shape"] == [2, 16, 32]
    assert found.continues is not None
    assert found.continues["path"] == str(base / "checkpoints/step-3")


def test_what_cannot_be_converted_is_refused_and_nothing_is_written(tmp_path: Path):
    stacked = saved(tmp_path / "stacked", {"params/blocks/w": np.zeros((2, 3), np.float32)})
    other = saved(tmp_path / "other", {"params/w": np.zeros(3, np.float32)})
    for place, out, to, error, words in (
        (stacked, other, "base", StorageError, "is there already"),
        (stacked, tmp_path / "new", "stacked", CheckpointError, "keeps its layers stacked"),
        (other, tmp_path / "new", None, CheckpointError, "in no known way"),
        (tmp_path, tmp_path / "new", None, ChompError, "without checkpoints"),
    ):
        with pytest.raises(error, match=words) as refused:
            convert(str(place), str(out), to=to)
        assert "Allowed: " in str(refused.value)
        assert "Fix: " in str(refused.value)
    assert not (tmp_path / "new").exists()


def experts() -> tuple[dict[str, np.ndarray], Any]:
    """Weights of a mixture of experts, whose layers have the names of base's, and their config."""
    own = {name: SHAPE[name] for name in ("vocab_size", "hidden_dim", "num_heads", "num_kv_heads")}
    config = moe_model.GrugModelConfig(**own, num_layers=1, num_experts=2, expert_dim=4)
    like = abstract_arrays(lambda: moe_model.Transformer.init(config, key=jax.random.key(0)))
    return weights_of(like, "params"), config


def edited(**changes: tuple[int, ...] | None) -> tuple[dict[str, np.ndarray], Any]:
    """Base's weights and config, with the shape of some weights of every layer changed."""
    like = abstract(base_model)
    leaves = weights_of(like, "params", "ema_params")
    for name, shape in changes.items():
        for field in [f"ema_params/blocks/{i}/{name.replace('__', '/')}" for i in range(2)]:
            leaves.pop(field, None)
            leaves |= {} if shape is None else {field: np.zeros(shape, np.float32)}
    return leaves, like.cfg


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (experts, r"params/blocks/0/experts/w_up +\(2, 16, 4\) +\(missing\).*and \d+ more"),
        (partial(edited, mlp__bias=(4,)), r"ema_params/blocks/0/mlp/bias +\(4,\) +\(missing\)"),
        (partial(edited, mlp__w_up=None), r"blocks/1/mlp/w_up +\(missing\) +\(16, 32\)"),
        (partial(edited, mlp__w_up=(16, 8)), r"blocks/1/mlp/w_up +\(16, 8\) +\(16, 32\)"),
    ],
    ids=["experts", "one more", "one less", "another shape"],
)
def test_a_checkpoint_of_another_template_is_refused_by_its_weights(
    made: Callable[[], Any], words: str, tmp_path: Path
):
    place = saved(tmp_path / "other", *made())
    with pytest.raises(CheckpointError, match=rf"(?s){words}.*Allowed: .*base.*Fix: "):
        convert(str(place), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def of_this_template(config: base_train.GrugRunConfig, **trainer: Any) -> Any:
    """A run config of base as one of the stacked template."""
    parts = {f.name: getattr(config, f.name) for f in fields(config)}
    own = {
        "model": stacked_model.GrugModelConfig(**vars(config.model)),
        "trainer": stacked_train.GrugTrainerConfig(**(vars(config.trainer) | trainer)),
    }
    return stacked_train.GrugRunConfig(**(parts | own))


@pytest.mark.slow
def test_a_run_of_base_goes_on_with_stacked_layers_as_if_nothing_had_happened(tmp_path: Path):
    data = tiny.build_data(tmp_path)
    config = tiny.run_config(data, tmp_path / "base", steps=4, ema_beta=0.9)
    config = replace(config, eval=None, checkpoint=CheckpointConfig(save_interval_s=None, every=2))
    base_train.run_grug(config)
    there = tmp_path / "converted"
    convert(str(tmp_path / "base/checkpoints/step-2"), str(there))
    going_on = of_this_template(config, load_checkpoint_path=str(there))
    stacked_train.run_grug(replace(going_on, output_path=str(tmp_path / "stacked")))
    losses, expected = tiny.losses(tmp_path / "stacked"), tiny.losses(tmp_path / "base")
    assert losses == {step: pytest.approx(expected[step], rel=1e-6) for step in (2, 3)}
