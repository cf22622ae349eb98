"""One run with everything on: every promised metric is there, and every field of a config is read.

A field that nobody reads is a promise that nobody keeps. Reading it to write it down or to check
it does not count.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from chomp.checkpoint import CheckpointConfig, KeepPolicy
from chomp.config import Config
from chomp.optim import GrugOptimizerConfig, MuonConfig
from chomp.tracking import LoggingConfig, metric_of
from chomp.tracking.logging_config import TensorBoardConfig, WandbConfig
from chomp.training import GrugEvalConfig, ProfilerConfig, SamplesConfig, WatchConfig
from experiments.grug.base.train import GrugRunConfig, run_grug
from tests import grug_run_contracts as run_contracts
from tests import tiny

STEPS = 4
PROMISED = run_contracts.PROMISED | {"mixture/weight/sums", "mixture/weight/words"}
WATCHED = {
    "grad/norm/lm_head", "params/norm/total", "updates/norm/blocks.0.attn.w_q",
    "opt_state/norm/total", "params/hist/lm_head", "params/hist/lm_head/rms",
}  # fmt: skip
EVALUATED = {
    "eval/loss", "eval/loading_time", "eval/total_time", "eval/macro_loss", "eval/sums/loss",
    "eval/text/micro_loss", "eval/text/macro_loss", "eval/bpb", "eval/macro_bpb", "eval/words/bpb",
    "eval/text/macro_bpb", "eval/text/sums/loss", "eval/ema/loss", "eval/ema/sums/loss",
    "eval_loss",
}  # fmt: skip
# What only an accelerator has.
NOT_ON_A_CPU = {
    "throughput/mfu", "throughput/theoretical_flops_per_device", "throughput/theoretical_flops",
    "peak_memory_gb",
}  # fmt: skip
# Of data and tokenizer, the steps that build them read some; tests/data has those.
UNCOUNTED = {"LmDataConfig", "LmComponentConfig", "TokenizerConfig", "TextSource", "TextFormat"}


def everything_on(folder: Path) -> GrugRunConfig:
    data = tiny.build_data(folder)
    config = tiny.run_config(data, folder / "run", steps=STEPS, ema_beta=0.9)
    trainer = replace(
        config.trainer,
        watch=WatchConfig(
            targets=("grads", "params", "updates", "opt_state"), include_histograms=True, interval=2
        ),
        profiler=ProfilerConfig(enabled=True, start_step=1, num_steps=2),
        log_dir=str(folder / "traces"),
    )
    return replace(
        config,
        trainer=trainer,
        optimizer=GrugOptimizerConfig(
            name="muon", lr=3e-3, warmup_steps=1, muon=MuonConfig(consistent_rms=0.2, lr_scale=1.0)
        ),
        eval=GrugEvalConfig(steps_per_eval=2, eval_batch_size=8, max_eval_batches=1),
        samples=SamplesConfig(every=2, max_tokens=4),
        checkpoint=CheckpointConfig(save_interval_s=3600.0, keep=(KeepPolicy(every=2),)),
        logging=LoggingConfig(
            wandb=WandbConfig(enabled=True, mode="offline", tags=("all",)),
            tensorboard=TensorBoardConfig(enabled=True),
        ),
    )


def configs_in(value: Any) -> Iterator[Config]:
    """Every config of a run's config, the run's own included."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        for field in dataclasses.fields(value):
            yield from configs_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from configs_in(item)


def recorded_reads(patch: pytest.MonkeyPatch, classes: set[type]) -> set[tuple[str, str]]:
    """From now on, (class, field) of every field that is read by what uses it."""
    reads: set[tuple[str, str]] = set()
    bookkeeping = ("chomp.config", "chomp.errors", "dataclasses", "pydantic", "copy", __name__)

    def is_use(frame: FrameType | None) -> bool:
        if frame is not None and frame.f_globals.get("__name__", "").startswith(bookkeeping):
            return False
        while frame is not None:
            if frame.f_code.co_name == "__post_init__":  # whatever it calls only checks
                return False
            frame = frame.f_back
        return True

    def watched(cls: type) -> Any:
        plain = cls.__getattribute__

        def read(self: Any, name: str) -> Any:
            if (cls.__name__, name) not in reads and is_use(sys._getframe(1)):
                reads.add((cls.__name__, name))
            return plain(self, name)

        return read

    for cls in classes:
        patch.setattr(cls, "__getattribute__", watched(cls))
    return reads


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, set[tuple[str, str]], set[tuple[str, str]]]:
    """The run's folder, the fields it has, and those that were read."""
    folder = tmp_path_factory.mktemp("everything")
    config = everything_on(folder)
    counted = [each for each in configs_in(config) if type(each).__name__ not in UNCOUNTED]
    fields = {(type(c).__name__, field.name) for c in counted for field in dataclasses.fields(c)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVANTER_LOG_TENSORSTORE_METRICS_EVERY", "1")
        patch.setenv("WANDB_DIR", str(folder))
        patch.setenv("WANDB_SILENT", "true")
        reads = recorded_reads(patch, {type(each) for each in counted})
        run_grug(config)
        found = set(reads)
    return folder, fields, found


def rows_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_every_promised_metric_is_logged_and_named_in_the_table(run):
    rows = rows_of(run[0])
    trained = {row["step"]: row for row in rows if "train/loss" in row}
    for row in trained.values():
        assert set(row) >= PROMISED, sorted(PROMISED - set(row))
        assert [key for key in row if key.startswith("data/tensorstore/")]
    # After the second and the fourth step, and nowhere else.
    for step, row in trained.items():
        assert (set(row) >= WATCHED) == (step in (1, 3)), (step, sorted(WATCHED - set(row)))
    assert "first_step_compile_time_s" in trained[0]
    evaluated = {row["step"]: row for row in rows if "eval/loss" in row}
    assert sorted(evaluated) == [1, 3]
    assert set(evaluated[3]) >= EVALUATED, sorted(EVALUATED - set(evaluated[3]))
    summary = {key for row in rows if row.get("kind") == "summary" for key in row}
    assert summary >= run_contracts.SUMMARY, sorted(run_contracts.SUMMARY - summary)
    logged = {key for row in rows if row.get("kind") != "artifact" for key in row}
    assert not logged & NOT_ON_A_CPU
    own = {"step", "attempt", "time", "kind"}
    assert not [key for key in logged - own if metric_of(key) is None]


def test_the_phases_of_a_run_sum_to_its_wall_clock(run):
    rows = rows_of(run[0])
    trained = [row for row in rows if "train/loss" in row]
    phases = ("duration", "hook_time", "loading_time", "checkpoint_time", "compile_time")
    sums = {name: sum(row[f"throughput/{name}"] for row in trained) for name in phases}
    assert all(seconds > 0 for seconds in sums.values()), sums
    evaluated = next(row for row in rows if row.get("step") == 1 and "eval/loss" in row)
    sums["eval"] = evaluated["eval/total_time"] + evaluated["eval/ema/total_time"]
    # The clock starts behind the summary that the log writes before the first step.
    before = [row["time"] for row in rows if row.get("kind") == "summary"]
    start = max(time for time in before if time < trained[0]["time"])
    assert sum(sums.values()) == pytest.approx(trained[-1]["time"] - start, rel=0.05, abs=0)


def test_a_cpu_says_why_it_has_no_mfu(run):
    assert "no throughput/mfu" in (run[0] / "run/train.log").read_text()


def test_traces_samples_and_sinks_are_where_they_belong(run):
    folder = run[0]
    assert list((folder / "traces/tiny/profiler").rglob("*.xplane.pb"))
    assert {path.name for path in (folder / "run/samples").iterdir()} == {
        "step-2.txt",
        "step-4.txt",
    }
    assert list((folder / "run/tensorboard").rglob("events.out.tfevents.*"))
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))


def test_every_field_of_a_runs_config_is_read_by_what_uses_it(run):
    _, fields, reads = run
    assert len(fields) > 80
    unread = sorted(".".join(field) for field in fields - reads)
    assert unread == []
