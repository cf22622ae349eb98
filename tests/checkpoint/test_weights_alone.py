"""Weights of a checkpoint without the rest of its state, as evaluation reads them."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from chomp.checkpoint import (
    all_weights,
    best_weights,
    load_weights,
    read_step_folder,
    save_step_checkpoint,
    these_weights,
)
from chomp.checkpoint.format import write_metadata
from chomp.errors import CheckpointError, ConfigError
from tests.checkpoint.checkpoint_samples import about

State = dict[str, Any]


def state(*, has_average: bool = True) -> State:
    """Weights in half precision, their average in full, and what an optimizer keeps."""
    draw = partial(jax.random.normal, shape=(32, 16), out_sharding=P("data", "model"))
    weights = {"w": draw(jax.random.key(1)).astype(jnp.bfloat16), "b": jnp.zeros(4, jnp.bfloat16)}
    average = {"w": draw(jax.random.key(2)), "b": jnp.ones(4, jnp.float32)}
    moments = {"w": draw(jax.random.key(3)), "b": jnp.zeros(4, jnp.float32)}
    made = {"step": jnp.int32(3), "params": weights, "opt_state": moments}
    return {**made, "ema_params": average} if has_average else made


@pytest.fixture
def folder(tmp_path: Path, eight_device_mesh: Mesh) -> str:
    """A run folder with one checkpoint."""
    with jax.set_mesh(eight_device_mesh):
        save_step_checkpoint(str(tmp_path / "checkpoints"), state(), about(step=3))
    return str(tmp_path)


def abstract_params(mesh: Mesh) -> Any:
    """The weights' shapes and shardings on a mesh."""
    with jax.set_mesh(mesh):
        return jax.eval_shape(state)["params"]


def assert_equal(found: Any, wanted: Any) -> None:
    for name, leaf in wanted.items():
        assert found[name].dtype == leaf.dtype
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(leaf))


def test_both_weights_are_read_onto_another_mesh_each_in_its_dtype(
    folder: str, eight_device_mesh: Mesh, one_device_mesh: Mesh
):
    with jax.set_mesh(eight_device_mesh):
        saved = state()
    for mesh in (eight_device_mesh, one_device_mesh):
        read = load_weights(folder, abstract_params(mesh), mesh=mesh)
        assert read.found.metadata.step == 3
        assert_equal(read.models["params"], saved["params"])
        assert_equal(read.models["ema"], saved["ema_params"])
        assert read.models["ema"]["w"].sharding.mesh == mesh


def test_damage_to_the_optimizers_state_is_nothing_to_those_who_do_not_read_it(
    folder: str, one_device_mesh: Mesh
):
    path = f"{folder}/checkpoints/step-3"
    found = read_step_folder(path)
    receipt = {**found.metadata.receipt, "opt_state/w": "0" * 32}
    write_metadata(path, replace(found.metadata, receipt=receipt))
    read = load_weights(path, abstract_params(one_device_mesh), mesh=one_device_mesh)
    assert set(read.models) == {"params", "ema"}


def test_only_the_weights_that_are_chosen_are_read_and_proven(folder: str, one_device_mesh: Mesh):
    params = abstract_params(one_device_mesh)
    path = f"{folder}/checkpoints/step-3"
    found = read_step_folder(path)
    receipt = {**found.metadata.receipt, "params/w": "0" * 32}
    write_metadata(path, replace(found.metadata, receipt=receipt))
    best = load_weights(folder, params, mesh=one_device_mesh, choose=best_weights)
    assert set(best.models) == {"ema"}
    with pytest.raises(CheckpointError) as caught:
        load_weights(folder, params, mesh=one_device_mesh, choose=all_weights)
    assert "params/w" in caught.value.given


def test_an_average_is_asked_for_only_where_there_is_one(
    tmp_path: Path, eight_device_mesh: Mesh, one_device_mesh: Mesh
):
    with jax.set_mesh(eight_device_mesh):
        save_step_checkpoint(str(tmp_path), state(has_average=False), about(step=3))
    params = abstract_params(one_device_mesh)
    for choose in (best_weights, all_weights):
        read = load_weights(str(tmp_path), params, mesh=one_device_mesh, choose=choose)
        assert set(read.models) == {"params"}
    asked = partial(these_weights, names=("ema",))
    with pytest.raises(ConfigError) as caught:
        load_weights(str(tmp_path), params, mesh=one_device_mesh, choose=asked)
    assert "ema" in caught.value.given


def test_weights_of_other_shapes_are_refused_with_both(folder: str, one_device_mesh: Mesh):
    params = abstract_params(one_device_mesh)
    params["b"] = jax.ShapeDtypeStruct((5,), jnp.bfloat16, sharding=params["b"].sharding)
    with pytest.raises(CheckpointError) as caught:
        load_weights(folder, params, mesh=one_device_mesh)
    assert re.search(r"params/b\s+\(4,\) bfloat16\s+\(5,\) bfloat16", caught.value.given)
