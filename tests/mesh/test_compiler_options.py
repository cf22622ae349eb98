"""What XLA is asked for beside the program, by device."""

from types import SimpleNamespace

import numpy as np
import pytest

from chomp.mesh import compiler_options


def mesh_of(platform: str) -> SimpleNamespace:
    """As much of a mesh as is looked at: there may be no such device here."""
    return SimpleNamespace(devices=np.asarray([SimpleNamespace(platform=platform)], dtype=object))


@pytest.mark.parametrize("is_reproducible", [False, True])
def test_a_cpu_needs_nothing(one_device_mesh, is_reproducible):
    assert compiler_options(one_device_mesh, is_reproducible=is_reproducible) == {}


def test_a_gpu_leaves_triton_products_out_and_can_be_made_reproducible():
    plain = compiler_options.__wrapped__(mesh_of("gpu"))
    assert plain == {"xla_gpu_enable_triton_gemm": False}
    asked = compiler_options.__wrapped__(mesh_of("gpu"), is_reproducible=True)
    assert asked["xla_gpu_deterministic_ops"] is True
    assert asked.items() >= plain.items()
