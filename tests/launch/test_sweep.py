"""Sweeps: points from a grid or a file, and what they make of a launch function."""

import io
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from chomp.config import Config
from chomp.errors import ConfigError
from chomp.executor import (
    ExecutorStep,
    PlannedStep,
    output_path_of,
    plan_steps,
    this_output_path,
    versioned,
)
from chomp.launch.sweep import grid_of, points_in_file, sweep_of
from chomp.launch.sweep_table import tell_sweep
from chomp.tracking import JsonlTracker


@dataclass(frozen=True, kw_only=True)
class Knobs(Config):
    lr: float = 1e-3
    sizes: tuple[int, ...] = (8,)


@dataclass(frozen=True, kw_only=True)
class Launch(Config):
    knobs: Knobs = Knobs()
    seed: int = 0


def work(config: dict[str, object]) -> None:
    """Never called here."""


def steps(launch: Launch) -> list[ExecutorStep]:
    data = ExecutorStep("data", work, {"out": this_output_path()})
    config = {"all": versioned(launch), "data": output_path_of(data)}
    return [data, ExecutorStep("run", work, config)]


def test_a_grid_has_every_combination_and_brackets_hold_one_value():
    found = grid_of(["knobs.sizes=[8, 16],[32]", "seed=0,1"])
    assert found == [
        ("knobs.sizes=[8, 16]", "seed=0"),
        ("knobs.sizes=[8, 16]", "seed=1"),
        ("knobs.sizes=[32]", "seed=0"),
        ("knobs.sizes=[32]", "seed=1"),
    ]


def test_points_of_a_file_are_the_overrides_of_its_mappings(tmp_path):
    file = tmp_path / "points.yaml"
    file.write_text("- {knobs.lr: 3e-3, knobs.sizes: [8, 16]}\n- {seed: 2}\n")
    points = points_in_file(str(file))
    assert points == [("knobs.lr=0.003", "knobs.sizes=[8, 16]"), ("seed=2",)]
    sweep = sweep_of(steps, Launch(), points)
    assert [run.config["all"].value.knobs.lr for run in sweep.runs] == [3e-3, 1e-3]


def test_runs_have_folders_of_their_own_and_share_what_is_equal(tmp_path):
    sweep = sweep_of(steps, Launch(), grid_of(["knobs.lr=1e-3,3e-3", "seed=0,1,2"]))
    planned = plan_steps(sweep.steps, prefix=str(tmp_path))
    assert [item.step.name for item in planned] == ["data", *["run"] * 6]
    assert len({item.path for item in planned}) == 7


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (["knobs.lr"], "--sweep knobs.lr"),
        (["knobs.lr=1e-3,,2e-3"], "with commas between"),
        (["knobs.rate=1"], r"at knobs\.rate=1: .*knobs\.rate"),
        (["seed=1,1"], "seed=1 twice"),
        ([f"seed={','.join(map(str, range(40)))}", f"knobs.lr={','.join(['1'] * 40)}"], "1600"),
    ],
)
def test_axes_that_cannot_be_are_refused_before_anything_is_planned(axes, told):
    with pytest.raises(ConfigError, match=told):
        sweep_of(steps, Launch(), grid_of(axes))


def test_the_table_has_the_best_run_first_and_those_without_a_value_last(tmp_path):
    sweep = sweep_of(steps, Launch(), grid_of(["seed=0,1,2,3"]))
    *_, first, second, third, fourth = plan_steps(sweep.steps, prefix=str(tmp_path))
    for planned, losses in ((first, [2.0, 3.0]), (second, [9.0, 1.5]), (third, [math.nan])):
        tracker = JsonlTracker(make_folder_of(planned) / "metrics.jsonl", attempt=1)
        for step, loss in enumerate(losses):
            tracker.log({"eval/loss": loss}, step=step)
        tracker.finish()
    console = Console(file=io.StringIO(), width=200)
    runs = dict(zip(sweep.points, (first, second, third, fourth), strict=True))
    tell_sweep(runs, "eval/loss", console)
    lines = [line.split("│") for line in console.file.getvalue().splitlines() if "│" in line]
    told = [[cell.strip() for cell in line[1:4]] for line in lines]
    assert told == [
        ["1", "1", "1.5000"],
        ["2", "0", "3.0000"],
        ["-", "2", "not run"],
        ["-", "3", "not run"],
    ]
    assert second.path in console.file.getvalue()


def make_folder_of(planned: PlannedStep) -> Path:
    folder = Path(planned.path)
    folder.mkdir(parents=True)
    return folder
