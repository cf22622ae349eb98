"""What tests of restoring share: a mesh that is set, and checkpoints to do anything to."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy of the checkpoints that a file's own `saved` made."""
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture
def mesh(one_device_mesh) -> Iterator[jax.sharding.Mesh]:
    """One device, as the mesh of the test."""
    with jax.set_mesh(one_device_mesh):
        yield one_device_mesh
