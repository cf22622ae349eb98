"""A record handed to a sink again is what was logged, attempts and non-finite values included."""

import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.tracking import JsonlTracker, MetricValue, replay

VALUES = st.one_of(st.floats(), st.integers(-(2**53), 2**53), st.booleans(), st.text(), st.none())
NAMES = st.text("abc/_", min_size=1).map(lambda name: f"m/{name}")


class Notes:
    """A sink that keeps its calls."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.summaries: list[dict[str, Any]] = []
        self.artifacts: list[tuple[str, str, str]] = []
        self.is_finished = False

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        self.rows.append((step, dict(metrics)))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        self.summaries.append(dict(metrics))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        self.artifacts.append((str(path), name, kind))

    def finish(self) -> None:
        self.is_finished = True


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


@given(rows=st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=5))
def test_a_replay_gives_every_row_and_summary_as_it_was_logged(
    rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    for attempt in (1, 2):  # the second repeats every step
        tracker = JsonlTracker(path, attempt=attempt)
        for step, row in enumerate(rows):
            tracker.log(row, step=step)
        tracker.log_summary({"m/last": float("-inf")})
        tracker.finish()
    notes = Notes()
    assert replay(path, notes) == 2 * len(rows) + 2
    assert [row["attempt"] for _, row in notes.rows] == [1] * len(rows) + [2] * len(rows)
    assert notes.summaries == [{"m/last": float("-inf")}] * 2
    assert notes.is_finished
    for (step, found), (wanted_step, wanted) in zip(
        notes.rows, [*enumerate(rows), *enumerate(rows)], strict=True
    ):
        assert step == wanted_step
        values = {key: found[key] for key in found if key not in ("attempt", "time", "global_step")}
        assert values.keys() == wanted.keys()
        assert all(same(values[key], wanted[key]) for key in wanted)


def test_artifacts_are_found_in_a_folder_that_was_moved_and_lost_ones_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    tracker = JsonlTracker(before / "metrics.jsonl", attempt=1)
    (before / "samples").mkdir()
    (before / "samples" / "step-3.txt").write_text("a text")
    tracker.log_artifact(before / "samples" / "step-3.txt", name="sample", kind="sample")
    tracker.log_artifact(before / "gone.txt", name="gone", kind="sample")
    tracker.finish()
    before.rename(after)
    notes = Notes()
    replay(after / "metrics.jsonl", notes)
    assert notes.artifacts == [(str(after / "samples" / "step-3.txt"), "sample", "sample")]
    assert "gone.txt is not there any more" in caplog.text


def test_a_sink_that_fails_is_finished_and_its_error_raised(tmp_path: Path) -> None:
    class Outage(Notes):
        def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
            raise ConnectionError("service is down")

    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path, attempt=1)
    tracker.log({"x": 1}, step=0)
    outage = Outage()
    with pytest.raises(ConnectionError):
        replay(path, outage)
    assert outage.is_finished
