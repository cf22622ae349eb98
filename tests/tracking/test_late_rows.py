"""Rows that come after a run's own, into a record that the run may still be writing."""

import threading
import time
from pathlib import Path

import pytest

from chomp.tracking import JsonlTracker, read_metrics


def test_rows_of_the_run_and_late_rows_lie_side_by_side(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    run = JsonlTracker(path, attempt=2)
    run.log({"train/loss": 1.0}, step=0)
    late = JsonlTracker(path, attempt=2, is_shared=True)
    run.log({"train/loss": 0.5}, step=1)
    late.log({"eval/loss": 2.0}, step=0)
    run.log({"train/loss": 0.25}, step=2)
    late.finish()
    run.finish()
    found = [(row["step"], row["attempt"]) for row in read_metrics(path)]
    assert found == [(0, 2), (1, 2), (0, 2), (2, 2)]


def test_many_writers_at_once_tear_no_line(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    JsonlTracker(path, attempt=1).log({"train/loss": 1.0}, step=0)
    long = {f"lm_eval/task-{number}/acc": number / 7 for number in range(200)}

    def write(writer: int) -> None:
        for step in range(20):
            # Each opens anew, as each command does.
            late = JsonlTracker(path, attempt=1, is_shared=True)
            late.log({**long, "writer": writer}, step=step)
            late.finish()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read_metrics(path)
    assert len(rows) == 81
    assert {(row["writer"], row["step"]) for row in rows[1:]} == {
        (writer, step) for writer in range(4) for step in range(20)
    }
    assert not path.with_name("metrics.jsonl.torn").exists()


def test_a_line_that_a_killed_run_left_unfinished_is_set_aside(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0,"attempt":1,"time":1.0}\n{"step":1,"atte')
    late = JsonlTracker(path, attempt=1, is_shared=True)
    late.log({"eval/loss": 2.0}, step=0)
    late.finish()
    assert [row["step"] for row in read_metrics(path)] == [0, 0]
    assert path.with_name("metrics.jsonl.torn").read_text() == '{"step":1,"atte\n'


def test_a_line_that_is_being_written_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0,"att')

    def finish_the_line(seconds: float) -> None:
        with path.open("a") as file:
            file.write('empt":1}\n')

    # What the run does while the newcomer waits.
    monkeypatch.setattr(time, "sleep", finish_the_line)
    late = JsonlTracker(path, attempt=1, is_shared=True)
    late.log({"eval/loss": 2.0}, step=0)
    assert [row["step"] for row in read_metrics(path)] == [0, 0]
    assert not path.with_name("metrics.jsonl.torn").exists()
