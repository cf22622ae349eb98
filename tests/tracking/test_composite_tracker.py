"""The record comes first and may stop a run; a sink may fail as it likes."""

import logging
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import pytest

from chomp.errors import StorageError
from chomp.tracking import CompositeTracker, JsonlTracker, MetricValue, read_metrics


class Notebook:
    """A tracker that writes its calls into a list shared with others."""

    def __init__(self, name: str, calls: list[tuple[str, object]]) -> None:
        self.name = name
        self.calls = calls

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        self.calls.append((self.name, (step, dict(metrics))))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        self.calls.append((self.name, dict(metrics)))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        self.calls.append((self.name, (path, name, kind)))

    def finish(self) -> None:
        self.calls.append((self.name, "finish"))


class Outage(Notebook):
    """A sink whose service is down for the steps it is told."""

    def __init__(self, *, steps: set[int], at_finish: bool = False) -> None:
        super().__init__("outage", [])
        self.steps = steps
        self.at_finish = at_finish

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        if step in self.steps:
            raise ConnectionError("service is down")
        super().log(metrics, step=step)

    def finish(self) -> None:
        super().finish()
        if self.at_finish:
            raise TimeoutError("upload")


class Vandal(Notebook):
    """A sink that changes the row it is handed."""

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        assert isinstance(metrics, dict)
        metrics.clear()


class FullDisk(Notebook):
    """A record that cannot be written."""

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        raise StorageError("disk full")

    def finish(self) -> None:
        raise StorageError("disk full")


def test_every_call_reaches_the_record_before_any_sink() -> None:
    calls: list[tuple[str, object]] = []
    tracker = CompositeTracker(Notebook("record", calls), [Notebook("sink", calls)])
    tracker.log({"train/loss": np.float32(0.5)}, step=3)
    tracker.log_summary({"x": 1})
    tracker.log_artifact("c.yaml", name="config", kind="config")
    tracker.finish()
    assert [name for name, _ in calls] == ["record", "sink"] * 4
    assert calls[0][1] == calls[1][1] == (3, {"train/loss": 0.5})
    assert type(calls[1][1][1]["train/loss"]) is float


def test_a_failing_sink_is_reported_once_and_counted_and_the_record_has_every_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    outage = Outage(steps={1, 2, 3}, at_finish=True)
    healthy = Notebook("healthy", [])
    tracker = CompositeTracker(JsonlTracker(path, attempt=1), [outage, healthy])
    for step in range(6):
        tracker.log({"train/loss": float(step)}, step=step)
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.ERROR
    assert "service is down" in caplog.text  # the traceback
    tracker.finish()
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "Outage lost 3 rows; the record has them"
    ]
    assert [row["step"] for row in read_metrics(path)] == list(range(6))
    assert len(healthy.calls) == 7
    assert [call[1][0] for call in outage.calls[:-1]] == [0, 4, 5]  # type: ignore[index]


def test_losses_are_reported_once_when_finish_is_called_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker = CompositeTracker(Notebook("record", []), [Outage(steps={0})])
    tracker.log({}, step=0)
    tracker.finish()
    tracker.finish()
    assert caplog.text.count("lost 1 rows") == 1


def test_a_sink_that_changes_its_row_changes_nobody_elses() -> None:
    healthy = Notebook("healthy", [])
    tracker = CompositeTracker(Notebook("record", []), [Vandal("vandal", []), healthy])
    tracker.log({"x": 1}, step=0)
    assert healthy.calls == [("healthy", (0, {"x": 1}))]


def test_a_failing_record_stops_the_run_before_the_sinks_see_the_row() -> None:
    sink = Notebook("sink", [])
    tracker = CompositeTracker(FullDisk("record", []), [sink])
    with pytest.raises(StorageError):
        tracker.log({"x": 1}, step=0)
    assert sink.calls == []
    with pytest.raises(StorageError):
        tracker.finish()
    assert sink.calls == [("sink", "finish")]  # so that a terminal is left clean


def test_an_interrupt_inside_a_sink_is_not_taken_for_its_failure() -> None:
    class Interrupted(Notebook):
        def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
            raise KeyboardInterrupt

    tracker = CompositeTracker(Notebook("record", []), [Interrupted("sink", [])])
    with pytest.raises(KeyboardInterrupt):
        tracker.log({}, step=0)
