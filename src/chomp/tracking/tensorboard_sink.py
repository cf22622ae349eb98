"""TensorBoard event files as a tracker: one folder for each attempt, so that an overlap shows.

Events are written on the calling thread. tensorboardX's own `SummaryWriter` hands them
to a thread of its own, where a full disk ends the thread, and the next rows wait for it forever.
"""

import re
import time
from collections.abc import Mapping
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from chomp.tracking.metrics import GLOBAL_STEP
from chomp.tracking.record import Histogram, histograms_of
from chomp.tracking.tracker import MetricValue, PlainValue, flat_metrics

# Of a row's own: TensorBoard has a place for the step and the time, and folders for attempts.
_NOT_SHOWN = frozenset({"step", GLOBAL_STEP, "attempt", "time"})
# TensorBoard looks every few seconds; each flush waits for the disk.
_FLUSH_S = 2.0


class TensorBoardSink:
    """Event files under `folder`, in `attempt-<n>` of the attempt, or of the row that says one."""

    def __init__(self, folder: str | PathLike[str], *, attempt: int = 1) -> None:
        import tensorboardX  # noqa: F401, PLC0415  # a missing package shows at once

        self._folder = Path(folder)
        self._attempt = attempt
        self._writers: dict[int, Any] = {}
        self._texts: dict[tuple[int, str], str] = {}
        self._flushed_s = -_FLUSH_S

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Write numbers as scalars, histograms as such, and a text when it is a new one."""
        from tensorboardX import summary  # noqa: PLC0415
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        row = flat_metrics(metrics)
        attempt = _whole(row.get("attempt"), self._attempt)
        histograms = histograms_of(row)
        values = [_histogram_value(_tag(name), found) for name, found in histograms.items()]
        for name, value in row.items():
            if name in _NOT_SHOWN or name in histograms or value is None:
                continue
            if not isinstance(value, str):
                # Not `summary.scalar`, which takes twice the time of all the rest.
                values.append(Summary.Value(tag=_tag(name), simple_value=float(value)))
            elif self._texts.get((attempt, name)) != value:
                self._texts[attempt, name] = value
                values += summary.text(_tag(name), value).value
        self._write(attempt, values, step=step, time_s=row.get("time"))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Write the values as a table of text."""
        from tensorboardX import summary  # noqa: PLC0415

        row = flat_metrics(metrics)
        lines = [f"| {name} | {value} |" for name, value in row.items() if name not in _NOT_SHOWN]
        table = "\n".join(["| name | value |", "|---|---|", *lines])
        attempt = _whole(row.get("attempt"), self._attempt)
        self._write(attempt, summary.text("summary", table).value, step=0, time_s=row.get("time"))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Nothing is written: the file lies in the same run folder."""

    def finish(self) -> None:
        """Close the files. A row that still comes later makes new ones."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def _write(self, attempt: int, values: list[Any], *, step: int, time_s: PlainValue) -> None:
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        seconds = float(time_s) if isinstance(time_s, int | float) else time.time()
        writer = self._writer(attempt)
        writer.write_event(Event(step=step, wall_time=seconds, summary=Summary(value=values)))
        now = time.monotonic()
        if now - self._flushed_s >= _FLUSH_S:
            self._flushed_s = now
            writer.flush()

    def _writer(self, attempt: int) -> Any:
        from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415

        if attempt not in self._writers:
            folder = self._folder / f"attempt-{attempt}"
            folder.mkdir(parents=True, exist_ok=True)
            self._writers[attempt] = EventsWriter(str(folder / "events"))
        return self._writers[attempt]


def _histogram_value(tag: str, found: Histogram) -> Any:
    from tensorboardX.summary import histogram_raw  # noqa: PLC0415

    middles = [(low + high) / 2 for low, high in pairwise(found.edges)]
    weighted = list(zip(found.counts, middles, strict=True))
    return histogram_raw(
        tag,
        min=found.low,
        max=found.high,
        num=sum(found.counts),
        sum=sum(count * middle for count, middle in weighted),
        sum_squares=sum(count * middle**2 for count, middle in weighted),
        bucket_limits=found.edges[1:],
        bucket_counts=found.counts,
    ).value[0]


def _tag(name: str) -> str:
    """The name with what tensorboardX would complain about replaced."""
    return re.sub(r"[^-/\w.]", "_", name).lstrip("/")


def _whole(value: PlainValue, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
