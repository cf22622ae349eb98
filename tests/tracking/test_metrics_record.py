"""The record: what is written is read back, and nothing that ends a process can spoil it."""

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.errors import ConfigError, StorageError
from chomp.tracking import (
    CompositeTracker,
    JsonlTracker,
    NoopTracker,
    flat_metrics,
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


# ---- Values --------------------------------------------------------------------------------------


class DeviceScalar:
    """Stands in for an array of another library: a shape and `.item()`, nothing else."""

    shape = ()

    def item(self) -> float:
        return 1.5


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (1, 1),
        (True, True),
        (None, None),
        ("bin", "bin"),
        (type("Text", (str,), {"__str__": lambda _: "another"})("bin"), "bin"),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(3), 3),
        (np.array(2.5, np.float16), 2.5),
        (np.array(np.nan), math.nan),
        (np.str_("H200"), "H200"),
        (DeviceScalar(), 1.5),
    ],
)
def test_a_value_becomes_exactly_a_plain_one(value: Any, plain: object) -> None:
    result = flat_metrics({"x": value})["x"]
    assert repr(result) == repr(plain)
    assert type(result) is type(plain)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"loss": 1.0}, "dict"),
        ([1.0], "list"),
        (np.ones(3), "ndarray of shape (3,)"),
        (np.ones(1), "ndarray of shape (1,)"),
        (1 + 2j, "complex"),
        (np.complex64(1), "complex64"),
        (b"bytes", "bytes"),
    ],
)
def test_anything_but_one_plain_value_is_refused_by_name(value: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flat_metrics({"eval/web": value})
    assert f"'eval/web' is a {what}" in caught.value.given
    assert "eval/web/" in caught.value.fix


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_must_be_a_non_empty_string(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        flat_metrics({name: 1.0})
    assert repr(name) in caught.value.given


# ---- Lines ---------------------------------------------------------------------------------------


def test_a_row_is_one_flat_line_with_the_keys_of_the_line_first(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=2)
    tracker.log({"train/loss": np.float32(0.5), "packing_mode": "bin", "lr": None}, step=0)
    tracker.log({"global_step": 1.0, "x": 1}, step=1)  # it may say what the line says
    first, second = strict_rows(path)
    own = ["step", "global_step", "attempt", "time"]
    assert list(first) == [*own, "train/loss", "packing_mode", "lr"]
    assert (first["step"], first["global_step"], first["attempt"]) == (0, 0, 2)
    assert first["time"] > 1.6e9
    assert (first["train/loss"], first["packing_mode"], first["lr"]) == (0.5, "bin", None)
    assert type(second["global_step"]) is int


def test_a_non_finite_value_is_null_and_its_companion_says_which(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({"a": math.nan, "b": math.inf, "c": np.float32(-np.inf), "d": 1.0}, step=0)
    tracker.log({"mixture/weight/nonfinite": 0.5}, step=1)
    with pytest.raises(ConfigError) as caught:
        tracker.log({"x": math.nan, "x/nonfinite": 1}, step=2)
    assert "'x/nonfinite'" in caught.value.given
    row, _ = strict_rows(path)
    assert (row["a"], row["b"], row["c"], row["d"]) == (None, None, None, 1.0)
    companions = {key: row[key] for key in row if key.endswith("/nonfinite")}
    assert companions == {"a/nonfinite": "nan", "b/nonfinite": "inf", "c/nonfinite": "-inf"}


plain_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
metric_names = st.text(min_size=1).filter(
    lambda name: (
        name not in ("step", "global_step", "attempt", "time", "kind")
        and not name.endswith("/nonfinite")
    )
)


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.dictionaries(metric_names, plain_values), max_size=5))
def test_any_rows_are_read_back_as_they_were_logged(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    tracker = JsonlTracker(path, attempt=1)
    for step, row in enumerate(rows):
        tracker.log(row, step=step)
    read = read_metrics(path)
    assert [row["step"] for row in read] == list(range(len(rows)))
    for logged, row in zip(rows, read, strict=True):
        for key in ("step", "global_step", "attempt", "time"):
            del row[key]
        restored = {
            key: float(row[f"{key}/nonfinite"]) if f"{key}/nonfinite" in row else row[key]
            for key in logged
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


# ---- Torn lines ----------------------------------------------------------------------------------


def test_a_line_cut_at_any_byte_is_set_aside_and_the_whole_lines_are_kept(path: Path) -> None:
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({"loss": 2.0}, step=0)
    first = path.read_bytes()
    tracker.log({"loss": math.nan}, step=1)
    last = path.read_bytes().removeprefix(first)
    torn = path.with_name("metrics.jsonl.torn")
    JsonlTracker(path, attempt=2)
    assert (path.read_bytes(), torn.exists()) == (first + last, False)  # all of it is whole
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
    "tail",
    [
        *(b'{"step": 1\n', b"\0" * 9, b"[1, 2]\n", b"NaN\n", b'{"x": NaN}\n', b"\xff\n", b"\n"),
        b"{" + b"x" * 200_000,  # longer than a block
    ],
    ids=range(8),
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
    torn = path.with_name("metrics.jsonl.torn").read_bytes()
    assert torn.splitlines() == [b'{"torn by": 2', b'{"torn by": 3']
    assert caplog.text.count("ended in a torn line") == 2


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


# ---- A record that its run may still be writing --------------------------------------------------


def test_many_writers_at_once_tear_no_line(path: Path) -> None:
    run = JsonlTracker(path, attempt=1)
    run.log({"train/loss": 1.0}, step=0)
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
    run.log({"train/loss": 0.5}, step=1)
    rows = read_metrics(path)
    assert [row["train/loss"] for row in (rows[0], rows[-1])] == [1.0, 0.5]
    expected = {(writer, step) for writer in range(4) for step in range(20)}
    assert {(row["writer"], row["step"]) for row in rows[1:-1]} == expected
    assert len(rows) == 82
    assert not path.with_name("metrics.jsonl.torn").exists()


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_line_without_its_end_is_waited_for_and_then_set_aside(
    is_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0,"attempt":1}\n{"step":1,"att')
    sleep = time.sleep

    def what_the_run_does(seconds: float) -> None:
        if is_killed:
            sleep(seconds)
        else:
            with path.open("a") as file:
                file.write('empt":1}\n')

    monkeypatch.setattr(time, "sleep", what_the_run_does)
    JsonlTracker(path, attempt=1, is_shared=True).log({"eval/loss": 2.0}, step=0)
    assert [row["step"] for row in read_metrics(path)] == ([0, 0] if is_killed else [0, 1, 0])
    torn = path.with_name("metrics.jsonl.torn")
    assert (torn.read_text() if torn.exists() else "") == ('{"step":1,"att\n' if is_killed else "")


# ---- Failures of the disk ------------------------------------------------------------------------

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


def test_a_file_that_cannot_be_opened_fails_before_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for wrong, words in (
        (tmp_path / "taken/metrics.jsonl", "metrics.jsonl"),
        (tmp_path, "Is a di"),
    ):
        with pytest.raises(StorageError) as caught:
            JsonlTracker(wrong, attempt=1)
        assert words in caught.value.given


# ---- Reading -------------------------------------------------------------------------------------


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
    ids=range(9),
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
    JsonlTracker(path, attempt=1).finish()  # an empty one can
    assert (last_attempt(path), read_metrics(path)) == (0, [])


def test_rows_of_one_step_are_put_together_with_newer_attempts_on_top() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 0, "attempt": 1, "loss": None, "loss/nonfinite": "nan", "old": 1},
        {"step": 0, "attempt": 2, "loss": None, "loss/nonfinite": "inf"},
        {"step": 0, "attempt": 2, "eval_loss": 3.0, "loss": 2.0},
        {"step": 0, "attempt": 1, "late": 1},
        {"step": 9, "attempt": 1, "loss": 4.0, "tokens_seen": 100},
        {"step": 9, "attempt": 2, "eval/loss": 4.5},  # an attempt that only evaluates again
        {"step": 3, "attempt": 1, "loss": 5.0},
    ]
    assert latest_rows(rows) == [
        {"step": 0, "attempt": 2, "loss": 2.0, "old": 1, "eval_loss": 3.0},
        {"step": 3, "attempt": 1, "loss": 5.0},
        {"step": 9, "attempt": 2, "loss": 4.0, "tokens_seen": 100, "eval/loss": 4.5},
    ]


# ---- What shows the record -----------------------------------------------------------------------


class Sink(NoopTracker):
    """A tracker that notes its calls, and then does what it is told to."""

    def __init__(
        self, name: str, calls: list[Any], act: Callable[[str, Any], None] = lambda what, row: None
    ) -> None:
        self.name, self.calls, self.act = name, calls, act

    def _note(self, what: str, row: Any) -> None:
        self.act(what, row)
        self.calls.append((self.name, what, row))

    def log(self, metrics: Any, *, step: int) -> None:
        self._note(f"row {step}", metrics)

    def log_summary(self, metrics: Any) -> None:
        self._note("summary", metrics)

    def log_artifact(self, path: Any, *, name: str, kind: str) -> None:
        self._note("artifact", (path, name, kind))

    def finish(self) -> None:
        self._note("finish", None)


def fail(error: BaseException, *calls: str) -> Callable[[str, Any], None]:
    def act(what: str, row: Any) -> None:
        if what in calls:
            raise error

    return act


def test_every_call_reaches_the_record_before_any_sink_as_plain_values_of_its_own() -> None:
    calls: list[Any] = []
    vandal = Sink("vandal", [], lambda what, row: isinstance(row, dict) and row.clear())
    tracker = CompositeTracker(Sink("record", calls), [vandal, Sink("sink", calls)])
    tracker.log({"train/loss": np.float32(0.5)}, step=3)
    tracker.log_summary({"x": 1})
    tracker.log_artifact("c.yaml", name="config", kind="config")
    tracker.finish()
    assert [name for name, *_ in calls] == ["record", "sink"] * 4
    assert [call[1:] for call in calls[::2]] == [call[1:] for call in calls[1::2]]
    assert calls[0][1:] == ("row 3", {"train/loss": 0.5})
    assert type(calls[1][2]["train/loss"]) is float


def test_a_failing_sink_is_reported_once_and_counted_and_the_record_has_every_row(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Any] = []
    down = fail(ConnectionError("service is down"), "row 1", "row 2", "row 3", "finish")
    sinks = [Sink("outage", calls, down), Sink("healthy", calls)]
    tracker = CompositeTracker(JsonlTracker(path, attempt=1), sinks)
    for step in range(6):
        tracker.log({"train/loss": float(step)}, step=step)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "service is down" in caplog.text  # the traceback
    tracker.finish()
    tracker.finish()
    assert caplog.messages[1:] == ["Sink lost 3 rows; the record has them"]
    assert [row["step"] for row in read_metrics(path)] == list(range(6))
    assert [what for name, what, _ in calls if name == "outage"] == ["row 0", "row 4", "row 5"]
    assert sum(name == "healthy" for name, *_ in calls) == 8


def test_a_failing_record_stops_the_run_before_the_sinks_see_the_row() -> None:
    calls: list[Any] = []
    full = fail(StorageError("disk full"), "row 0", "finish")
    tracker = CompositeTracker(Sink("record", [], full), [Sink("sink", calls)])
    for call in (lambda: tracker.log({"x": 1}, step=0), tracker.finish):
        with pytest.raises(StorageError):
            call()
    assert calls == [("sink", "finish", None)]  # so that a terminal is left clean


def test_an_interrupt_inside_a_sink_is_not_taken_for_its_failure() -> None:
    interrupted = Sink("sink", [], fail(KeyboardInterrupt(), "row 0"))
    with pytest.raises(KeyboardInterrupt):
        CompositeTracker(NoopTracker(), [interrupted]).log({}, step=0)
