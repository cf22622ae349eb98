"""TensorBoard files hold the rows of every attempt, and a replay writes the same again."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from chomp.tracking import JsonlTracker, TensorBoardSink, replay
from chomp.tracking.record import Histogram, histograms_of


def events(folder: Path) -> list[Any]:
    """The events of the only file in a folder, less the one that begins every file."""
    (path,) = folder.iterdir()
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        found.append(Event.FromString(content[at + 12 : at + 12 + length]))
        at += 16 + length
    return found[1:]


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
    sink = TensorBoardSink(tmp_path, attempt=2)
    for step, mode in enumerate(["concat", "concat", "packed"]):
        sink.log(
            {"train/loss": 0.5 * step, "packing_mode": mode, "is on": True, "x": None}, step=step
        )
    sink.log({"train/loss": float("inf")}, step=3)
    sink.log_summary({"throughput/device_kind": "cpu", "k": 3})
    sink.finish()
    sink.finish()
    folder = tmp_path / "attempt-2"
    assert scalars(folder) == [
        *((step, {"train/loss": 0.5 * step, "is_on": 1.0}) for step in range(3)),
        (3, {"train/loss": float("inf")}),
    ]
    modes = [entry for entry in texts(folder) if entry[1].startswith("packing_mode")]
    assert [(step, text) for step, _, text in modes] == [(0, "concat"), (2, "packed")]
    assert "| throughput/device_kind | cpu |" in texts(folder)[-1][2]


def test_a_replay_writes_what_the_run_wrote_attempt_by_attempt(tmp_path: Path) -> None:
    for attempt, steps in ((1, range(5)), (2, range(3, 8))):  # the second repeats steps 3 and 4
        trackers = [
            JsonlTracker(tmp_path / "metrics.jsonl", attempt=attempt),
            TensorBoardSink(tmp_path / "live", attempt=attempt),
        ]
        for tracker in trackers:
            for step in steps:
                tracker.log({"train/loss": attempt + step / 8, "packing_mode": "x"}, step=step)
            tracker.log_summary({"k": attempt})
            tracker.finish()
    replay(tmp_path / "metrics.jsonl", TensorBoardSink(tmp_path / "again"))
    for attempt in ("attempt-1", "attempt-2"):
        live, again = tmp_path / "live" / attempt, tmp_path / "again" / attempt
        assert scalars(live) == scalars(again)
        assert len(scalars(live)) == 5
    first = events(tmp_path / "again" / "attempt-1")[0]
    line = (tmp_path / "metrics.jsonl").read_text().splitlines()[0]
    assert first.wall_time == json.loads(line)["time"]


def test_a_watched_histogram_is_one(tmp_path: Path) -> None:
    key = "grad/hist/blocks.0"
    row = {key: "[1,0,3]", f"{key}/min": -1.0, f"{key}/max": 2.0, f"{key}/mean": 1.0}
    sink = TensorBoardSink(tmp_path)
    sink.log(row, step=9)
    sink.finish()
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
