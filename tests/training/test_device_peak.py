"""What devices could do by their data sheets, what they did, and how much memory they took."""

import os

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from chomp.errors import ConfigError
from chomp.mesh.memory import device_memory, peak_memory_gb, require_memory
from chomp.training import device_flops
from chomp.training.device_flops import matmul_flops, measured_flops_per_device, peak_flops

# As JAX names them, with the dense bfloat16 peak in TFLOP/s.
PEAKS = {
    "NVIDIA H200": 989.5,
    "NVIDIA H200 NVL": 835.5,
    "NVIDIA GH200 480GB": 989.5,
    "NVIDIA H100 80GB HBM3": 989.5,
    "NVIDIA H100 PCIe": 756.5,
    "NVIDIA H100 NVL": 835.5,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    "NVIDIA A10": 125,
    "NVIDIA A10G": 70,
    "NVIDIA L4": 121,
    "NVIDIA L40S": 366.5,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": 2500,
    "NVIDIA GB10": 100,
    "NVIDIA GeForce RTX 5090": 209.5,
    "TPU v3": 61.5,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5p": 459,
    "TPU v5": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
    "TPU7x": 1153.5,
}


@pytest.mark.parametrize(("kind", "teraflops"), PEAKS.items())
def test_a_known_device_has_its_dense_bfloat16_peak(kind, teraflops):
    assert peak_flops(kind)["bfloat16"] == teraflops * 1e12


@pytest.mark.parametrize("kind", PEAKS)
def test_float32_is_never_held_against_the_bfloat16_peak(kind):
    peaks = peak_flops(kind)
    assert peaks.get("float32", 0) < 0.51 * peaks["bfloat16"]  # half, but for rounding


@pytest.mark.parametrize(("kind", "half"), [("Tesla T4", 65), ("Tesla V100-SXM2-16GB", 125)])
def test_a_device_that_only_emulates_bfloat16_has_a_peak_for_float16(kind, half):
    peaks = peak_flops(kind)
    assert peaks["float16"] == half * 1e12
    assert set(peaks) == {"float16", "float32"}


@pytest.mark.parametrize(
    "kind", ["cpu", "NVIDIA L400", "NVIDIA A1000", "TPU v4 lite", "TPU v9", ""]
)
def test_an_unknown_device_has_no_peak(kind):
    assert peak_flops(kind) == {}


def test_devices_that_do_not_tell_have_no_peak_memory():
    assert peak_memory_gb() is None
    assert peak_memory_gb([]) is None


class Device:
    """A device of which only the counters are known, as a GPU gives them."""

    platform = "gpu"

    def __init__(self, stats):
        self._stats = stats

    def memory_stats(self):
        return self._stats


def test_peak_memory_is_that_of_the_fullest_device():
    told = [{"peak_bytes_in_use": 2_500_000_000}, {"peak_bytes_in_use": 7}, {}, None]
    assert peak_memory_gb([Device(stats) for stats in told]) == 2.5


def test_what_is_more_than_the_smallest_device_has_is_refused_and_more_than_is_free_is_told(
    caplog: pytest.LogCaptureFixture,
):
    told = [{"bytes_limit": 100}, {"bytes_limit": 80, "bytes_in_use": 30}, None]
    devices = [Device(stats) for stats in told]
    assert device_memory(devices) == (80, 50)
    with pytest.raises(ConfigError, match=r"all of it.* needs 81 B .* has 80 B.*less"):
        require_memory("all of it", 81, fix="take less", devices=devices)
    require_memory("all of it", 50, fix="take less", devices=devices)
    require_memory("all of it", 80, fix="take less", held=30, devices=devices)
    assert caplog.records == []
    require_memory("all of it", 80, fix="take less", devices=devices)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_devices_that_do_not_tell_their_memory_are_not_judged():
    assert device_memory([Device(None), Device({})]) is None
    require_memory("all of it", 2**60, fix="take less", devices=[Device(None)])


def test_cpu_devices_share_the_memory_of_the_machine():
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    one, eight = device_memory(jax.devices()[:1]), device_memory(jax.devices()[:8])
    assert one is not None
    assert eight is not None
    assert 0 < one.free <= one.total <= physical
    assert eight.total == one.total // 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_product_is_timed_on_every_device_and_the_mesh_of_the_run_stays(eight_device_mesh, dtype):
    with jax.set_mesh(eight_device_mesh):
        before = jax.sharding.get_abstract_mesh()
        arrays = len(jax.live_arrays())
        assert matmul_flops(tuple(jax.devices()[:8]), dtype, 32) > 0
        assert len(jax.live_arrays()) <= arrays
        assert jax.sharding.get_abstract_mesh() == before


def test_cores_are_measured_once_and_devices_of_others_never():
    measured = measured_flops_per_device(jax.devices()[:1], "float32")
    assert measured is not None
    assert 1e8 < measured < 1e14
    assert measured_flops_per_device(jax.devices()[:1], "float32") == measured
    assert measured_flops_per_device([], "float32") is None


def test_the_measured_product_has_numbers_of_one_size():
    with jax.set_mesh(jax.make_mesh((1,), ("measured",), (AxisType.Explicit,))):
        first = device_flops._random_matrices(1, 256, "float32")
        last = device_flops._powers(first)
    for matrix in (first, last):
        assert 0.3 < 16 * float(jnp.std(matrix)) < 3


@pytest.mark.gpu
def test_a_gpu_reaches_a_good_part_of_its_peak_and_not_more():
    device = jax.devices()[0]
    measured = measured_flops_per_device([device], "bfloat16")
    peak = peak_flops(device.device_kind)["bfloat16"]
    assert measured is not None
    assert 0.2 * peak < measured < 1.1 * peak
