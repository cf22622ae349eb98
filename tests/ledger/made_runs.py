"""Run folders whose numbers are chosen, written by the code that writes those of real runs."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chomp.executor.status import StepInfo, StepStatus, write_info, write_status
from chomp.executor.step import source_hashes
from chomp.tracking import JsonlTracker

STEPS, LOG_EVERY, TOKENS_A_STEP = 100, 10, 2048
FLOPS_A_TOKEN = 6e6
COMMIT = "0123456789ab"  # not that of any checkout


def loss_after(steps: int, end: float) -> float:
    """A curve that falls with the logarithm of the steps, and is `end` after the last."""
    return end + 0.4 * math.log(STEPS / steps)


def config_of(seed: int, **changed: Any) -> dict[str, Any]:
    """The resolved config of a run, `section__field=value` changed."""
    config: dict[str, Any] = {
        "model": {"hidden_dim": 64},
        "data": {
            "tokenizer": {"kind": "byte", "path": "outputs/tokenizer/byte-1"},
            "components": {"code": {"weight": 1.0, "train_store": "outputs/tokens/code-1"}},
            "validation_fraction": 0.05,
        },
        "optimizer": {"lr": 0.003},
        "trainer": {"steps": STEPS, "batch_size": 16, "seq_len": 128, "seed": seed},
        "eval": {"steps_per_eval": 10, "eval_batch_size": 32, "max_eval_batches": None},
        "logging": {"metrics_file": "metrics.jsonl"},
        "run_id": "base",
        "derived": {
            "train": {"data_seed_effective": seed},
            "data": {"held_out_hashes": {"code": "aa"}},
        },
    }
    for name, value in changed.items():
        *sections, field = name.split("__")
        inside = config
        for section in sections:
            inside = inside[section]
        inside[field] = value
    return config


def make_run(
    folder: Path,
    *,
    seed: int,
    end: float,
    variant: str = "base",
    config: Mapping[str, Any] | None = None,
    evaluated: Sequence[int] = range(10, STEPS + 1, 10),
    seconds_a_step: float = 0.1,
    flops_a_token: float = FLOPS_A_TOKEN,
    outcome: str | None = "finished",
    device: str = "NVIDIA H200",
    steps: int = STEPS,
    checkpoint: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
    prefixes: Sequence[str] = ("eval",),
) -> Path:
    """A run of one attempt whose evaluation loss ends at `end`; NaN: not finite there.

    `prefixes` are what the names of its evaluations begin with, one for each evaluated model.
    """
    folder.mkdir(parents=True)
    content = dict(config or config_of(seed))
    (folder / "config_resolved.json").write_text(json.dumps(content))
    tracker = JsonlTracker(folder / "metrics.jsonl", attempt=1)
    tracker.log_summary(
        {
            "throughput/device_kind": device,
            "environment/commit": COMMIT,
            "throughput/parameter_count": 1000,
            "throughput/flops_per_token_analytic": flops_a_token / 3,
        }
    )
    for done in range(LOG_EVERY, steps + 1, LOG_EVERY):
        tokens = done * TOKENS_A_STEP
        row = {
            "train/loss": loss_after(done, end),
            "throughput/duration": seconds_a_step,
            "throughput/loading_time": 0.0,
            "throughput/total_tokens": float(tokens),
            "throughput/total_gflops": tokens * flops_a_token / 1e9,
        }
        for prefix in prefixes if done in evaluated else ():
            row[f"{prefix}/loss"] = loss_after(done, end)
            row[f"{prefix}/bpb"] = loss_after(done, end) / 2
        tracker.log(row, step=done - 1)
    if outcome is not None:
        tracker.log_summary({"run/outcome": outcome})
    tracker.finish()
    _write_executor(folder, variant, seed, sources)
    facts = {"data_fingerprint": f"data-{seed}", "tokenizer_hash": "t", **(checkpoint or {})}
    if checkpoint != {}:
        place = folder / f"checkpoints/step-{steps}"
        place.mkdir(parents=True)
        (place / "metadata.json").write_text(json.dumps({**facts, "environment": {"cores": 2}}))
    return folder


def make_side(
    folder: Path, variant: str, ends: Mapping[int, float], **options: Any
) -> dict[int, Path]:
    """A run for each seed, as the executor would name them."""
    return {
        seed: make_run(
            folder / f"{variant}-{seed:04}", seed=seed, end=end, variant=variant, **options
        )
        for seed, end in ends.items()
    }


def _write_executor(
    folder: Path, variant: str, seed: int, sources: Mapping[str, str] | None
) -> None:
    # Of outputs/grug in a checkout that has the variant: what the executor would record.
    template = folder.parent.parent.parent / "experiments/grug" / variant
    found = source_hashes(template) if template.is_dir() else {"model.py": variant}
    info = StepInfo(
        name=f"grug/{variant}",
        identity="0",
        values={},
        fn=f"experiments.grug.{variant}.launch.train_{variant}",
        config={},
        description="",
        dependencies=[],
        output_path=str(folder),
        sources=dict(sources or found),
        started=100.0 + seed,
    )
    write_info(str(folder), info)
    status = StepStatus(
        state="SUCCESS", identity="0", attempt=1, host="here", pid=1, started=1.0, finished=2.0
    )
    write_status(str(folder), status)
