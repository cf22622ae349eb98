"""Reading run folders in every state that a run can leave them in."""

import json
import random

import numpy as np
import pytest

from chomp.errors import ConfigError
from chomp.report.record import read_record
from chomp.tracking import JsonlTracker, latest_rows, read_metrics, summary_of


def written(folder, *attempts):
    """A run folder whose record holds each attempt's rows: step -> metrics."""
    (folder / "config_resolved.json").write_text('{"run_id": "tried"}')
    for number, rows in enumerate(attempts, start=1):
        tracker = JsonlTracker(folder / "metrics.jsonl", attempt=number)
        for step, metrics in rows.items():
            tracker.log(metrics, step=step)
        tracker.finish()
    return str(folder)


def by_step(series):
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_a_series_has_each_step_once_with_the_newest_attempts_value(tmp_path):
    first = {step: {"train/loss": 9.0 - step} for step in range(6)}
    second = {step: {"train/loss": 5.0 - step} for step in range(4, 8)}
    record = read_record(written(tmp_path, first, second))
    losses = by_step(record.series("train/loss"))
    assert losses == {0: 9.0, 1: 8.0, 2: 7.0, 3: 6.0, 4: 1.0, 5: 0.0, 6: -1.0, 7: -2.0}
    assert record.logged("train/loss").attempts.tolist() == [1] * 6 + [2] * 4
    assert [(a.number, a.first_step, a.last_step) for a in record.attempts] == [
        (1, 0, 5),
        (2, 4, 7),
    ]
    assert record.problems == ()
    assert record.name == "tried"


def test_columns_agree_with_latest_rows_on_records_of_every_shape(tmp_path):
    """Rows of many layouts, repeated steps, late rows of old attempts, nulls, texts, short keys."""
    draw = random.Random(3)
    lines = []
    for _ in range(2000):
        row = {"step": draw.randrange(60), "attempt": draw.randrange(1, 4), "time": draw.random()}
        for name in draw.sample(["train/loss", "loss", "eval/loss", "optim/x", "mode", "is_on"], 4):
            value = draw.choice([draw.random(), draw.randrange(9), None])
            row[name] = "text" if name == "mode" else True if name == "is_on" else value
        lines.append(json.dumps(row))
        if draw.random() < 0.1:
            lines.append(
                json.dumps({"kind": "summary", "attempt": 1, "time": 2.0, "a": len(lines)})
            )
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    record, rows = read_record(str(path)), read_metrics(path)
    assert set(record.names) == {"train/loss", "eval/loss", "optim/x"}
    for name in record.names:
        wanted = {row["step"]: row[name] for row in latest_rows(rows) if name in row}
        found = by_step(record.series(name))
        assert found.keys() == wanted.keys()
        for step, value in found.items():
            assert value == wanted[step] or (wanted[step] is None and np.isnan(value))
    assert record.summary == summary_of(rows)


def test_where_a_newer_attempt_went_back_older_rows_are_no_longer_the_run(tmp_path):
    """Also with rows at other steps, and while the newer attempt has not caught up."""
    first = {step: {"train/loss": 1.0} for step in range(6, 70, 7)}
    first[34] = {"train/loss": 1.0, "checkpoint/step": 30}
    first[62]["eval/loss"] = 1.5
    second = {step: {"train/loss": 9.0} for step in range(39, 60, 10)}
    record = read_record(written(tmp_path, first, second))
    assert by_step(record.series("train/loss")) == {6: 1, 13: 1, 20: 1, 27: 1, 39: 9, 49: 9, 59: 9}
    assert record.series("eval/loss").steps.size == 0
    assert [attempt.first_step for attempt in record.attempts] == [0, 30]
    assert record.logged("train/loss").steps.size == 13


def test_a_checkpoint_that_nobody_told_of_does_not_erase_the_steps_up_to_it(tmp_path):
    first = {step: {"train/loss": 1.0} for step in range(60)}
    first[10]["checkpoint/step"] = 10  # the last one, of 50, was not logged before the end
    second = {step: {"train/loss": 9.0} for step in range(51, 60, 2)}
    losses = by_step(read_record(written(tmp_path, first, second)).series("train/loss"))
    assert list(losses) == [*range(50), *range(51, 60, 2)]


def test_an_attempt_that_only_evaluates_leaves_all_rows_as_they_are(tmp_path):
    first = {step: {"train/loss": 1.0, "throughput/duration": 1.0} for step in range(8)}
    first[7]["eval/loss"] = 3.0
    record = read_record(written(tmp_path, first, {7: {"eval/loss": 2.0}}, {3: {"eval/loss": 4.0}}))
    assert record.series("train/loss").steps.tolist() == list(range(8))
    assert by_step(record.series("eval/loss")) == {3: 4.0, 7: 2.0}


def test_lines_that_are_not_of_steps_keep_their_order(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"environment/jax": "1", "environment/gpu": "old"},
        {"environment/jax": "2"},
        {"environment/jax": "3", "environment/gpu": "new"},
        {"environment/jax": "4"},
        {"environment/gpu": "newest", "environment/jax": "5"},
    ]
    path.write_text("".join(json.dumps({"kind": "summary", **line}) + "\n" for line in lines))
    record = read_record(str(path))
    assert record.summary == {"environment/jax": "5", "environment/gpu": "newest"}
    assert list(record.others) == [1, 2, 3, 4, 5]


def test_rows_with_as_many_but_other_keys_lose_nothing(tmp_path):
    rows = [
        {"step": 0, "a": 1.0, "mode": "x"},
        {"step": 1, "a": 2.0, "b": 3.0},
        {"step": 2, "mode": "x", "a": 4.0},
        {"step": 3, "b": 5.0, "mode": "y"},
        {"step": 4, "a": 6.0, "kind": "summary"},
    ]
    for order in (rows, rows[::-1], rows[1:] + rows[:1]):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in order))
        found = read_record(str(tmp_path))
        for name, expected in {"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {1: 3.0, 3: 5.0}}.items():
            logged = found.logged(name)
            assert dict(zip(logged.steps.tolist(), logged.values.tolist(), strict=True)) == expected
        assert list(found.others.values()) == [rows[4]]


def test_a_metric_that_stands_under_its_short_key_alone_is_kept(tmp_path):
    record = read_record(written(tmp_path, {0: {"lr": 0.5, "loss": 2.0, "train/loss": 2.0}}))
    assert record.names == ("lr", "train/loss")


def test_a_text_that_only_pythons_parser_takes_costs_no_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0,"x":1}\n{"step":1,"x":2,"said":"\\ud800"}\n')
    assert by_step(read_record(str(path)).series("x")) == {0: 1.0, 1: 2.0}


def test_a_value_that_was_not_finite_is_a_gap(tmp_path):
    rows = {0: {"train/loss": 1.0}, 1: {"train/loss": float("nan")}, 2: {"train/loss": 3.0}}
    values = read_record(written(tmp_path, rows)).series("train/loss").values
    assert np.array_equal(values, [1.0, np.nan, 3.0], equal_nan=True)


@pytest.mark.parametrize("kept_bytes", [1, 20, 60])
def test_a_torn_last_line_is_left_out_and_told(tmp_path, kept_bytes):
    folder = written(tmp_path, {0: {"train/loss": 1.0}, 1: {"train/loss": 2.0}})
    path = tmp_path / "metrics.jsonl"
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    path.write_bytes(content[: first + kept_bytes])
    record = read_record(folder)
    assert by_step(record.series("train/loss")) == {0: 1.0}
    assert "being written right now" in record.problems[0]


@pytest.mark.parametrize(
    "bad",
    [
        *("", "not json", '{"step":1,"a":NaN}', "[1]", '{"step":1},{"step":2}', '{"a":[1', "17"),
        *("[" * 100_000, '{"step":1,"attempt":1e400,"x":9}', '{"step":1,"attempt":null,"x":9}'),
    ],
)
def test_a_broken_line_in_the_middle_is_left_out_with_its_number(tmp_path, bad):
    good = [
        '{"step":0,"attempt":1,"time":1.0,"x":1.5}',
        '{"step":3,"attempt":1,"time":2.0,"x":2.5}',
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([good[0], bad, good[1]]) + "\n")
    record = read_record(str(path))
    assert by_step(record.series("x")) == {0: 1.5, 3: 2.5}
    assert "line 2" in record.problems[-1]


def test_long_lists_of_broken_lines_are_counted_not_listed(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"x\n" * 100 + b'{"step":0,"a":1}\n')
    record = read_record(str(tmp_path))
    assert record.problems[-1].endswith("line 1, line 2, line 3, line 4, line 5 and 95 more")
    assert record.logged("a").lines.tolist() == [101]


@pytest.mark.parametrize("step", ["null", '"7"', "1.5e300", "true", "0.5"])
def test_a_row_whose_step_is_no_whole_number_is_left_out_and_named(tmp_path, step):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step":0,"x":1}}\n{{"step":{step},"x":2}}\n{{"step":2,"x":3}}\n')
    record = read_record(str(path))
    assert by_step(record.series("x")) == {0: 1.0, 2: 3.0}
    assert any("is not a valid number: line 2" in told for told in record.problems)


def test_lines_longer_than_a_block_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    long = {"step": 1, "attempt": 1, "time": 1.0, "text": "x" * 300_000, "x": 2.0}
    path.write_text('{"step":0,"x":1}\n' + json.dumps(long) + '\n{"step":2,"x":3}\n')
    assert by_step(read_record(str(path)).series("x")) == {0: 1.0, 1: 2.0, 2: 3.0}


def test_a_run_that_has_not_logged_yet_is_a_record_that_says_so(tmp_path):
    (tmp_path / "config_resolved.json").write_text("{}")
    assert "not logged anything" in read_record(str(tmp_path)).problems[-1]
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    record = read_record(str(tmp_path))
    assert "is empty" in record.problems[-1]
    assert (record.names, record.attempts, record.summary) == ((), (), {})
    assert record.series("train/loss").steps.size == 0


def test_a_config_that_cannot_be_read_is_told_and_the_rows_are_there(tmp_path):
    folder = written(tmp_path, {0: {"train/loss": 1.0}})
    (tmp_path / "config_resolved.json").write_text('{"run_id": ')
    record = read_record(folder)
    assert record.config is None
    assert "config_resolved.json" in record.problems[0]
    assert by_step(record.series("train/loss")) == {0: 1.0}


def test_the_record_may_have_the_name_that_the_config_gives_it(tmp_path):
    (tmp_path / "config_resolved.json").write_text('{"logging": {"metrics_file": "rows.jsonl"}}')
    (tmp_path / "rows.jsonl").write_text('{"step":0,"x":1}\n')
    assert by_step(read_record(str(tmp_path)).series("x")) == {0: 1.0}


@pytest.mark.parametrize("is_made", [True, False])
def test_what_is_no_run_is_refused_in_three_parts(tmp_path, is_made):
    folder = tmp_path / "elsewhere"
    if is_made:
        folder.mkdir()
    with pytest.raises(ConfigError) as caught:
        read_record(str(folder))
    assert "elsewhere" in caught.value.given
    assert "a run folder" in caught.value.allowed


def test_attempts_tell_how_each_ended(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for number, outcome in ((1, "KeyboardInterrupt"), (2, "finished"), (3, None)):
        tracker = JsonlTracker(path, attempt=number)
        tracker.log({"train/loss": 1.0}, step=number)
        if outcome is not None:
            tracker.log_summary({"run/outcome": outcome})
        tracker.finish()
    attempts = read_record(str(path)).attempts
    assert [attempt.outcome for attempt in attempts] == ["KeyboardInterrupt", "finished", None]
    assert all(attempt.first_time <= attempt.last_time for attempt in attempts)
