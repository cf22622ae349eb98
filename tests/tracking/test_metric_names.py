"""The names are those the seeds promise, each once, and every logged key finds its line."""

import re
from pathlib import Path

import numpy as np
import pytest

from chomp.errors import ConfigError
from chomp.tracking import METRICS, metric_of, metrics, name_from, with_short_keys
from scripts.metrics_page import metrics_page

PAGE = Path(__file__).parents[2] / "docs" / "references" / "metrics.md"

# The two lists as their documents write them.
GRUG_METRICS = """
- `train/loss`: training loss for the just-completed step.
- `global_step`: completed optimizer step index.
- `run_progress`: completed fraction of the configured run (`step / total_steps`).
- `optim/*`: optimizer hyperparameters from Optax state (for example `optim/learning_rate`).
- `throughput/duration`: step wall-clock duration (after loss is materialized).
- `throughput/examples_per_second`: examples processed per second for the current batch size.
- `throughput/tokens_per_second`: tokens processed per second.
- `throughput/total_tokens`: cumulative tokens processed so far (schedule-aware).
- `throughput/gflops_per_second`: model FLOP throughput from analytic FLOPs-per-example.
- `throughput/total_gflops`: cumulative model FLOPs (analytic).
- `throughput/mfu`: model FLOP utilization as percent of theoretical hardware FLOPs.
- `throughput/hook_time`: callback/logging overhead time after each step.
- `throughput/loading_time`: dataloader wait time for the current step.
- `throughput/flops_per_token_analytic`: analytic FLOPs per token summary value.
- `throughput/flops_per_example_analytic`: analytic FLOPs per example summary value.
- `throughput/flops_per_example`: FLOPs-per-example value used by throughput callback.
- `throughput/device_kind`: accelerator type string from JAX device info.
- `throughput/theoretical_flops_per_device`: theoretical peak FLOPs per device.
- `throughput/theoretical_flops`: theoretical peak FLOPs across all devices.
- `mixture/stage`: current data-mixture stage index.
- `mixture/weight/<dataset_name>`: effective sampling weight per dataset in the active stage.
- `eval/loss`, `eval/loading_time`, `eval/total_time`: tagged-eval loss and timing.
- `eval/ema/*`: same eval metrics for EMA weights when EMA is enabled.
- `eval/macro_loss`: macro average loss across tags when multiple tags exist.
- `eval/<tag>/loss`, `eval/<tag>/micro_loss`, `eval/<tag>/macro_loss`: per-tag loss views.
- `eval/bpb`, `eval/macro_bpb`, `eval/<tag>/bpb`, `eval/<tag>/macro_bpb`: bits-per-byte metrics.
- `data/tensorstore/*`: optional TensorStore cache/IO counters.
- `grad/*`, `params/*`, `updates/*`, `opt_state/*`: optional watch metrics (norms/histograms).
"""
CHOMP_METRICS = """
- `loss`
- `grad_norm`
- `lr`
- `tokens_seen` (actual valid tokens, after masking)
- `tokens_per_sec` (actual valid tokens / step_time_s)
- `packing_mode`, `packing_utilization` (when iterator stats are enabled)
- `first_step_compile_time_s` (first logged step after compile)
- `peak_memory_gb` (best-effort, device-dependent)
- `eval_loss` (only when eval runs)
"""

LISTED = [
    name
    for line in GRUG_METRICS.strip().splitlines()
    for name in re.findall(r"`([^`]+)`", line.partition(":")[0])
]


def test_the_names_that_were_promised_are_in_the_table_or_short_keys() -> None:
    assert len(LISTED) == 38
    assert set(LISTED) <= METRICS.keys()
    listed = re.findall(r"`(\w+)`", CHOMP_METRICS)
    assert sorted(metrics.SHORT_KEYS.values()) == sorted(set(listed) - METRICS.keys())


def test_every_constant_is_a_line_of_the_table_that_says_what_it_means() -> None:
    constants = [v for k, v in vars(metrics).items() if k.isupper() and isinstance(v, str)]
    assert sorted(constants) == sorted(METRICS)
    assert all(metric.description for metric in METRICS.values())


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("train/loss", "train/loss"),
        ("loss", "train/loss"),
        ("optim/learning_rate", "optim/learning_rate"),
        ("optim/weight_decay", "optim/*"),
        ("mixture/weight/web/en", "mixture/weight/<dataset_name>"),
        ("eval/loss", "eval/loss"),
        ("eval/web/en/loss", "eval/<tag>/loss"),
        ("eval/web/micro_loss", "eval/<tag>/micro_loss"),
        ("eval/ema/loss", "eval/ema/*"),
        ("eval/ema/web/bpb", "eval/ema/*"),
        ("grad/norm/total", "grad/norm/total"),
        ("grad/norm/blocks.0", "grad/*"),
    ],
)
def test_a_logged_key_is_described_by_the_narrowest_line(key: str, line: str) -> None:
    metric = metric_of(key)
    assert metric is not None
    assert metric.key == line


@pytest.mark.parametrize("key", ["", "trainXloss", "mixture/weight/", "eval//", "my/own"])
def test_a_key_nobody_promised_has_no_line(key: str) -> None:
    assert metric_of(key) is None


def test_a_pattern_is_filled_in_order() -> None:
    assert name_from(metrics.MIXTURE_WEIGHT, "web/en") == "mixture/weight/web/en"
    assert name_from(metrics.EVAL_EMA, "loss") == "eval/ema/loss"
    assert name_from(metrics.TRAIN_LOSS) == "train/loss"


@pytest.mark.parametrize("parts", [(), ("a", "b"), ("",)])
def test_a_pattern_with_the_wrong_number_of_parts_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        name_from(metrics.EVAL_TAG_LOSS, *parts)
    assert metrics.EVAL_TAG_LOSS in raised.value.given
    assert raised.value.allowed


def test_a_row_gets_its_short_keys_beside_the_long_ones() -> None:
    loss = np.float32(2.5)
    long = {"train/loss": loss, "optim/learning_rate": 1e-3, "eval/loss": 3.0}
    # Positions are not trained tokens: those are never made up from them.
    positions = {"throughput/total_tokens": 100, "throughput/tokens_per_second": 10.0}
    row = with_short_keys({**long, "grad/norm/total": 0.5, "grad_norm": 0.25, **positions})
    assert row["loss"] is loss
    assert (row["lr"], row["eval_loss"], row["grad_norm"]) == (1e-3, 3.0, 0.25)  # it was there
    assert list(row)[:3] == list(long)
    assert len(row) == 10


def test_the_room_does_not_import_jax() -> None:
    room = Path(metrics.__file__).parent
    imports = re.compile(r"^\s*(?:import|from)\s+jax\b", re.MULTILINE)
    assert not [file.name for file in room.glob("*.py") if imports.search(file.read_text())]


def test_the_page_is_made_from_the_names_each_in_a_section_of_its_own() -> None:
    page = metrics_page()
    told = "run: python scripts/metrics_page.py > docs/references/metrics.md"
    assert PAGE.read_text() == page, told
    for metric in METRICS.values():
        assert page.count(f"| `{metric.key}` |") == 1
        assert metric.short is None or f"`{metric.short}`" in page
    assert "## Other" not in page
