"""Speed as a run tells it: against which ceiling, and by which clock."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from chomp.data import BatchSchedule, LmDataConfig, Mixture, TrainDataset, TrainLoader
from chomp.tracking import metrics
from chomp.training import LoopClock
from chomp.training.throughput import Throughput

SEQ_LEN, FLOPS_PER_TOKEN, DEVICES = 8, 1e6, 4
BATCHES = BatchSchedule(((0, 2), (3, 6)))
PHASES = (metrics.LOADING_TIME, metrics.HOOK_TIME, metrics.CHECKPOINT_TIME, metrics.COMPILE_TIME)


class NoTokens(TrainDataset):
    """A dataset of which only the numbers are asked."""

    def __init__(self) -> None:
        self.config = LmDataConfig()
        self.batches = BATCHES
        self.mixture = Mixture({"only": 1.0})
        self.components = {}
        self.seq_len = SEQ_LEN


SECONDS = {
    "step": 0.5,
    "loading": 0.25,
    "hook": 0.0,
    "eval": 0.0,
    "checkpoint": 0.0,
    "compile": 1.0,
}


def throughput(
    mesh, kind: str | None = None, dtype: str = "float32", measured: float | None = None
) -> Throughput:
    """Of a run on four devices of that kind; None: on those that are here."""
    loader = TrainLoader(NoTokens(), mesh)
    if kind is not None:  # hardware that no test has
        device = SimpleNamespace(device_kind=kind)
        loader.mesh = SimpleNamespace(devices=np.full((1, DEVICES, 1, 1), device))
    return Throughput(
        loader,
        start_step=0,
        flops_per_token=FLOPS_PER_TOKEN,
        compute_dtype=dtype,
        measured_flops_per_device=measured,
        parameter_count=7,
    )


@pytest.mark.parametrize(("dtype", "peak"), [("bfloat16", 989.5e12), ("float32", 494.7e12)])
def test_mfu_is_in_percent_of_the_peak_of_all_devices_for_the_dtype_in_use(
    one_device_mesh, dtype, peak
):
    told = throughput(one_device_mesh, "NVIDIA H200", dtype)
    summary = told.summary()
    assert summary[metrics.DEVICE_KIND] == "NVIDIA H200"
    assert summary[metrics.THEORETICAL_FLOPS_PER_DEVICE] == peak
    assert summary[metrics.THEORETICAL_FLOPS] == peak * DEVICES
    assert summary[metrics.PARAMETER_COUNT] == 7
    row = told.metrics(0, 10, SECONDS)
    flops = row[metrics.GFLOPS_PER_SECOND] * 1e9
    assert row[metrics.MFU] == pytest.approx(100 * flops / (peak * DEVICES))
    assert flops == pytest.approx(
        3 * FLOPS_PER_TOKEN * SEQ_LEN * row[metrics.EXAMPLES_PER_SECOND], rel=1e-9
    )


def test_a_measured_ceiling_has_its_own_mfu(one_device_mesh):
    told = throughput(one_device_mesh, "NVIDIA H200", "bfloat16", measured=989.5e12 / 2)
    assert told.summary()[metrics.MEASURED_FLOPS_PER_DEVICE] == 989.5e12 / 2
    row = told.metrics(0, 10, SECONDS)
    assert row[metrics.MFU_OF_MEASURED] == pytest.approx(2 * row[metrics.MFU])


@pytest.mark.parametrize(
    ("kind", "dtype", "reason"),
    [
        (None, "bfloat16", "no theoretical peak is known for the device 'cpu'"),
        ("TPU v4", "float32", "'TPU v4' has no theoretical peak for float32, only for bfloat16"),
    ],
)
def test_without_a_known_peak_the_log_says_why_and_nothing_is_made_up(
    one_device_mesh, caplog, kind, dtype, reason
):
    with caplog.at_level(logging.INFO, logger="chomp"):
        told = throughput(one_device_mesh, kind, dtype)
        rows = told.metrics(0, 1, SECONDS) | told.metrics(1, 1, SECONDS)
        found = told.summary() | rows | told.closing_summary()
    assert [reason in record.message for record in caplog.records] == [True]
    assert not any("mfu" in key or "theoretical" in key for key in found)
    assert found[metrics.DEVICE_KIND] == (kind or "cpu")
    assert found[metrics.GFLOPS_PER_SECOND] > 0


def test_tokens_per_wall_second_count_all_the_time_there_was(one_device_mesh):
    clock = LoopClock()
    told = throughput(one_device_mesh)
    clock.read()
    for step, steps, examples in ((1, 2, 4), (4, 3, 2 + 6 + 6), (5, 1, 6)):
        with clock.phase("loading"):
            sum(range(20_000))
        with clock.phase("compile"):
            sum(range(20_000))
        row = told.metrics(step, 10, clock.read())
        wall = row[metrics.DURATION] * steps + sum(row[name] for name in PHASES)
        assert row[metrics.TOKENS_PER_SECOND_WALL] * wall == pytest.approx(
            examples * SEQ_LEN, rel=1e-6
        )
        assert row[metrics.TOKENS_PER_SECOND] > row[metrics.TOKENS_PER_SECOND_WALL]


@pytest.mark.parametrize("rows", [1, 20, 600])
def test_the_closing_percentiles_are_of_the_last_500_rows(one_device_mesh, rows):
    told = throughput(one_device_mesh, "NVIDIA L4", "bfloat16")
    assert told.closing_summary() == {}
    seen = [
        told.metrics(step, 1, {**SECONDS, "step": 1.0 + step % 7})[metrics.MFU]
        for step in range(rows)
    ][-500:]
    closing = told.closing_summary()
    low, middle, high = np.percentile(seen, (10, 50, 90))
    assert closing == pytest.approx(
        {
            metrics.P10_MFU: low,
            metrics.P50_MFU: middle,
            metrics.P90_MFU: high,
            metrics.MEAN_MFU: np.mean(seen),
        }
    )
