"""A run on a GPU: it says how much of the device it uses, and can be repeated bit for bit."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from chomp.data import LmDataConfig
from experiments.grug.base.train import GrugRunConfig, run_grug
from tests import tiny

pytestmark = [
    pytest.mark.gpu,
    # The loss kernel's backend, which decision 0009 keeps until there is another as fast.
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    if jax.default_backend() != "gpu":
        pytest.fail(
            f"JAX runs on {jax.default_backend()}: set JAX_PLATFORMS=cuda, on a GPU machine"
        )
    return tiny.build_data(tmp_path_factory.mktemp("tiny-data"))


def run_config(data: LmDataConfig, folder: Path, **trainer: object) -> GrugRunConfig:
    settings = {"steps": 8, "precision": "params=float32,compute=bfloat16"} | trainer
    config = tiny.run_config(data, folder, **settings)
    model = replace(config.model, hidden_dim=128, num_heads=2, num_kv_heads=1, num_layers=2)
    return replace(config, model=model)


def test_a_gpu_run_says_how_much_of_the_device_it_uses(data, tmp_path):
    run_grug(run_config(data, tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    summary = {k: v for row in rows if row.get("kind") == "summary" for k, v in row.items()}
    assert summary["throughput/theoretical_flops_per_device"] > 1e13
    assert (
        summary["throughput/theoretical_flops"]
        >= summary["throughput/theoretical_flops_per_device"]
    )
    measured = summary["throughput/measured_flops_per_device"]
    assert 0.2 < measured / summary["throughput/theoretical_flops_per_device"] < 1.2
    assert summary["kernels/attention"] == "cudnn_packed"
    last = [row for row in rows if "train/loss" in row][-1]
    assert 0 < last["throughput/mfu"] < 100
    assert last["peak_memory_gb"] > 0


def test_two_reproducible_runs_are_bit_equal(data, tmp_path):
    for name in ("first", "second"):
        run_grug(run_config(data, tmp_path / name, reproducible=True))
    assert tiny.losses(tmp_path / "first") == tiny.losses(tmp_path / "second")
    assert tiny.receipt(tmp_path / "first", 8) == tiny.receipt(tmp_path / "second", 8)
