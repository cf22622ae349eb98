"""Bytes on each device, told before anything is made, and sizes that a mesh cannot cut."""

import gc
import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from chomp.errors import ConfigError
from chomp.mesh import (
    MeshConfig,
    abstract_arrays,
    abstract_mesh,
    bytes_per_device,
    create_mesh,
    format_bytes,
    memory_table,
    planned_mesh,
    require_divisible,
)
from chomp.mesh.memory import memory_lines

MESH = abstract_mesh(data=4, model=2)


def make_model(num_blocks: int = 3, vocab: int = 64) -> dict:
    """A small model as a template makes one: every weight beside its spec, keys of its own."""
    key = jax.random.key(0)

    def weight(shape: tuple[int, ...], spec: P) -> jax.Array:
        return jax.reshard(jax.random.normal(key, shape), spec)

    return {
        "embed": weight((vocab, 16), P("model", "data")),
        "blocks": [
            {"w": weight((16, 32), P("data", "model")), "norm": weight((16,), P(None))}
            for _ in range(num_blocks)
        ],
        "scale": jnp.bfloat16(1),
    }


def test_lines_say_what_real_arrays_take_of_real_devices(eight_device_mesh):
    with jax.set_mesh(eight_device_mesh):
        model = make_model()
    held = {device: 0 for device in eight_device_mesh.devices.flat}
    for leaf in jax.tree.leaves(model):
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    # A scalar made outside of the specs lies on the mesh too, whole on every device.
    [on_each] = set(held.values())
    assert bytes_per_device(model, eight_device_mesh) == on_each
    lines = memory_lines(model, eight_device_mesh)
    assert sum(line.total_bytes for line in lines) == sum(held.values())


def test_shapes_give_the_same_lines_as_arrays_and_make_none(eight_device_mesh):
    gc.collect()  # what earlier tests have left would go at any moment
    before = len(jax.live_arrays())
    shapes = abstract_arrays(make_model)
    assert len(jax.live_arrays()) <= before
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(shapes))
    with jax.set_mesh(eight_device_mesh):
        assert abstract_arrays(make_model) == shapes  # whatever mesh is set
        model = make_model()
    assert memory_lines(shapes, MESH) == memory_lines(model, eight_device_mesh)


def test_arrays_of_all_blocks_are_one_line_and_the_largest_come_first():
    lines = memory_lines(abstract_arrays(make_model), MESH)
    assert [(line.path, line.count) for line in lines] == [
        ("blocks/*/w", 3),
        ("embed", 1),
        ("blocks/*/norm", 3),
        ("scale", 1),
    ]
    weights = lines[0]
    assert (weights.shape, weights.dtype, weights.spec) == ((16, 32), "float32", "data, model")
    assert weights.bytes_per_device == 3 * 16 * 32 * 4 // 8
    assert (lines[2].spec, lines[2].bytes_per_device) == ("whole", 3 * 16 * 4)
    assert (lines[3].shape, lines[3].dtype, lines[3].total_bytes) == ((), "bfloat16", 2 * 8)


@pytest.mark.parametrize(
    ("tree", "lines"),
    [
        # Numbers that do not differ stay in the path.
        (
            {"1": [{"w2": jnp.zeros(4)}, {"w2": jnp.zeros(4)}], "2": jnp.zeros((2, 2))},
            [("1/*/w2", 2), ("2", 1)],
        ),
        # Arrays of another kind at the same place have a line of their own.
        (
            [{"w": jnp.zeros(4)}, {"w": jnp.zeros(8)}, {"w": jnp.zeros(4)}],
            [("*/w", 2), ("1/w", 1)],
        ),
    ],
)
def test_arrays_that_differ_in_a_number_of_their_path_are_one_line(tree, lines):
    assert [(line.path, line.count) for line in memory_lines(tree, MESH)] == lines


@given(
    st.lists(st.sampled_from([1, 2, 3, 4]), min_size=4, max_size=4),
    st.sampled_from([None, "data", "model", ("replica", "data", "expert"), ("data", "model")]),
)
def test_an_array_is_divided_by_the_axes_that_its_spec_names(sizes, part):
    replica, data, expert, model = sizes
    mesh = abstract_mesh(replica=replica, data=data, expert=expert, model=model)
    named = () if part is None else (part,) if isinstance(part, str) else part
    pieces = math.prod(mesh.shape[axis] for axis in named)
    leaf = jax.ShapeDtypeStruct(
        (pieces * 5, 7), jnp.bfloat16, sharding=NamedSharding(mesh, P(part, None))
    )
    assert bytes_per_device(leaf, mesh) == 5 * 7 * 2


def test_the_table_has_sums_for_every_part_and_is_at_most_a_hundred_columns_wide():
    model = abstract_arrays(make_model)
    deep = {"a_rather_long_name_of_a_module": {"and_of_another_in_it" * 3: model}}
    table = memory_table({"params": model, "optimizer state": deep}, MESH)
    lines = table.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].split() == ["array", "shape", "dtype", "spec", "per", "device", "8", "devices"]
    assert lines[1].startswith("params ")
    assert lines[2].split()[:5] == ["blocks/*/w", "x3", "16", "x", "32"]
    half = format_bytes(bytes_per_device(model, MESH))
    assert half in lines[1]
    assert half in lines[6]
    assert lines[-1].startswith("all ")
    assert format_bytes(2 * bytes_per_device(model, MESH)) in lines[-1]
    assert "…" in table
    assert memory_table({}, abstract_mesh()).splitlines()[0].endswith("1 device")


def test_parts_may_be_summed_only_and_long_lists_end_in_one_line():
    model = abstract_arrays(make_model)
    parts = {"params": model, "optimizer state": model}
    short = memory_table(parts, MESH, listed=("params",), max_lines=2).splitlines()
    assert [line.split("  ")[0] for line in short] == [
        "array",
        "params",
        "",
        "",
        "",
        "optimizer state",
        "all",
    ]
    assert short[4].split()[:2] == ["4", "more"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (3 << 30, "3.00 GiB"),
        (5 << 50, "5120.00 TiB"),
    ],
)
def test_bytes_are_told_in_the_unit_that_fits(number, text):
    assert format_bytes(number) == text


def test_sizes_the_mesh_cannot_cut_are_refused_with_sizes_that_work():
    require_divisible(abstract_arrays(make_model), MESH)
    odd = abstract_arrays(lambda: make_model(vocab=257))
    with pytest.raises(ConfigError) as caught:
        require_divisible(odd, MESH)
    assert str(caught.value) == (
        "embed of shape [257, 16] on a mesh with mesh.model=2, which cuts its size 257 into 2. "
        "Allowed: sizes that are multiples of 2. Fix: make the size 256 or 258, or set mesh.model "
        "to one of [1]."
    )
    require_divisible(odd, abstract_mesh(data=8))
    with pytest.raises(ConfigError, match=r"size 16 into 32.*make the size 32, .*\[1, 2, 4, 8, 16"):
        require_divisible(odd, abstract_mesh(data=32))


def test_a_cut_over_several_axes_names_them_all():
    mesh = abstract_mesh(replica=2, data=3)
    sharding = NamedSharding(mesh, P(("replica", "data")))
    leaf = jax.ShapeDtypeStruct((12,), jnp.float32, sharding=sharding)
    require_divisible({"w": leaf}, mesh)
    with pytest.raises(ConfigError, match=r"mesh.replica=2, mesh.data=5, which cuts its size 12 "):
        require_divisible({"w": leaf}, abstract_mesh(replica=2, data=5))


def test_a_planned_mesh_needs_none_of_its_devices():
    far = planned_mesh(MeshConfig(replica=2, data=64, model=8))
    assert dict(far.shape) == {"replica": 2, "data": 64, "expert": 1, "model": 8}
    here = planned_mesh(MeshConfig(model=2))
    assert dict(here.shape) == dict(create_mesh(MeshConfig(model=2)).shape)
    with pytest.raises(ConfigError, match="on a machine with 8"):
        planned_mesh(MeshConfig(model=3))
