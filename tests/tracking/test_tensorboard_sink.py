"""TensorBoard files hold every row of a record once, by attempt, however often it is sent."""

import struct
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event

from chomp.tracking import TensorBoardSink
from chomp.tracking.record import Histogram, histograms_of


def events(folder: Path) -> list[Any]:
    """The whole events of an attempt, less the one that begins every file."""
    found = []
    # A later file has a number at the end of its name.
    for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content, at, of_file = path.read_bytes(), 0, []
        while at + 8 <= len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            if at + 16 + length <= len(content):
                of_file.append(Event.FromString(content[at + 12 : at + 12 + length]))
            at += 16 + length
        found += of_file[1:]
    return found


def row(step: int, *, attempt: int = 1, **values: Any) -> dict[str, Any]:
    """A line of a record."""
    return {"step": step, "global_step": step, "attempt": attempt, "time": step + 0.25, **values}


def sent(folder: Path, rows: list[dict[str, Any] | None]) -> None:
    """Hand a record to the sink, as a process does that is started on it."""
    sink = TensorBoardSink(folder)
    for each in rows:
        sink.take(each)
    sink.finish()


def scalars(folder: Path) -> list[tuple[int, dict[str, float]]]:
    rows = []
    for event in events(folder):
        values = {v.tag: v.simple_value for v in event.summary.value if v.HasField("simple_value")}
        if values:
            rows.append((event.step, values))
    return rows


def texts(folder: Path) -> list[tuple[int, str, str]]:
    return [
        (event.step, value.tag, value.tensor.string_val[0].decode())
        for event in events(folder)
        for value in event.summary.value
        if value.HasField("tensor")
    ]


def test_numbers_are_scalars_and_a_text_is_written_when_it_changes(tmp_path: Path) -> None:
    rows: list[dict[str, Any] | None] = [
        row(step, attempt=2, **{"train/loss": 0.5 * step, "packing_mode": mode, "is on": True})
        | {"x": None}
        for step, mode in enumerate(["concat", "concat", "packed"])
    ]
    bad = row(3, attempt=2) | {"train/loss": None, "train/loss/nonfinite": "inf"}
    summary = {"kind": "summary", "attempt": 2, "time": 9.0, "throughput/device_kind": "cpu"}
    artifact = {"kind": "artifact", "attempt": 2, "time": 9.0, "name": "c", "path": "c.yaml"}
    sent(tmp_path, [*rows, bad, None, summary, artifact])
    folder = tmp_path / "attempt-2"
    assert scalars(folder) == [
        *((step, {"train/loss": 0.5 * step, "is_on": 1.0}) for step in range(3)),
        (3, {"train/loss": float("inf")}),
    ]
    modes = [entry for entry in texts(folder) if entry[1].startswith("packing_mode")]
    assert [(step, text) for step, _, text in modes] == [(0, "concat"), (2, "packed")]
    assert "| throughput/device_kind | cpu |" in texts(folder)[-1][2]
    # The time of the row, and not that of its sending.
    assert [event.wall_time for event in events(folder)] == [0.25, 1.25, 2.25, 3.25, 9.0]


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 2000), max_size=4), counts=st.lists(st.integers(0, 12)))
def test_every_row_is_there_once_though_the_files_were_cut_and_the_record_grew(
    cuts: list[int], counts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("board")
    # The second attempt repeats steps 3 and 4.
    steps = [(1, step) for step in range(5)] + [(2, step) for step in range(3, 8)]
    rows: list[dict[str, Any] | None] = [
        row(step, attempt=attempt, **{"train/loss": attempt + step / 8}) for attempt, step in steps
    ]
    for cut, count in zip_longest(cuts, counts, fillvalue=10):
        sent(folder, rows[:count])
        files = sorted(folder.glob("attempt-*/*"), key=lambda path: path.stat().st_mtime_ns)
        if files:  # as a kill leaves the newest
            files[-1].write_bytes(files[-1].read_bytes()[: max(cut, 64)])
    sent(folder, rows)
    found = [
        (int(attempt), step)
        for attempt in "12"
        for step, _ in scalars(folder / f"attempt-{attempt}")
    ]
    assert sorted(found) == sorted(steps)


def test_a_watched_histogram_is_one(tmp_path: Path) -> None:
    key = "grad/hist/blocks.0"
    values = {key: "[1,0,3]", f"{key}/min": -1.0, f"{key}/max": 2.0, f"{key}/mean": 1.0}
    sent(tmp_path, [row(9, **values)])
    (event,) = events(tmp_path / "attempt-1")
    (histogram,) = [v.histo for v in event.summary.value if v.HasField("histo")]
    assert list(histogram.bucket) == [1, 0, 3]
    assert list(histogram.bucket_limit) == [0.0, 1.0, 2.0]
    assert (histogram.min, histogram.max, histogram.num) == (-1.0, 2.0, 4.0)
    assert not texts(tmp_path / "attempt-1")


@pytest.mark.parametrize("text", ["[]", "[1,", "{}", "[1,true]", '"a"', "words"])
def test_what_only_looks_like_a_histogram_is_a_text(text: str) -> None:
    key = "grad/hist/x"
    assert histograms_of({key: text, f"{key}/min": 0.0, f"{key}/max": 1.0}) == {}


def test_the_edges_of_a_histogram_reach_from_least_to_most() -> None:
    row = {"grad/hist/x": "[1,2]", "grad/hist/x/min": 0, "grad/hist/x/max": 1.0}
    assert histograms_of(row) == {"grad/hist/x": Histogram([1.0, 2.0], 0.0, 1.0)}
    assert histograms_of(row)["grad/hist/x"].edges == [0.0, 0.5, 1.0]
    assert histograms_of({"grad/hist/x": "[1,2]", "grad/hist/x/min": 0}) == {}
