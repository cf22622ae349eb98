"""The mesh keeps its four axes on any number of devices, and says which sizes would work."""

import math
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from chomp.errors import ConfigError
from chomp.mesh import (
    AXES,
    BATCH_AXES,
    MeshConfig,
    abstract_mesh,
    batch_shards,
    batch_spec,
    create_mesh,
    place_batch,
)

OFFER = re.compile(r"replica=(\d+) data=(\d+) expert=(\d+) model=(\d+)")


@pytest.mark.parametrize("num_devices", [1, 8])
def test_all_four_axes_are_kept_and_explicit_on_any_number_of_devices(num_devices):
    mesh = create_mesh(MeshConfig(), devices=jax.devices()[:num_devices])
    assert mesh.axis_names == AXES == ("replica", "data", "expert", "model")
    assert set(mesh.axis_types) == {AxisType.Explicit}
    assert dict(mesh.shape) == {"replica": 1, "data": num_devices, "expert": 1, "model": 1}


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MeshConfig(), (1, 8, 1, 1)),
        (MeshConfig(model=2), (1, 4, 1, 2)),
        (MeshConfig(replica=2, expert=2, model=2), (2, 1, 2, 2)),
        (MeshConfig(replica=2, data=2, expert=1, model=2), (2, 2, 1, 2)),
    ],
)
def test_data_takes_the_devices_that_the_other_axes_leave(config, shape):
    mesh = create_mesh(config)
    assert config.shape(8) == mesh.devices.shape == shape
    assert set(mesh.devices.flat) == set(jax.devices())
    assert BATCH_AXES == ("replica", "data", "expert")
    assert batch_shards(mesh) == math.prod(shape[:3])
    abstract = abstract_mesh(**dict(zip(AXES, shape, strict=True)))
    assert dict(abstract.shape) == dict(mesh.shape)
    assert abstract.axis_types == mesh.axis_types


@pytest.mark.parametrize(
    ("config", "num_devices"),
    [
        (MeshConfig(data=4), 8),
        (MeshConfig(data=16), 8),
        (MeshConfig(model=3), 8),
        (MeshConfig(replica=2, expert=2, model=4), 8),
        (MeshConfig(model=2), 1),
        (MeshConfig(expert=5), 7),
        (MeshConfig(data=5, model=2), 12),
    ],
)
def test_a_mesh_that_does_not_fit_is_answered_with_sizes_that_do(config, num_devices):
    with pytest.raises(ConfigError) as refused:
        config.shape(num_devices)
    text = str(refused.value)
    assert f"on a machine with {num_devices}. Allowed: sizes whose product is" in text
    offers = OFFER.findall(text.partition("Fix:")[2])
    assert 1 <= len(offers) <= 5
    for sizes in offers:
        works = MeshConfig(**dict(zip(AXES, map(int, sizes), strict=True)))
        assert works.shape(num_devices) == tuple(map(int, sizes))


def test_the_sizes_nearest_to_what_was_wanted_are_offered_first():
    with pytest.raises(ConfigError, match="use one of: replica=2 data=1 expert=1 model=4;"):
        MeshConfig(replica=2, data=3, model=4).shape(8)


@pytest.mark.parametrize("axis", AXES)
def test_an_axis_without_devices_is_refused_by_name(axis):
    with pytest.raises(ConfigError) as caught:
        MeshConfig(**{axis: 0})
    assert caught.value.given == f"{axis}=0"


def test_a_placed_batch_has_its_values_and_each_device_only_its_rows(
    eight_device_mesh, one_device_mesh
):
    assert batch_spec(2) == PartitionSpec(BATCH_AXES, None)
    rows = np.arange(6, dtype=np.int32).reshape(3, 2)
    whole = place_batch(rows, one_device_mesh, batch_axis=0)
    assert whole.sharding.spec == batch_spec(2)
    np.testing.assert_array_equal(np.asarray(whole), rows)
    tokens = np.arange(2 * 8 * 3, dtype=np.int32).reshape(2, 8, 3)
    tree = {"tokens": tokens, "weight": tokens.astype(np.float32)}
    placed = place_batch(tree, eight_device_mesh, batch_axis=1)
    for name, leaf in tree.items():
        assert placed[name].dtype == leaf.dtype
        assert placed[name].sharding.spec == PartitionSpec(None, BATCH_AXES, None)
        np.testing.assert_array_equal(np.asarray(placed[name]), leaf)
    for shard in placed["tokens"].addressable_shards:
        # Data over four, model over two: two devices hold the same two of eight rows.
        assert shard.data.shape == (2, 2, 3)
        np.testing.assert_array_equal(np.asarray(shard.data), tokens[shard.index])


def test_a_run_that_may_not_take_the_cpu_is_refused_on_one():
    with pytest.raises(
        ConfigError, match=r"no device but CPUs.*Allowed: a GPU.*train\.allow_cpu=true"
    ):
        create_mesh(MeshConfig(allow_cpu=False))


NO_SUCH_DEVICE = """
import jax
from chomp.errors import ConfigError
from chomp.mesh import MeshConfig, create_mesh

for platform in ("cuda", "rocm"):
    jax.config.update("jax_platforms", platform)
    try:
        create_mesh(MeshConfig())
    except ConfigError as error:
        print(error)
"""


def test_a_platform_that_is_not_there_is_refused_by_name():
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", NO_SUCH_DEVICE]
    found = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    told = found.stdout.splitlines()
    assert [line.partition(", ")[0] for line in told] == [
        "JAX_PLATFORMS=cuda",
        "JAX_PLATFORMS=rocm",
    ]
    assert all("Allowed: " in line and "Fix: " in line for line in told)
