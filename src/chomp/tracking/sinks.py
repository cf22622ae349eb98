"""W&B and TensorBoard, each taking the rows of a record in order; used by `chomp.tracking.sidecar`.

Each knows how much of the record it has already, also after it was killed: TensorBoard by the
events in its files, W&B by the number of a row. So the whole record is handed to it each time.
"""

import logging
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from chomp.errors import LaunchError
from chomp.tracking.metrics import GLOBAL_STEP, RUN_OUTCOME
from chomp.tracking.record import (
    NONFINITE_SUFFIX,
    Histogram,
    Row,
    histograms_of,
    is_step_row,
)
from chomp.tracking.run_files import FINISHED, PIECE_FINISHED

# Of a line: what a sink has a place of its own for, and what is not of the run.
_SUMMARY_KEYS = ("kind", "attempt", "time")
_NOT_SHOWN = frozenset({"step", "kind", GLOBAL_STEP, "attempt", "time"})
# TensorBoard looks every few seconds; each flush waits for the disk.
_FLUSH_S = 2.0
# What W&B itself waits for an upload at the end, less than the run would wait for it: what is left
# then lies in W&B's own folder, and its `wandb sync` sends it.
_UPLOAD_TIMEOUT_S = 45.0
_MAX_ARTIFACT_NAME = 128
# The log of an offline W&B run: blocks of records, each with checksum, length and kind.
_LOG_HEADER_BYTES, _BLOCK_BYTES, _RECORD_HEADER_BYTES = 7, 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4
_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """What takes a record. Every line is handed to it; it passes over those that it has."""

    def take(self, row: Row | None) -> None:
        """Take the next line of the record; None: a damaged one."""

    def finish(self) -> None:
        """Hand over everything taken so far."""


class TensorBoardSink:
    """Event files under `folder`, in `attempt-<n>` of the row's attempt, so that an overlap shows.

    There is one event for each line of a step and each summary. What a killed process left is
    counted, and no row is written twice. Events are written on the calling thread: tensorboardX's
    own `SummaryWriter` hands them to a thread of its own, where a full disk ends the thread, and
    the next rows wait for it forever.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        import tensorboardX  # noqa: F401, PLC0415  # a missing package shows at once

        self._folder = Path(folder)
        self._writers: dict[int, Any] = {}
        self._left_to_pass: dict[int, int] = {}  # attempt -> rows that its files have already
        self._texts: dict[tuple[int, str], str] = {}
        self._flushed_s = -_FLUSH_S

    def take(self, row: Row | None) -> None:
        """Write numbers as scalars, histograms as such, and a text when it is a new one."""
        from tensorboardX import summary  # noqa: PLC0415
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        if row is None or not (is_step_row(row) or row.get("kind") == "summary"):
            return  # an artifact lies in the same run folder
        attempt = row.get("attempt", 1)
        row = with_nonfinite(row)
        shown = {name: value for name, value in row.items() if name not in _NOT_SHOWN}
        values: list[Any] = []
        if row.get("kind") == "summary":
            lines = [f"| {name} | {value} |" for name, value in shown.items()]
            table = "\n".join(["| name | value |", "|---|---|", *lines])
            values, shown = list(summary.text("summary", table).value), {}
        histograms = histograms_of(row)
        for name, value in shown.items():
            # The name with what tensorboardX would complain about replaced.
            tag = re.sub(r"[^-/\w.]", "_", name).lstrip("/")
            if name in histograms:
                values.append(_histogram_value(tag, histograms[name]))
            elif isinstance(value, str):
                if self._texts.get((attempt, name)) != value:
                    self._texts[attempt, name] = value
                    values += summary.text(tag, value).value
            elif value is not None:
                # Not `summary.scalar`, which takes twice the time of all the rest.
                values.append(Summary.Value(tag=tag, simple_value=float(value)))
        self._write(attempt, values, step=row.get("step", 0), time_s=row.get("time"))

    def finish(self) -> None:
        """Close the files. A row that still comes later makes new ones."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def _write(self, attempt: int, values: list[Any], *, step: int, time_s: object) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # noqa: PLC0415
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415
        from tensorboardX.proto.summary_pb2 import Summary  # noqa: PLC0415

        folder = self._folder / f"attempt-{attempt}"
        if attempt not in self._left_to_pass:
            self._left_to_pass[attempt] = sum(map(_num_events, folder.glob("*tfevents*")))
        if self._left_to_pass[attempt]:
            self._left_to_pass[attempt] -= 1
            return
        writer = self._writers.get(attempt)
        if writer is None:
            folder.mkdir(parents=True, exist_ok=True)
            # Its own name holds seconds only: a second file would take the place of the first.
            number = sum(1 for _ in folder.iterdir())
            writer = EventsWriter(str(folder / "events"), f".{number}" if number else "")
            self._writers[attempt] = writer
        seconds = time_s if isinstance(time_s, int | float) else time.time()
        writer.write_event(Event(step=step, wall_time=seconds, summary=Summary(value=values)))
        now = time.monotonic()
        if now - self._flushed_s >= _FLUSH_S:
            self._flushed_s = now
            writer.flush()


@dataclass(frozen=True, kw_only=True)
class WandbStart:
    """All that a W&B run begins with. Plain values: it travels to another process as JSON."""

    run_id: str  # W&B's key of the run: the same in every attempt
    name: str
    project: str
    entity: str | None = None
    mode: str | None = None  # None: WANDB_MODE, or online
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)  # without secrets
    attempt: int = 1  # whose outcome says how the run ended
    process_id: int | None = None  # whose memory and load W&B shows
    config_file: str | None = None  # uploaded as the artifact "config"


class WandbSink:
    """One W&B run for a run folder, made or continued at once; raises what `wandb.init` raises.

    W&B refuses a step below its newest, and a resumed run repeats steps. So rows are logged on an
    axis of our own, `global_step`, with their `attempt` beside it, and the overlap shows as two
    lines. W&B's own step is the number of a row in the record: it keeps one row for each.

    For a process of its own: W&B takes over `sys.exit`, asks for keys at the terminal, and waits
    for its service when the interpreter ends.
    """

    def __init__(self, start: WandbStart, *, folder: Path) -> None:
        import wandb  # noqa: PLC0415  # an extra, and half a second

        self._start, self._folder = start, folder
        mode = start.mode or os.environ.get("WANDB_MODE", "online")
        # W&B would ask for a key at the terminal, in the middle of a run.
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise LaunchError(
                "logging.wandb is enabled, but there is no W&B login",
                allowed="an API key, or mode offline",
                fix="set WANDB_API_KEY, run `wandb login`, or set logging.wandb.mode=offline",
            )
        settings = wandb.Settings(console="off", silent=True, finish_timeout=_UPLOAD_TIMEOUT_S)
        if start.process_id is not None:
            settings.x_stats_pid = start.process_id
        self._run = wandb.init(
            id=start.run_id,
            name=start.name,
            project=start.project,
            entity=start.entity,
            mode=start.mode,  # type: ignore[arg-type]
            tags=start.tags,
            config=start.config,
            resume="allow",
            allow_val_change=True,  # a resumed run may have other cosmetic settings
            settings=settings,
        )
        self._run.define_metric(GLOBAL_STEP, hidden=True)
        self._run.define_metric("*", step_metric=GLOBAL_STEP)
        self._outcome: object = None
        self._number = 0  # of the next row in the record
        # What W&B has: online the server says so, offline the files of earlier processes.
        self._first_new = self._run.step
        if mode in ("offline", "dryrun"):
            sync_dir = Path(self._run.settings.sync_dir)
            logs = sync_dir.parent.glob(f"offline-run-*/run-{start.run_id}.wandb")
            self._first_new = max((1 + _last_step(log) for log in logs), default=0)
        if start.config_file is not None:
            self._upload(start.config_file, "config", "config")

    @property
    def url(self) -> str | None:
        """Where the run is shown; None offline."""
        return self._run.url

    def take(self, row: Row | None) -> None:
        """Log a step's row, set summary values, or upload an artifact."""
        if row is None:
            self._number += 1  # it may have been a row of a step
            return
        values = with_nonfinite(row)
        kind = row.get("kind")
        if kind == "summary":
            if row.get("attempt", 1) >= self._start.attempt:
                self._outcome = row.get(RUN_OUTCOME, self._outcome)
            self._run.summary.update({k: v for k, v in values.items() if k not in _SUMMARY_KEYS})
        elif kind == "artifact" and self._number >= self._first_new:
            path = _found(str(row.get("path")), self._folder)
            if path is None:
                _logger.warning("%s is not there any more and was passed over", row.get("path"))
            else:
                self._upload(path, str(row.get("name")), str(row.get("artifact_kind")))
        elif is_step_row(row):
            if self._number >= self._first_new:
                self._log(values)
            self._number += 1

    def finish(self) -> None:
        """Upload what is left, and mark the run as failed unless its summary says it ended well."""
        self._run.finish(exit_code=0 if self._outcome in (FINISHED, PIECE_FINISHED) else 1)

    def _log(self, row: Row) -> None:
        import wandb  # noqa: PLC0415

        logged: dict[str, Any] = {key: row[key] for key in row if key not in ("step", "time")}
        for name, found in histograms_of(row).items():
            bins: Any = (found.counts, found.edges)  # lists do as well as the arrays it declares
            logged[name] = wandb.Histogram(np_histogram=bins)
        logged = {key: value for key, value in logged.items() if value is not None}
        logged[GLOBAL_STEP] = row["step"]
        if isinstance(row.get("time"), int | float):
            logged["_timestamp"] = row["time"]
        self._run.log(logged, step=self._number, commit=True)

    def _upload(self, path: str | Path, name: str, kind: str) -> None:
        import wandb  # noqa: PLC0415

        # W&B's artifacts share one namespace in a project, and take few characters in a name.
        unique = re.sub(r"[^\w.-]", "-", f"{name}-{self._run.id}")[-_MAX_ARTIFACT_NAME:]
        artifact = wandb.Artifact(unique, type=kind)
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)


def with_nonfinite(row: Row) -> Row:
    """The row as it was logged: `<key>/nonfinite` turned back into the value of `<key>`."""
    values = dict(row)
    for key in row:
        name = key.removesuffix(NONFINITE_SUFFIX)
        if name != key and name in row and row[name] is None:
            with suppress(ValueError, TypeError):  # somebody's own metric of that name
                values[name] = float(row[key])
                del values[key]
    return values


def _num_events(path: Path) -> int:
    """The whole events in a file, less the one that begins every file."""
    size, at, count = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while header := file.read(8):
            # Around the event are its length and two checksums.
            at += 16 + (struct.unpack("<Q", header)[0] if len(header) == 8 else size)
            if at > size:  # cut by a kill
                break
            count += 1
            file.seek(at)
    return max(0, count - 1)


def _last_step(log: Path) -> int:
    """The highest W&B step in the log of an offline run; -1 where it has no row."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # noqa: PLC0415

    last = -1
    for data in _log_records(log.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                if "_step" in (item.key, *item.nested_key):
                    last = max(last, int(item.value_json))
    return last


def _log_records(content: bytes) -> Iterator[bytes]:
    """The whole records of W&B's log, which has the layout of LevelDB's."""
    at, parts = _LOG_HEADER_BYTES, b""
    while at + _RECORD_HEADER_BYTES <= len(content):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _RECORD_HEADER_BYTES:  # the end of a block is filled up
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        at += _RECORD_HEADER_BYTES
        if at + length > len(content):  # cut by a kill
            return
        parts = (b"" if kind in (_FULL, _FIRST) else parts) + content[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            yield parts


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


def _found(path: str, folder: Path) -> Path | None:
    """Where an artifact is now: where it was, or at the same place in a folder that was moved."""
    given = Path(path)
    below = (folder / Path(*given.parts[start:]) for start in range(1, len(given.parts)))
    return next((found for found in [given, *below] if found.is_file()), None)
