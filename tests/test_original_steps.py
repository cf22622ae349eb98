"""Steps of every template, looked at for what the first chomp's did wrong (test_original_bugs.py).

Most of it shows when a step is traced, which compiles nothing.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.checkpoint import (
    CheckpointMetadata,
    LoadOptions,
    restore_latest_or_initialize,
    save_step_checkpoint,
)
from chomp.data import GrugLmExample, LmComponentConfig, LmDataConfig, MemorySource
from chomp.errors import CheckpointError
from chomp.kernels.precision import Precision
from chomp.mesh import abstract_arrays, place_batch
from chomp.optim import GrugOptimizerConfig
from chomp.tracking.metrics import TRAIN_LOSS
from chomp.training import TRAINED_TOKENS
from chomp.variants.checkout import variant_folders
from tests import tiny

TEMPLATES = [variant.name for variant in variant_folders(Path(__file__).parents[1])]
# So many tokens that logits come in chunks; a number of micro-batches that nothing else has.
MICRO_BATCHES, BATCH, LENGTH = 3, 64, 128
# As far as a template's model has them.
SIZES = {
    "hidden_dim": 64, "intermediate_dim": 128, "num_layers": 2, "model_dim": 64, "z_dim": 32,
    "value_dim": 128, "ffn_hidden_dim": 128, "chunk_size": 32, "norm_num_groups": 16,
}  # fmt: skip


def modules(template: str) -> tuple[Any, Any]:
    """The model and the loop of a template."""
    package = f"experiments.grug.{template}"
    return importlib.import_module(f"{package}.model"), importlib.import_module(f"{package}.train")


def small(cfg: Any) -> Any:
    """A model config with those sizes of ours that it has."""
    return replace(cfg, **{f.name: SIZES[f.name] for f in fields(cfg) if f.name in SIZES})


def state_and_step(template: str, cfg: Any, mp: Precision) -> tuple[Callable[[], Any], Any]:
    """How a template's state begins, and its step; under the mesh that is set."""
    model, train = modules(template)
    weights = jax.eval_shape(lambda: model.Transformer.init(cfg, key=jax.random.key(0)))
    optimizer = GrugOptimizerConfig().build(100, weights.param_groups())

    def fresh() -> Any:
        key = jax.random.key(0)  # made here: nothing can be computed on an abstract mesh
        return train.initial_state(cfg, optimizer=optimizer, mp=mp, key=key, ema_beta=None)

    return fresh, train._make_train_step(optimizer, mp, z_loss_weight=1e-4, ema_beta=None)


@pytest.fixture(scope="module", params=TEMPLATES)
def traced(request: pytest.FixtureRequest) -> tuple[Any, int]:
    """A step of a template with bfloat16 weights, traced on one device, and its vocabulary."""
    model, _ = modules(request.param)
    cfg = small(model.GrugModelConfig(vocab_size=8192))
    mesh, spec = model.debug_mesh_and_token_pspec(1)

    def placed(leaf: Any, shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    with jax.sharding.use_abstract_mesh(mesh):
        fresh, step = state_and_step(request.param, cfg, Precision.parse("params=bfloat16"))
        state = jax.eval_shape(fresh)
        state = jax.tree.map(lambda x: placed(x, x.shape, getattr(x.sharding, "spec", P())), state)
        zeros = np.zeros((BATCH, LENGTH), np.int32)
        rows = GrugLmExample.from_rows(zeros, zeros, eos_id=1)
        batch = jax.tree.map(lambda x: placed(x, (MICRO_BATCHES, *x.shape), P(None, *spec)), rows)
        return step.trace(state, batch), cfg.vocab_size


def operations(jaxpr: Any) -> Iterator[Any]:
    """Every operation of a program, those of its inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        parts = jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns"))
        for inner in (getattr(part, "jaxpr", part) for part in parts):
            yield from operations(inner) if hasattr(inner, "eqns") else ()


def test_a_step_takes_the_memory_of_the_state_it_replaces(traced):
    (state, batch), _ = traced[0].args_info
    assert all(leaf.donated for leaf in jax.tree.leaves(state))
    assert not any(leaf.donated for leaf in jax.tree.leaves(batch))


def test_gradients_add_up_in_float32_though_the_weights_are_bfloat16(traced):
    (state, _), _ = traced[0].args_info
    weights = jax.tree.leaves(state.params)
    assert any(weight.dtype == jnp.bfloat16 for weight in weights)
    (sums,) = (
        [made.aval for made in each.outvars]
        for each in operations(traced[0].jaxpr.jaxpr)
        if each.primitive.name == "scan" and each.params["length"] == MICRO_BATCHES
    )
    shapes = [each.shape for each in sums if each.dtype == jnp.float32]
    assert not [each for each in sums if each.dtype in (jnp.bfloat16, jnp.float16)]
    assert all(shapes.count(weight.shape) for weight in weights)


def test_no_array_of_a_step_is_as_large_as_all_logits(traced):
    sizes = [
        made.aval.size
        for each in operations(traced[0].jaxpr.jaxpr)
        for made in each.outvars
        if hasattr(made.aval, "size")
    ]
    assert max(sizes) < BATCH * LENGTH * traced[1]


@pytest.mark.parametrize("template", TEMPLATES)
def test_only_what_a_product_multiplies_by_decays(template: str):
    model, _ = modules(template)
    cfg = model.GrugModelConfig(vocab_size=64)
    weights = abstract_arrays(lambda: model.Transformer.init(cfg, key=jax.random.key(0)))
    groups = weights.param_groups()
    config = GrugOptimizerConfig(weight_decay=0.5, warmup_steps=0)
    # Its shape does not decide: dynamics may well have two axes, as the first chomp's had.
    ones = jax.tree.map(lambda _: jnp.ones((2, 2)), groups)
    optimizer = config.build(10, groups)

    @jax.jit
    def moved(weights: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, weights)
        updates, _ = optimizer.update(zeros, optimizer.init(weights), weights)
        return updates

    decayed = jax.tree.map(lambda update: bool((update != 0).all()), moved(ones))
    expected = jax.tree.map(lambda label: label == "matrix", groups)
    assert jax.tree.leaves(decayed) == jax.tree.leaves(expected)


def packed_batch() -> GrugLmExample:
    """Two micro-batches whose rows hold documents of 5, 3 and 4 tokens; two of them end in 0."""
    tokens = np.random.default_rng(0).integers(1, 64, (8, 16), dtype=np.int32)
    tokens[:, [4, 7]] = 0
    segments = np.tile(np.repeat([0, 1, 2, -1], [5, 3, 4, 4]), (8, 1)).astype(np.int32)
    rows = GrugLmExample.from_rows(tokens, segments, eos_id=0, train_on_eos=False)
    return jax.tree.map(lambda leaf: leaf.reshape(2, -1, 16), rows)


@pytest.mark.parametrize("template", TEMPLATES)
def test_tokens_seen_are_those_that_a_loss_was_asked_of(template: str, one_device_mesh: Mesh):
    cfg = small(modules(template)[0].GrugModelConfig(vocab_size=64))
    with jax.set_mesh(one_device_mesh):
        fresh, step = state_and_step(template, cfg, Precision())

        @jax.jit
        def trained_tokens(batch: GrugLmExample) -> jax.Array:
            return step(fresh(), batch)[1][TRAINED_TOKENS]  # the compiler leaves out all else

        found = trained_tokens(place_batch(packed_batch(), one_device_mesh, batch_axis=1))
    # Of each document all but the first token, and not the two ends.
    assert float(found) == 8 * (3 + 1 + 3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_step_of_every_template_is_compiled_and_run_on_a_gpu(
    template: str, one_device_mesh: Mesh
):
    assert jax.default_backend() == "gpu", "set JAX_PLATFORMS=cuda, on a GPU machine"
    cfg = small(modules(template)[0].GrugModelConfig(vocab_size=64))
    with jax.set_mesh(one_device_mesh):
        fresh, step = state_and_step(template, cfg, Precision.parse("compute=bfloat16"))
        batch = place_batch(packed_batch(), one_device_mesh, batch_axis=1)
        state, losses = jax.jit(fresh)(), []
        for _ in range(3):
            state, metrics = step(state, batch)
            losses.append(float(metrics[TRAIN_LOSS]))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert step._cache_size() == 1


def test_another_run_is_told_before_an_array_is_read(tmp_path: Path, one_device_mesh: Mesh):
    component = LmComponentConfig(source=MemorySource(documents=("never read",)))
    config = tiny.run_config(LmDataConfig(components={"texts": component}), tmp_path)
    about = CheckpointMetadata(
        step=2,
        run_id="tiny",
        attempt=1,
        config_hash="theirs",
        config={"model": {"hidden_dim": 64}},
        data_fingerprint="",
        data_offset=0,
        tokens_seen=0,
    )
    with jax.set_mesh(one_device_mesh):
        save_step_checkpoint(str(tmp_path), {"step": jnp.int32(2), "w": jnp.ones(4)}, about)
    # Of the same size, and nothing that could be read.
    for file in (tmp_path / "step-2/state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(CheckpointError, match="was saved by another run"):
        restore_latest_or_initialize(
            str(tmp_path),
            lambda: {"step": jnp.int32(0), "w": jnp.zeros(4)},
            about=replace(about, config_hash="ours", config={"model": {"hidden_dim": 32}}),
            mesh=one_device_mesh,
            config=config,
            options=LoadOptions.of(config.trainer),
        )
