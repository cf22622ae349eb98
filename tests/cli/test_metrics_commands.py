"""`chomp metrics`: the record of a run shown, and sent to a service again."""

import json
from pathlib import Path

import pytest

from chomp.tracking import JsonlTracker
from tests.cli.conftest import Chomp, assert_refused
from tests.tracking.wandb_files import offline_runs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two attempts, whose record has another name than usual."""
    folder = tmp_path / "mine"
    for attempt, steps in ((1, range(4)), (2, range(2, 6))):
        tracker = JsonlTracker(folder / "rows.jsonl", attempt=attempt)
        for step in steps:
            tracker.log({"train/loss": attempt + step / 8}, step=step)
        tracker.log_summary({"run/outcome": "finished", "throughput/device_kind": "cpu"})
        tracker.finish()
    settings = {"run_id": "mine", "logging": {"metrics_file": "rows.jsonl", "project": "q"}}
    (folder / "config_resolved.json").write_text(json.dumps(settings))
    return folder


def test_show_prints_the_newest_steps_once_and_the_summary(chomp: Chomp, run: Path):
    told = chomp("metrics", "show", str(run), "--rows", "3")
    assert told.code == 0
    assert "step 3" in told.out
    assert "step 2 " not in told.out
    losses = next(line for line in told.out.splitlines() if "train/loss" in line)
    assert [cell.strip() for cell in losses.split("│")[2:5]] == ["2.375", "2.5", "2.625"]
    assert "throughput/device_kind" in told.out


def test_replay_sends_every_line_to_tensorboard(chomp: Chomp, run: Path):
    told = chomp("metrics", "replay", str(run), "--to", "tensorboard")
    assert told.code == 0
    assert "10 lines of" in told.out
    folder = run / "tensorboard-replay"
    assert sorted(path.name for path in folder.iterdir()) == ["attempt-1", "attempt-2"]


def test_replay_makes_a_complete_wandb_run_with_both_attempts(
    chomp: Chomp, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    told = chomp("metrics", "replay", str(run), "--to", "wandb")
    assert told.code == 0, told.err
    (sent,) = offline_runs(tmp_path)
    assert (sent.name, sent.project) == ("mine", "q")
    assert sent.run_id.startswith("mine-replay-")
    rows = [(row["attempt"], row["global_step"], row["train/loss"]) for row in sent.rows]
    assert rows == [
        *((1, step, 1 + step / 8) for step in range(4)),
        *((2, step, 2 + step / 8) for step in range(2, 6)),
    ]
    assert sent.summary["throughput/device_kind"] == "cpu"
    assert sent.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["show", "nowhere"], "nowhere, where there is no metrics.jsonl"),
        (["replay", "nowhere", "--to", "wandb"], "nowhere, where there is no metrics.jsonl"),
        (["replay", "nowhere", "--to", "mars"], "'mars' is not one of"),
        (["replay", "nowhere"], "Missing option '--to'"),
        (["replay", "nowhere", "--to", "tensorboard", "--id", "x"], "--id x with --to tensorboard"),
    ],
)
def test_wrong_arguments_are_told_in_three_parts(chomp: Chomp, arguments: list[str], fault: str):
    assert_refused(chomp("metrics", *arguments), fault)
