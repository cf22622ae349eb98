"""Axes, resumes and the waterfall of runs whose every second is known."""

import base64

import numpy as np
import pytest

from chomp.report.record import read_record
from chomp.report.run_facts import run_state
from chomp.report.run_payload import run_payload
from chomp.report.timeline import (
    axes,
    duration_text,
    paused_seconds,
    resumes,
    trained_seconds,
    waterfall,
)
from tests.report.recorded_run import PHASES, SET_UP_SECONDS, RecordedRun

LINE_SECONDS = 2 * 2.0 + sum(PHASES.values())  # two steps and what came with them
FIRST_LINE_SECONDS = SET_UP_SECONDS + 4.0 + LINE_SECONDS  # and compiling


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def by_label(record):
    return {part["label"]: part["seconds"] for part in waterfall(record)}


def test_a_steps_place_on_every_axis_is_that_of_its_row(tmp_path):
    record = read_record(RecordedRun(tmp_path).attempt(0, 8).written())
    found = axes(record)
    assert unpacked(found["step"], "<i4").tolist() == [1, 3, 5, 7]
    assert unpacked(found["tokens"], "<f4").tolist() == [1024.0, 2048.0, 3072.0, 4096.0]
    assert unpacked(found["flops"], "<f4") == pytest.approx([4e9, 8e9, 12e9, 16e9])
    wanted = FIRST_LINE_SECONDS + LINE_SECONDS * np.arange(4)
    assert unpacked(found["seconds"], "<f4") == pytest.approx(wanted)


def test_neither_a_pause_nor_steps_done_again_count_as_time_trained(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 10, outcome=None).pause(1000.0)
    record = read_record(run.attempt(6, 20).written())
    # Three lines of the first attempt stand; four of the second's seven come after its first.
    wanted = FIRST_LINE_SECONDS + 2 * LINE_SECONDS + FIRST_LINE_SECONDS + 6 * LINE_SECONDS
    assert trained_seconds(record) == pytest.approx(wanted)
    seconds = unpacked(axes(record)["seconds"], "<f4")
    assert np.all(np.diff(seconds) > 0)
    assert paused_seconds(record) == pytest.approx(1000.0)


def test_time_goes_on_where_an_attempt_went_back_and_was_cut_off_again(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 10, outcome=None).attempt(2, 6, outcome=None)
    record = read_record(run.written())
    # Steps 2 to 5 stand as the second attempt did them; 6 to 9 will be done again.
    assert record.series("train/loss").attempts.tolist() == [1, 2, 2]
    wanted = FIRST_LINE_SECONDS + FIRST_LINE_SECONDS + LINE_SECONDS
    assert trained_seconds(record) == pytest.approx(wanted)


def test_the_waterfall_sums_to_the_wall_clock_of_all_attempts(tmp_path):
    run = RecordedRun(tmp_path)
    run.attempt(0, 10, outcome=None).save(8).evaluation(9, loss=3.0).pause(500.0)
    record = read_record(run.attempt(8, 20).written())
    parts = by_label(record)
    wall = sum(attempt.last_time - attempt.first_time for attempt in record.attempts)
    assert sum(parts.values()) == pytest.approx(wall)
    assert parts["step"] == pytest.approx(2.0 * (10 + 12))  # steps 8 and 9 were done twice
    assert parts["loading"] == pytest.approx(0.5 * (5 + 6))
    assert parts["compile"] == pytest.approx(8.0)
    assert parts["eval"] == pytest.approx(1.0)
    assert parts["other"] == pytest.approx(2 * SET_UP_SECONDS)


def test_what_follows_the_last_row_is_named_and_a_last_evaluation_is_not_in_it(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 8, outcome=None).evaluation(7, loss=3.0).pause(30.0)
    run.save(8)
    parts = by_label(read_record(run.written()))
    assert parts["eval"] == pytest.approx(1.0)
    assert parts["after the last row"] == pytest.approx(30.0)
    assert parts["other"] == pytest.approx(SET_UP_SECONDS)


@pytest.mark.parametrize("mixed", ["twice", "backwards"])
def test_lines_that_are_there_twice_or_out_of_order_tell_the_same_times(tmp_path, mixed):
    run = RecordedRun(tmp_path).attempt(0, 20)
    straight = by_label(read_record(run.written()))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    begin, *rows, end = lines
    rows = rows[:4] + rows[2:] if mixed == "twice" else [rows[0], *rows[:0:-1]]
    (tmp_path / "metrics.jsonl").write_text("".join([begin, *rows, end]))
    assert by_label(read_record(str(tmp_path))) == pytest.approx(straight)


def test_an_attempt_that_says_not_where_it_began_is_judged_by_its_other_lines(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 10, outcome=None)
    record = read_record(run.attempt(8, 20).written())  # no line tells of a checkpoint
    assert by_label(record)["step"] == pytest.approx(2.0 * (10 + 12))


def test_a_resume_is_told_with_its_pause_and_what_was_done_again(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 10, outcome="RunInterrupted").pause(90.0)
    found = resumes(read_record(run.attempt(6, 12).written()))
    assert [(mark["step"], mark["attempt"]) for mark in found] == [(6, 2)]
    assert "1 min 30 s after attempt 1 ended with RunInterrupted" in found[0]["note"]
    assert "4 steps are done again" in found[0]["note"]


def test_a_resume_is_at_the_checkpoint_in_mark_note_and_waterfall(tmp_path):
    run = RecordedRun(tmp_path, log_every=10).attempt(0, 30).save(25).pause(90.0)
    record = read_record(run.attempt(25, 50).written())  # its first row is of five steps
    (mark,) = resumes(record)
    assert (mark["step"], mark["note"]) == (
        25,
        "1 min 30 s after attempt 1 finished, 5 steps are done again",
    )
    assert by_label(record)["step"] == pytest.approx(2.0 * (30 + 25))
    record = read_record(RecordedRun(tmp_path).attempt(0, 8).attempt(7, 9).written())
    assert resumes(record)[0]["note"].endswith(", 1 step is done again")


def test_results_that_come_days_later_are_no_time_of_the_run(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 20)
    ended = run.now
    run.pause(3 * 86400.0).evaluation(9, loss=3.0)
    record = read_record(run.written())
    assert record.attempts[0].last_time == ended
    assert sum(by_label(record).values()) == pytest.approx(ended - record.attempts[0].first_time)
    assert by_label(record)["eval"] == 0.0
    assert record.series("eval/loss").values.tolist() == [3.0]


def test_late_results_of_a_killed_run_neither_move_its_resume_nor_revive_it(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 10, outcome=None).attempt(10, 20, outcome=None)
    ended = run.now
    record = read_record(run.pause(5000.0).evaluation(3, loss=3.0).written())
    assert record.attempts[-1].last_time == ended
    assert [mark["step"] for mark in resumes(record)] == [10]
    assert run_state(record, now_s=run.now + 1) == "stopped"


def test_a_record_that_begins_in_the_middle_counts_no_steps_that_it_does_not_have(tmp_path):
    record = read_record(RecordedRun(tmp_path, log_every=10).attempt(500, 600).written())
    assert by_label(record)["step"] == pytest.approx(2.0 * 100)
    assert "the record begins at step 500" in run_payload(record)["problems"][0]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[1:]))  # and now a row comes first
    record = read_record(str(tmp_path))
    wall = record.attempts[0].last_time - record.attempts[0].first_time
    assert sum(by_label(record).values()) == pytest.approx(wall)


def test_axes_reach_to_evaluations_after_the_last_row_of_training(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 8, outcome=None).evaluation(9, loss=3.0)
    found = axes(read_record(run.written()))
    assert unpacked(found["step"], "<i4").tolist() == [1, 3, 5, 7, 9]
    assert unpacked(found["tokens"], "<f4")[-2:].tolist() == [4096.0, 5120.0]
    seconds = unpacked(found["seconds"], "<f4")
    assert seconds[-1] - seconds[-2] == pytest.approx(LINE_SECONDS)


def test_a_run_without_rows_has_no_axes_and_no_waterfall(tmp_path):
    record = read_record(RecordedRun(tmp_path).written())
    assert axes(record) == {"step": "", "tokens": None, "flops": None, "seconds": None}
    assert waterfall(record) == []
    assert resumes(record) == []
    assert trained_seconds(record) == 0.0


def test_long_runs_have_few_knots_and_keep_both_sides_of_a_resume(tmp_path):
    run = RecordedRun(tmp_path, log_every=1).attempt(0, 1500, outcome=None).pause(60.0)
    found = axes(read_record(run.attempt(1001, 3000).written()))
    steps = unpacked(found["step"], "<i4")
    assert steps.size < 310
    assert {0, 1000, 1001, 2999} <= set(steps.tolist())


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.04, "0.0 s"), (59, "59 s"), (61, "1 min 01 s"), (7500, "2 h 05 min"), (1e6, "11 d 13 h")],
)
def test_lengths_of_time_are_told_in_two_units(seconds, told):
    assert duration_text(seconds) == told
