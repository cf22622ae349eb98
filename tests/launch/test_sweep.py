"""Sweeps: points from a grid or a file, and what they make of a launch function."""

import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from chomp.config import Config
from chomp.config.files import parse_yaml, to_yaml
from chomp.errors import ConfigError
from chomp.executor import (
    ExecutorStep,
    output_path_of,
    plan_steps,
    this_output_path,
    versioned,
)
from chomp.launch.sweep import grid_of, points_in_file, print_sweep, sweep_of
from chomp.tracking import JsonlTracker


@dataclass(frozen=True, kw_only=True)
class Knobs(Config):
    lr: float = 1e-3
    sizes: tuple[int, ...] = (8,)
    name: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Launch(Config):
    knobs: Knobs = field(default_factory=Knobs)
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


@given(texts=st.lists(st.text(), min_size=1, max_size=4, unique=True), quote=st.sampled_from("'\""))
@example(texts=["x,y", "z"], quote='"')
@example(texts=["it's, so", 'a "b", c', "]", "\\"], quote="'")
@settings(max_examples=30, deadline=None)
def test_a_grid_holds_what_is_in_quotes_together(texts, quote):
    # Those that YAML cannot write so are not the question here.
    quoted = [yaml.safe_dump(each, default_style=quote, width=math.inf).rstrip() for each in texts]
    assert grid_of([f"knobs.name={','.join(quoted)}"]) == [(f"knobs.name={q}",) for q in quoted]
    [run, *_] = sweep_of(steps, Launch(), grid_of([f"knobs.notes={{a: {quoted[0]}}},{{}}"])).runs
    assert run.config["all"].value.knobs.notes == {"a": parse_yaml(quoted[0], source="text")}


def test_a_quote_inside_of_a_word_holds_nothing_together():
    assert grid_of(["knobs.name=it's,that's"]) == [("knobs.name=it's",), ("knobs.name=that's",)]


def test_points_of_a_file_are_the_overrides_of_its_mappings(tmp_path):
    file = tmp_path / "points.yaml"
    file.write_text("- {knobs.lr: 3e-3, knobs.sizes: [8, 16]}\n- {seed: 2}\n")
    points = points_in_file(str(file))
    assert points == [("knobs.lr=0.003", "knobs.sizes=[8, 16]"), ("seed=2",)]
    sweep = sweep_of(steps, Launch(), points)
    assert [run.config["all"].value.knobs.lr for run in sweep.runs] == [3e-3, 1e-3]


@pytest.mark.parametrize(
    "point", ["eval.harness.allow_code: true", "eval: {harness: {allow_code: true}}"]
)
def test_a_file_of_points_lets_no_task_bring_code(tmp_path, point: str):
    (tmp_path / "points.yaml").write_text(f"- {{seed: 1}}\n- {{{point}}}\n")
    with pytest.raises(ConfigError, match="on the command line alone"):
        points_in_file(str(tmp_path / "points.yaml"))


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


# Blank text is refused where null is meant.
@given(
    name=st.none() | st.text().filter(str.strip),
    notes=st.dictionaries(st.text(), PLAIN, min_size=1),
)
@example(name="null", notes={"a": "5", "b": "1e3", "c": {"d": ["no", None, True]}})
@example(name="'quoted'", notes={"a": "\x85 \u2028"})
@settings(max_examples=15, deadline=None)
def test_a_value_of_a_file_reaches_the_config_as_it_is(tmp_path_factory, name, notes):
    # Read back first: the question is what a sweep does to a value, not what YAML does.
    text = to_yaml([{"knobs.name": name, "knobs.notes": notes}])
    [wanted] = parse_yaml(text, source="text")
    file = tmp_path_factory.mktemp("sweep") / "points.yaml"
    file.write_text(text)
    [run] = sweep_of(steps, Launch(), points_in_file(str(file))).runs
    knobs = run.config["all"].value.knobs
    assert (knobs.name, knobs.notes) == (wanted["knobs.name"], wanted["knobs.notes"])


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
        (["seed=1,2", "seed=3,4"], "seed"),
        ([f"seed={','.join(map(str, range(40)))}", f"knobs.lr={','.join(['1'] * 40)}"], "1600"),
    ],
)
def test_axes_that_cannot_be_are_refused_before_anything_is_planned(axes, told):
    with pytest.raises(ConfigError, match=told):
        sweep_of(steps, Launch(), grid_of(axes))


Row = dict[str, float]


def table(folder: Path, *records: list[Row], **options: Any) -> tuple[str, list[list[str]]]:
    """What is printed of a sweep over seeds, of which the first have such records; and its rows."""
    count = len(records) + 1  # one never ran
    sweep = sweep_of(steps, Launch(), grid_of([f"seed={','.join(map(str, range(count)))}"]))
    plans = plan_steps(sweep.steps, prefix=str(folder))[-count:]
    for planned, rows in zip(plans, records, strict=False):
        Path(planned.path).mkdir(parents=True)
        tracker = JsonlTracker(Path(planned.path, "metrics.jsonl"), attempt=1)
        for number, row in enumerate(rows):
            tracker.log(row, step=number)
        tracker.finish()
    console = Console(file=io.StringIO(), width=200)
    print_sweep(
        dict(zip(sweep.points, plans, strict=True)), "eval/loss", console=console, **options
    )
    said = console.file.getvalue()
    assert all(planned.path in said for planned in plans)
    lines = [line.split("│") for line in said.splitlines() if "│" in line]
    return said, [[cell.strip() for cell in line[1:4]] for line in lines]


@pytest.mark.parametrize(("best", "in_order"), [("lowest", "10"), ("highest", "01")])
def test_the_table_has_the_best_run_first_and_those_without_a_value_last(best, in_order, tmp_path):
    losses = [2.0, 3.0], [9.0, 1.5], [math.nan]
    records = [[{"eval/loss": loss} for loss in each] for each in losses]
    said, rows = table(tmp_path, *records, best=best)
    assert f"sweep, by eval/loss, {best} first" in said
    shown = {"0": "3.0000", "1": "1.5000"}
    assert rows[:2] == [[str(at), seed, shown[seed]] for at, seed in enumerate(in_order, start=1)]
    assert rows[2:] == [["-", "2", "not run"], ["-", "3", "not run"]]


def test_runs_that_evaluated_averaged_weights_alone_are_ordered_by_those(tmp_path):
    _, rows = table(
        tmp_path,
        [{"eval/ema/loss": 3.0, "train/loss": 1.0}],
        [{"eval/ema/loss": 2.0, "train/loss": 9.0}],
        [{"eval/loss": 2.5, "eval/ema/loss": 1.0, "train/loss": 5.0}],
    )
    assert rows == [
        ["1", "1", "2.0000 (averaged weights)"],
        ["2", "2", "2.5000"],
        ["3", "0", "3.0000 (averaged weights)"],
        ["-", "3", "not run"],
    ]
