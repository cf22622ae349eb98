"""The record: what is written is read back, and nothing that ends a process can spoil it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.errors import ConfigError, StorageError
from chomp.tracking import (
    JsonlTracker,
    last_attempt,
    latest_rows,
    read_metrics,
    summary_of,
)

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def strict_rows(path: Path) -> list[dict[str, Any]]:
    """The file's rows by a JSON reader that knows no NaN."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_a_row_is_one_flat_line_with_the_keys_of_the_line_first(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=2)
    tracker.log({"train/loss": np.float32(0.5), "packing_mode": "bin", "lr": None}, step=0)
    tracker.finish()
    (row,) = strict_rows(path)
    assert list(row) == [
        "step", "global_step", "attempt", "time", "train/loss", "packing_mode", "lr"
    ]  # fmt: skip
    assert (row["step"], row["global_step"], row["attempt"]) == (0, 0, 2)
    assert row["time"] > 1.6e9
    assert (row["train/loss"], row["packing_mode"], row["lr"]) == (0.5, "bin", None)


def test_a_non_finite_value_is_null_and_its_companion_says_which(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({"a": math.nan, "b": math.inf, "c": np.float32(-np.inf), "d": 1.0}, step=0)
    (row,) = strict_rows(path)
    assert (row["a"], row["b"], row["c"], row["d"]) == (None, None, None, 1.0)
    companions = {key: row[key] for key in row if key.endswith("/nonfinite")}
    assert companions == {"a/nonfinite": "nan", "b/nonfinite": "inf", "c/nonfinite": "-inf"}


def test_a_dataset_named_nonfinite_may_be_logged_unless_it_would_hide_a_companion(
    path: Path,
) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({"mixture/weight/nonfinite": 0.5}, step=0)
    with pytest.raises(ConfigError) as caught:
        tracker.log({"x": math.nan, "x/nonfinite": 1}, step=1)
    assert "'x/nonfinite'" in caught.value.given
    assert len(strict_rows(path)) == 1


plain_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
metric_names = st.text(min_size=1).filter(
    lambda name: (
        name not in ("step", "global_step", "attempt", "time", "kind")
        and not name.endswith("/nonfinite")
    )
)


@settings(deadline=None)
@given(rows=st.lists(st.dictionaries(metric_names, plain_values), max_size=5))
def test_any_rows_are_read_back_as_they_were_logged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    tracker = JsonlTracker(path, attempt=1)
    for step, row in enumerate(rows):
        tracker.log(row, step=step)
    tracker.finish()
    read = read_metrics(path)
    assert [row["step"] for row in read] == list(range(len(rows)))
    for logged, row in zip(rows, read, strict=True):
        for key in ("step", "global_step", "attempt", "time"):
            del row[key]
        restored = {
            key: float(row[f"{key}/nonfinite"]) if f"{key}/nonfinite" in row else value
            for key, value in row.items()
            if key in logged
        }
        assert repr(restored) == repr(logged)  # repr: NaN is not equal to itself
        assert len(row) == len(logged) + sum(f"{key}/nonfinite" in row for key in logged)


@pytest.mark.parametrize("key", ["attempt", "time", "kind", "step", "global_step"])
def test_a_metric_may_not_replace_a_key_of_the_line(path: Path, key: str) -> None:
    tracker = JsonlTracker(path, attempt=1)
    with pytest.raises(ConfigError) as caught:
        tracker.log({key: 7}, step=3)
    assert f"'{key}' = 7" in caught.value.given
    assert f"train/{key}" in caught.value.fix
    assert strict_rows(path) == []


def test_a_metric_may_repeat_the_step_it_belongs_to(path: Path) -> None:
    JsonlTracker(path, attempt=1).log({"global_step": 3.0, "x": 1}, step=3)
    (row,) = strict_rows(path)
    assert row["global_step"] == 3
    assert type(row["global_step"]) is int


def test_summaries_and_artifacts_are_lines_of_their_own_kind(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log_summary({"throughput/device_kind": "cpu", "best": math.nan, "global_step": 9})
    tracker.log({"x": 1}, step=0)
    tracker.log_artifact(Path("config_original.yaml"), name="config", kind="yaml")
    tracker.log_summary({"best": 1.5})
    rows = strict_rows(path)
    assert [row.get("kind") for row in rows] == ["summary", None, "artifact", "summary"]
    artifact = {key: rows[2][key] for key in ("name", "artifact_kind", "path")}
    assert artifact == {"name": "config", "artifact_kind": "yaml", "path": "config_original.yaml"}
    assert all(row["attempt"] == 1 and row["time"] > 0 for row in rows)
    summary = {"throughput/device_kind": "cpu", "best": 1.5, "global_step": 9}
    assert summary_of(rows) == summary
    assert latest_rows(rows) == [rows[1]]


def test_a_row_after_finish_is_still_kept_and_finish_may_be_called_twice(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({}, step=0)
    tracker.finish()
    tracker.finish()
    tracker.log({}, step=1)
    tracker.finish()
    assert [row["step"] for row in strict_rows(path)] == [0, 1]


# Torn lines.


def test_a_line_cut_at_any_byte_is_set_aside_and_the_whole_lines_are_kept(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({"loss": 2.0}, step=0)
    first = path.read_bytes()
    tracker.log({"loss": math.nan}, step=1)
    last = path.read_bytes().removeprefix(first)
    torn = path.with_name("metrics.jsonl.torn")
    for cut in range(1, len(last)):
        path.write_bytes(first + last[:cut])
        torn.unlink(missing_ok=True)
        assert [row["step"] for row in read_metrics(path)] == [0]
        resumed = JsonlTracker(path, attempt=2)
        assert path.read_bytes() == first
        assert torn.read_bytes() == last[:cut] + b"\n"
        resumed.log({}, step=1)
        assert [row["attempt"] for row in strict_rows(path)] == [1, 2]


@pytest.mark.parametrize(
    "tail", [b'{"step": 1\n', b"\0" * 9, b"[1, 2]\n", b"NaN\n", b'{"x": NaN}\n', b"\xff\n", b"\n"]
)
def test_a_last_line_that_is_no_strict_object_is_set_aside_too(path: Path, tail: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"step":0}\n' + tail)
    JsonlTracker(path, attempt=2).log({}, step=1)
    assert [row["step"] for row in strict_rows(path)] == [0, 1]
    assert path.with_name("metrics.jsonl.torn").exists()


def test_fragments_of_several_attempts_are_all_kept_aside(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    JsonlTracker(path, attempt=1)
    for attempt in (2, 3):
        with path.open("ab") as file:
            file.write(b'{"torn by": %d' % attempt)
        JsonlTracker(path, attempt=attempt).log({}, step=0)
    assert path.with_name("metrics.jsonl.torn").read_bytes().splitlines() == [
        b'{"torn by": 2',
        b'{"torn by": 3',
    ]
    assert caplog.text.count("ended in a torn line") == 2


def test_a_torn_line_longer_than_a_block_is_found_whole(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({"x": 1}, step=0)
    whole = path.read_bytes()
    path.write_bytes(whole + b"{" + b"x" * 200_000)
    JsonlTracker(path, attempt=2)
    assert path.read_bytes() == whole


def test_a_whole_file_is_opened_without_a_change(path: Path) -> None:
    JsonlTracker(path, attempt=1).log({"x": 1}, step=0)
    before = path.read_bytes()
    JsonlTracker(path, attempt=2)
    assert path.read_bytes() == before
    assert not path.with_name("metrics.jsonl.torn").exists()


WRITE_FOREVER = """
import itertools, sys
from chomp.tracking import JsonlTracker, last_attempt
path = sys.argv[1]
tracker = JsonlTracker(path, attempt=last_attempt(path) + 1)
for step in itertools.count():
    tracker.log({"train/loss": 1.0, "text": "x" * (step % 4000)}, step=step)
    if step == 200:
        print("writing", flush=True)
"""


def test_a_run_killed_while_writing_keeps_every_whole_line(path: Path) -> None:
    for attempt in (1, 2, 3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(path)],
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            writer.kill()
        whole_lines = path.read_bytes().count(b"\n")
        assert last_attempt(path) == attempt
        JsonlTracker(path, attempt=attempt).finish()
        rows = strict_rows(path)
        assert len(rows) == len(read_metrics(path)) == whole_lines
        steps = [row["step"] for row in rows if row["attempt"] == attempt]
        assert steps == list(range(len(steps)))
        assert len(steps) > 200


# Failures of the disk.

FILL_THE_DISK = """
import resource, sys
from chomp.errors import StorageError
from chomp.tracking import JsonlTracker
tracker = JsonlTracker(sys.argv[1], attempt=1)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
failed_at = None
for step in range(100):
    try:
        tracker.log({"train/loss": 1.0}, step=step)
    except StorageError as error:
        failed_at = step
        print(error)
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
tracker.log({"train/loss": 2.0}, step=failed_at)
tracker.finish()
print(failed_at)
"""


def test_a_full_disk_is_an_error_that_says_what_to_do_and_spoils_no_line(path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FILL_THE_DISK, str(path)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    told, failed_at = result.stdout.splitlines()
    assert told.startswith(f"cannot write the metrics file {path}: File too large. Allowed: ")
    assert ". Fix: free space" in told
    rows = strict_rows(path)
    assert [row["step"] for row in rows] == list(range(int(failed_at) + 1))
    assert rows[-1]["train/loss"] == 2.0
    assert path.with_name("metrics.jsonl.torn").stat().st_size > 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_no_space_left_is_named_as_such(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    os.dup2(os.open("/dev/full", os.O_WRONLY), tracker._descriptor)
    with pytest.raises(StorageError) as caught:
        tracker.log({"x": 1}, step=0)
    assert "No space left on device" in caught.value.given


def test_a_file_that_cannot_be_opened_fails_before_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError) as caught:
        JsonlTracker(tmp_path / "taken" / "metrics.jsonl", attempt=1)
    assert "metrics.jsonl" in caught.value.given
    with pytest.raises(StorageError) as caught:
        JsonlTracker(tmp_path, attempt=1)
    assert "Is a directory" in caught.value.given


# Reading.


def test_a_torn_last_line_is_left_out_and_reported(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"step":0}\n{"step":1}\n{"st')
    assert read_metrics(path) == [{"step": 0}, {"step": 1}]
    assert "line 3, the last, is torn" in caplog.text


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"step":',
        b"\0" * 40,
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"step":1,"x":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"step":"1","attempt":9}',
        b'{"step":null,"attempt":9}',
        b'{"step":1,"attempt":1e400}',
        b'{"step":1,"attempt":%d}' % 10**20,
    ],
)
def test_a_damaged_line_is_left_out_and_told_once(
    path: Path, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    path.parent.mkdir()
    good = [{"step": 0, "attempt": 4}, {"step": 2, "attempt": 4}]
    path.write_bytes(b'{"step":0,"attempt":4}\n' + damaged + b'\n{"step":2,"attempt":4}\n')
    assert last_attempt(path) == 4  # a damaged record does not keep a run from resuming
    assert read_metrics(path) == good
    [told] = caplog.messages
    assert f"{path}: 1 damaged line left out" in told
    assert "line 2." in told


def test_many_damaged_lines_are_counted_and_the_first_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"step":0}\n' + b"x\n" * 70 + b'{"step":71}\n')
    assert [row["step"] for row in read_metrics(path)] == [0, 71]
    assert "70 damaged lines left out, and all others used: line 2, 3, 4, 5, 6, …" in caplog.text


def test_a_missing_file_has_no_attempt_and_cannot_be_read(path: Path) -> None:
    assert last_attempt(path) == 0
    with pytest.raises(StorageError) as caught:
        read_metrics(path)
    assert "No such file" in caught.value.given


def test_an_empty_file_has_no_attempt_and_no_rows(path: Path) -> None:
    JsonlTracker(path, attempt=1).finish()
    assert last_attempt(path) == 0
    assert read_metrics(path) == []


def test_the_latest_rows_are_those_of_the_newest_attempt_that_logged_each_step(path: Path) -> None:
    first = JsonlTracker(path, attempt=1)
    for step in range(4):
        first.log({"loss": 1.0}, step=step)
    second = JsonlTracker(path, attempt=last_attempt(path) + 1)
    for step in (1, 2):
        second.log({"loss": 2.0}, step=step)
    rows = latest_rows(read_metrics(path))
    assert [(row["step"], row["attempt"]) for row in rows] == [(0, 1), (1, 2), (2, 2), (3, 1)]


def test_rows_of_one_step_are_put_together_with_newer_attempts_on_top() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 0, "attempt": 1, "loss": None, "loss/nonfinite": "nan", "old": 1},
        {"step": 0, "attempt": 2, "loss": None, "loss/nonfinite": "inf"},
        {"step": 0, "attempt": 2, "eval_loss": 3.0, "loss": 2.0},
        {"step": 0, "attempt": 1, "late": 1},
    ]
    assert latest_rows(rows) == [{"step": 0, "attempt": 2, "loss": 2.0, "old": 1, "eval_loss": 3.0}]


def test_an_attempt_that_only_evaluates_again_keeps_what_was_trained() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 9, "attempt": 1, "train/loss": 4.0, "tokens_seen": 100},
        {"step": 9, "attempt": 2, "eval/loss": 4.5},
    ]
    (row,) = latest_rows(rows)
    assert (row["train/loss"], row["eval/loss"], row["attempt"]) == (4.0, 4.5, 2)
