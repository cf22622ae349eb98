"""A state saved on one mesh comes back on another, bit for bit and cut as that one cuts it."""

from pathlib import Path

import jax
import pytest
from checkpoint_samples import state_at
from restore_samples import assert_same, begun, save

from chomp.mesh import MeshConfig, create_mesh

# Devices, and how they are arranged.
MESHES = {1: {"data": 1}, 2: {"data": 2}, 4: {"data": 2, "model": 2}, 8: {"data": 4, "model": 2}}


def mesh_of(devices: int) -> jax.sharding.Mesh:
    return create_mesh(MeshConfig(**MESHES[devices]), devices=jax.devices()[:devices])


@pytest.fixture(scope="module")
def saved_on(tmp_path_factory):
    """Folder of step 5, saved on so many devices; each saved once."""
    folders: dict[int, Path] = {}

    def folder(devices: int) -> Path:
        if devices not in folders:
            folders[devices] = tmp_path_factory.mktemp(f"on-{devices}")
            with jax.set_mesh(mesh_of(devices)):
                save(folders[devices], 5, jax.jit(lambda: state_at(5))())
        return folders[devices]

    return folder


@pytest.mark.parametrize(
    ("before", "after"), [(8, 1), (8, 2), (8, 4), (8, 8), (1, 8), (2, 8), (4, 8), (1, 1)]
)
def test_a_state_moves_between_meshes_bit_for_bit(before, after, saved_on):
    mesh = mesh_of(after)
    state = begun(saved_on(before), mesh).state
    with jax.set_mesh(mesh):
        expected = jax.jit(lambda: state_at(5))()
    assert_same(state, expected)
    for leaf, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert leaf.sharding.is_equivalent_to(other.sharding, leaf.ndim)
    assert state.params["w"].sharding.mesh == mesh


def test_devices_cores_and_mesh_are_compared_with_the_checkpoint_s(tmp_path, caplog):
    mesh = mesh_of(1)
    with jax.set_mesh(mesh):
        save(tmp_path, 5, mesh={"data": 4, "model": 2}, environment={"devices": 8, "cores": 2})
    begun(tmp_path, mesh, mesh={"data": 1, "model": 1}, environment={"devices": 1, "cores": 2})
    assert "not bit for bit" in caplog.text
    assert "data=4, model=2  one device" in caplog.text
    assert "\n  devices  8 " in caplog.text
    assert "\n  cores" not in caplog.text
