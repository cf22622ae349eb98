"""What a watched run is known to be, as its folder grows: attempts, pace, evaluations, samples."""

import json
from pathlib import Path

import numpy as np
import pytest

from chomp.report.watch import WatchedRun
from chomp.tracking import JsonlTracker

NOW_S = 1_000_000.0


class Writer:
    """A run that writes its record, at times that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def add(self, attempt: int, at_s: float, **line: object) -> None:
        row = {"attempt": attempt, "time": NOW_S + at_s, **line}
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def step(self, attempt: int, step: int, at_s: float, **metrics: object) -> None:
        named = {name.replace("__", "/"): value for name, value in metrics.items()}
        self.add(attempt, at_s, step=step, global_step=step, **named)

    def end(self, attempt: int, at_s: float, outcome: str) -> None:
        self.add(attempt, at_s, kind="summary", **{"run/outcome": outcome})


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "run")


def watched(writer: Writer) -> WatchedRun:
    run = WatchedRun(str(writer.folder))
    while run.look():
        pass
    return run


def losses(run: WatchedRun) -> dict[int, float]:
    rows = run.record.series("train/loss")
    return dict(zip(rows.steps.tolist(), rows.values.tolist(), strict=True))


def evaluated(run: WatchedRun) -> list[int]:
    return [each.step for each in run.evaluations]


def test_a_resumed_run_replaces_what_it_repeats_and_is_marked_where_it_went_on(writer: Writer):
    for step in range(6):
        writer.step(1, step, step, train__loss=1.0 + step)
    run = watched(writer)
    assert (run.attempt, run.completed_steps, run.resumes) == (1, 6, [])
    for step in (3, 4):
        writer.step(2, step, 100 + step, train__loss=20.0 + step)
    run.look()
    assert (run.attempt, run.completed_steps, run.resumes) == (2, 5, [(3, 2)])
    assert losses(run) == {0: 1, 1: 2, 2: 3, 3: 23, 4: 24}
    writer.step(1, 5, 200, train__loss=7.0)  # a process that was forgotten
    writer.step(2, 5, 201, train__loss=25.0)
    run.look()
    assert losses(run) == {0: 1, 1: 2, 2: 3, 3: 23, 4: 24, 5: 25}


def test_rows_of_an_abandoned_attempt_never_stand_between_those_of_another_pace(writer: Writer):
    settings = {"trainer": {"log_every": 5}}
    (writer.folder / "config_resolved.json").write_text(json.dumps(settings))
    for step in range(1, 20, 2):
        writer.step(1, step, step, train__loss=5.0, eval__loss=5.0, eval__tokens=1)
    run = watched(writer)
    writer.step(1, 19, 20, **{"checkpoint/step": 12})
    # Evaluations have a period of their own.
    writer.step(2, 12, 100, eval__loss=2.0, eval__tokens=1)
    for step in (14, 19):
        writer.step(2, step, 100 + step, train__loss=2.0)
    run.look()
    assert losses(run) == {1: 5, 3: 5, 5: 5, 7: 5, 9: 5, 11: 5, 14: 2, 19: 2}
    assert run.resumes == [(12, 2)]
    assert run.eval_loss.steps.tolist() == [1, 3, 5, 7, 9, 11, 12]
    assert evaluated(run) == [11, 12]


def test_an_attempt_that_only_evaluates_again_forgets_nothing(writer: Writer):
    for step in range(4):
        writer.step(1, step, step, train__loss=1.0)
    writer.step(2, 3, 50, eval__loss=2.0, eval__tokens=1)
    run = watched(writer)
    assert losses(run) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert run.resumes == []


@pytest.mark.parametrize("outcome", [None, "RunInterrupted"])
def test_results_that_come_afterwards_are_no_sign_of_life(writer: Writer, outcome: str | None):
    for step in range(4):
        writer.step(1, step, step, **{"throughput/duration": 1.0})
    if outcome is not None:
        writer.end(1, 3, outcome)
    writer.step(1, 1, 5000, **{"lm_eval/averages/x": 0.5})
    assert watched(writer).last_line_s == NOW_S + 3


def test_the_time_left_is_by_the_pace_of_this_attempt_and_unknown_before_it_has_one(
    writer: Writer,
):
    for step in range(4):
        writer.step(1, step, step, run_progress=(step + 1) / 100)
    run = watched(writer)
    assert run.seconds_left(NOW_S + 3) == pytest.approx(96)
    assert run.seconds_left(NOW_S + 13) == pytest.approx(86)  # it goes on between two lines
    writer.step(2, 2, 500, run_progress=0.03)
    run.look()
    assert run.seconds_left(NOW_S + 500) is None
    writer.step(2, 3, 510, run_progress=0.04)
    run.look()
    assert run.seconds_left(NOW_S + 510) == pytest.approx(960)
    assert run.total_steps == 100
    writer.end(2, 511, "RunInterrupted")
    run.look()
    assert run.seconds_left(NOW_S + 511) is None


def test_the_total_is_the_configs_until_a_row_tells_and_follows_a_run_made_longer(writer: Writer):
    settings = {"run_id": "mine", "trainer": {"steps": 40}}
    (writer.folder / "config_resolved.json").write_text(json.dumps(settings))
    run = watched(writer)
    assert (run.record.name, run.total_steps) == ("mine", 40)
    writer.step(1, 9, 0, run_progress=0.5)
    run.look()
    assert run.total_steps == 20
    settings["trainer"]["steps"] = 60
    (writer.folder / "config_resolved.json").write_text(json.dumps(settings))
    writer.add(2, 5, kind="summary")
    run.look()
    assert (run.attempt, run.completed_steps, run.total_steps) == (2, None, 60)


def test_an_end_counts_until_another_attempt_begins(writer: Writer):
    writer.step(1, 0, 0, train__loss=1.0)
    writer.end(1, 1, "RunInterrupted")
    run = watched(writer)
    assert run.outcome == "RunInterrupted"
    writer.add(2, 2, kind="summary")
    run.look()
    assert run.outcome is None
    writer.end(2, 3, "finished")
    run.look()
    assert run.outcome == "finished"


def test_a_run_is_quiet_after_much_longer_than_its_lines_take(writer: Writer):
    for step in range(3):
        writer.step(1, step, 600 * step, train__loss=1.0)
    run = watched(writer)
    assert not run.is_quiet(NOW_S + 1200 + 2900)
    assert run.is_quiet(NOW_S + 1200 + 3100)
    writer.end(1, 1201, "finished")
    run.look()
    assert not run.is_quiet(NOW_S + 10_000)


def test_evaluations_are_the_last_two_by_step_and_late_ones_move_nothing(writer: Writer):
    for step in (4, 9, 14):
        writer.step(1, step, step, eval__tokens=8, eval__loss=3.0 - step / 10)
    writer.step(1, 14, 15, **{"eval/ema/loss": 1.25, "eval/ema/tokens": 8})
    run = watched(writer)
    assert evaluated(run) == [9, 14]
    assert run.evaluations[-1].values["eval/ema/loss"] == 1.25
    writer.step(1, 4, 99, eval__tokens=8, eval__loss=9.0)  # of an earlier checkpoint, afterwards
    run.look()
    assert evaluated(run) == [9, 14]
    assert run.completed_steps == 15
    assert run.eval_loss.values[0] == 9.0
    writer.step(2, 9, 200, train__loss=1.0, eval__tokens=8, eval__loss=2.0)  # resumed before 14
    run.look()
    found = [(each.step, each.values["eval/loss"]) for each in run.evaluations]
    assert found == [(4, 9.0), (9, 2.0)]


def test_values_that_are_not_finite_are_gaps_and_skipped_steps_a_problem(writer: Writer):
    writer.step(1, 0, 0, train__loss=2.0)
    writer.step(1, 1, 1, train__loss=None, **{"train/loss/nonfinite": "nan"})
    writer.step(1, 2, 2, train__loss=True, **{"train/skipped_steps": 1})
    run = watched(writer)
    assert list(losses(run)) == [0, 1]
    assert np.isnan(losses(run)[1])
    assert run.problems(NOW_S) == ["steps that were not finite and left out: 1"]


def test_a_sample_is_the_newest_that_the_record_names_and_never_outside_of_the_folder(
    writer: Writer,
):
    (writer.folder / "samples").mkdir()
    (writer.folder.parent / "secret.txt").write_text("outside")
    (writer.folder / "samples" / "step-4.txt").write_text("Once▸ upon")
    told = {"kind": "artifact", "artifact_kind": "sample"}
    writer.add(1, 0, name="sample-step-4", path="/elsewhere/samples/step-4.txt", **told)
    run = watched(writer)
    assert (run.sample.prompt, run.sample.continuation) == ("Once", "▸ upon")
    writer.add(1, 0, name="sample-step-5", path="../secret.txt", **told)
    run.look()
    assert run.sample.prompt == "Once"


def test_secrets_in_a_sample_are_not_shown(writer: Writer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    (writer.folder / "samples").mkdir()
    (writer.folder / "samples" / "step-1.txt").write_text("token ▸hf_planted_secret")
    writer.add(1, 0, kind="artifact", artifact_kind="sample", path="samples/step-1.txt")
    assert watched(writer).sample.continuation == "▸<HF_TOKEN>"


def test_a_record_of_another_name_is_found_once_the_config_is_there(tmp_path: Path):
    run = WatchedRun(str(tmp_path))
    run.look()
    assert not run.has_begun
    settings = {"logging": {"metrics_file": "rows.jsonl"}, "eval": {"prefix": "held"}}
    (tmp_path / "config_resolved.json").write_text(json.dumps(settings))
    JsonlTracker(tmp_path / "rows.jsonl", attempt=1).log(
        {"train/loss": 2.0, "held/tokens": 1, "held/loss": 1.5}, step=0
    )
    run.look()
    run.look()
    assert losses(run) == {0: 2.0}
    assert run.evaluations[-1].values["held/loss"] == 1.5


def test_a_record_that_is_replaced_is_known_anew(writer: Writer):
    for step in range(5):
        writer.step(3, step, step, train__loss=1.0)
    run = watched(writer)
    (writer.folder / "metrics.jsonl").unlink()
    run.look()
    assert run.problems(NOW_S) == ["metrics.jsonl: it is gone"]
    writer.step(1, 0, 50, train__loss=8.0)
    run.look()
    assert (run.attempt, run.completed_steps, losses(run)) == (1, 1, {0: 8.0})
    assert run.problems(NOW_S) == []


def test_a_damaged_record_and_config_are_problems_in_words(writer: Writer):
    (writer.folder / "config_resolved.json").write_text("{")
    writer.step(1, 0, 0, train__loss=1.0)
    with (writer.folder / "metrics.jsonl").open("a") as file:
        file.write('garbage\n{"step": 1, "tr')
    run = watched(writer)
    assert len(run.problems(NOW_S + 1)) == 2  # the torn line is being written
    line, torn, config = run.problems(NOW_S + 1000)
    assert line == "left out of metrics.jsonl, because unreadable: line 2"
    assert torn == "metrics.jsonl ends within a line, as a killed run leaves it"
    assert config.startswith("config_resolved.json cannot be read")
