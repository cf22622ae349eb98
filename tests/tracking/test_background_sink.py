"""A sink on its own thread may fail, hang or fall behind: the run goes on, and loss is told."""

import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import pytest

from chomp.errors import ConfigError
from chomp.tracking import (
    BackgroundSink,
    CompositeTracker,
    JsonlTracker,
    MetricValue,
    Tracker,
    read_metrics,
)

REMEDY = "chomp metrics replay RUN --to nowhere"


class Notes:
    """A sink that keeps its calls, and the thread they came on."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.threads: set[int] = set()

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append((step, dict(metrics)))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        self.calls.append(dict(metrics))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        self.calls.append((path, name, kind))

    def finish(self) -> None:
        self.calls.append("finish")


class FullDisk(Notes):
    """A sink that writes to a device on which there is never room."""

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"a row")


class Hung(Notes):
    """A sink that never comes back from a row, unless it is abandoned."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        self.entered.set()
        self.released.wait()

    def abandon(self) -> None:
        self.released.set()


def background(sink: Tracker, **limits: float) -> BackgroundSink:
    return BackgroundSink(lambda: sink, title="Nowhere", remedy=REMEDY, **limits)  # type: ignore[arg-type]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [item.getMessage() for item in caplog.records if item.levelno == logging.ERROR]


def test_calls_arrive_in_order_on_another_thread_as_plain_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes = Notes()
    sink = background(notes)
    for step in range(100):
        sink.log({"train/loss": np.float32(step)}, step=step)
    sink.log_summary({"k": np.int64(3)})
    sink.log_artifact("c.yaml", name="config", kind="config")
    sink.finish()
    sink.finish()
    rows = [(step, {"train/loss": float(step)}) for step in range(100)]
    assert notes.calls == [*rows, {"k": 3}, ("c.yaml", "config", "config"), "finish"]
    assert type(notes.calls[0][1]["train/loss"]) is float  # type: ignore[index]
    assert threading.get_ident() not in notes.threads
    assert errors(caplog) == []


def test_a_row_is_taken_as_it_was_when_it_was_logged() -> None:
    notes, row = Hung(), {"x": 1.0}
    sink = background(notes)
    sink.log(row, step=0)
    later = {"x": 2.0}
    sink.log_summary(later)
    later["x"] = 3.0
    notes.released.set()
    sink.finish()
    assert notes.calls == [{"x": 2.0}, "finish"]


def test_a_full_disk_is_told_once_and_every_row_it_cost_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    tracker = CompositeTracker(
        JsonlTracker(tmp_path / "metrics.jsonl", attempt=1), [background(disk)]
    )
    for step in range(5):
        tracker.log({"train/loss": 1.0}, step=step)
    tracker.log_summary({"k": 1})
    tracker.finish()
    told = errors(caplog)
    assert len(told) == 2
    assert "No space left on device" in caplog.text  # the traceback of the first
    assert told[1].startswith("Nowhere lost 5 rows of this run; the record has them all.")
    assert told[1].endswith(REMEDY)
    assert disk.calls == [{"k": 1}, "finish"]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 6


def test_a_hung_sink_is_left_behind_with_what_it_did_not_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hung = Hung()
    sink = background(hung, finish_timeout_s=0.05)
    tracker = CompositeTracker(JsonlTracker(tmp_path / "metrics.jsonl", attempt=1), [sink])
    for step in range(20):
        tracker.log({"train/loss": 1.0}, step=step)
    assert hung.entered.wait(30)
    tracker.finish()
    assert sink.lost_calls == 20
    assert "did not finish within 0 s and is left behind" in caplog.text
    assert REMEDY in caplog.text
    assert hung.released.is_set()  # it was made to let go
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 20


def test_a_full_queue_drops_rows_and_says_so_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hung = Hung()
    sink = background(hung, max_waiting_calls=3, finish_timeout_s=0.05)
    sink.log({}, step=0)
    assert hung.entered.wait(30)
    for step in range(1, 11):
        sink.log({}, step=step)
    assert sink.lost_calls == 7
    assert [text for text in errors(caplog) if "does not keep up" in text] == [
        "Nowhere does not keep up: 3 rows wait and 1 are lost so far. The run goes on, and the "
        "record keeps every row"
    ]
    sink.finish()
    assert sink.lost_calls == 11


@pytest.mark.parametrize("failure", [ConnectionError("no route"), SystemExit(3)])
def test_a_sink_that_cannot_be_opened_costs_its_rows_only(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def closed() -> Tracker:
        raise failure

    sink = BackgroundSink(closed, title="Nowhere", remedy=REMEDY)
    for step in range(4):
        sink.log({}, step=step)
    sink.finish()
    assert sink.lost_calls == 4
    assert len(errors(caplog)) == 2


def test_a_sink_that_fails_at_its_end_is_told_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Torn(Notes):
        def finish(self) -> None:
            raise TimeoutError("upload")

    sink = background(Torn())
    sink.log({}, step=0)
    sink.finish()
    (told,) = errors(caplog)
    assert REMEDY in told


def test_a_wrong_value_is_the_callers_fault_and_raised_there() -> None:
    sink = background(Notes())
    with pytest.raises(ConfigError) as caught:
        sink.log({"x": np.ones(3)}, step=0)  # type: ignore[dict-item]
    assert "'x'" in caught.value.given
    sink.finish()


HANGS = """
import threading
from chomp.tracking import BackgroundSink

def never():
    threading.Event().wait()

sink = BackgroundSink(never, title="Nowhere", remedy="nothing", finish_timeout_s=0.1)
sink.log({"x": 1}, step=0)
FINISH
print("the run ended")
"""


@pytest.mark.parametrize("ending", ["sink.finish()", "pass"])
def test_a_process_ends_though_its_sink_hangs(ending: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS.replace("FINISH", ending)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "the run ended\n"), done.stderr
