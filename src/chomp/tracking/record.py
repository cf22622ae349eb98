"""The record of a run: `metrics.jsonl`, strict JSON appended line by line, and how to read it back.

A step's line is `step`, `global_step`, `attempt`, `time` and then the metrics. Lines with a `kind`
are not of a step: `summary` values describe the run, an `artifact` names a file of it. Each start
of a run is an attempt, counted from 1; steps that a resumed run repeats are in the file twice.

A line counts once its newline is on disk. A process killed inside a write can leave one fragment,
at the end; it is moved out of the way before anything is appended after it.

A histogram in a row: `<key>` is the text of a JSON list of counts; `<key>/min` and `<key>/max` are
the outer edges, and the bins between them are of equal width.

The record is a run's memory, so its failure ends the run. A tracker beside it shows what the record
holds, so its failure costs a log message.
"""

import errno
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol, TypeAlias, cast, runtime_checkable

from chomp.errors import ConfigError, StorageError
from chomp.storage.files import open_regular

PlainValue: TypeAlias = float | int | str | bool | None
# A row as read from a file. Its values are flat, but only the file knows of which type each is.
Row: TypeAlias = dict[str, Any]

NONFINITE_SUFFIX = "/nonfinite"
# As far as a page's 32 bits count; beyond that lies no run, nor as many attempts at one.
MAX_STEP = 1 << 31

_BLOCK_BYTES = 1 << 16
# Keys of the line itself. A metric may repeat a step key, if it says the same.
_STEP_KEYS = ("step", "global_step")
_LINE_KEYS = ("attempt", "time", "kind")
_MAX_LINES_NAMED = 5
# A line is one write, so it is whole within microseconds; what is torn for longer is left for good.
_PATIENCE_S = 0.5
_LOOK_EVERY_S = 0.05
_logger = logging.getLogger(__name__)


class HoldsOneValue(Protocol):
    """A NumPy or JAX scalar, or a 0-d array: anything whose `.item()` is a plain value."""

    def item(self) -> object:
        """The plain Python value; on a device array this waits for the device."""
        ...


MetricValue: TypeAlias = PlainValue | HoldsOneValue


@runtime_checkable
class Tracker(Protocol):
    """Where a run's metrics go. Calls come from one thread, in the order of the run."""

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Take one row; `step` is the 0-based index of the completed step it describes."""
        ...

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Take values that describe the whole run; a later value of a name replaces an earlier."""
        ...

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Take note of a file that belongs to the run, such as its config."""
        ...

    def finish(self) -> None:
        """Hand over everything taken so far. May be called twice."""
        ...


# ---- Values and lines ----------------------------------------------------------------------------


def flat_metrics(metrics: Mapping[str, MetricValue]) -> dict[str, PlainValue]:
    """The same row with plain JSON values, non-finite floats included.

    Raises `ConfigError` for a nested value, an array of more than one number, and a name that is
    not a string.
    """
    for name in metrics:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"a metric with the name {name!r}",
                allowed="names that are non-empty strings",
                fix="log it under a name such as 'train/loss'",
            )
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: object) -> PlainValue:
    """`value` as exactly a bool, int, float, str or None."""
    if value is None or isinstance(value, bool):
        return value
    # Subclasses are cast away: np.float64 is a float and an IntEnum an int, but a row must compare
    # equal to the row read back, in type too.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)  # not str(): that of a (str, Enum) is its member's name
    # An array of shape (1,) is refused too: with another batch size it would hold more.
    shape = getattr(value, "shape", ())
    if hasattr(value, "item") and shape == ():
        inner = value.item()
        if inner is None or isinstance(inner, bool | int | float | str):
            return _plain(name, inner)
    what = f"{type(value).__name__} of shape {shape}" if shape != () else type(value).__name__
    raise ConfigError(
        f"the metric {name!r} is a {what}",
        allowed="a number, a string, a bool, None or a 0-d array of one of these",
        fix=f"log each number under its own name, such as '{name}/mean'",
    )


def strict_json(value: Any) -> Any:
    """A nested value with null for NaN and infinity; `<key>/nonfinite` beside it says which."""
    if isinstance(value, Mapping):
        bad = {k: v for k, v in value.items() if isinstance(v, float) and not math.isfinite(v)}
        told = {f"{key}{NONFINITE_SUFFIX}": str(number) for key, number in bad.items()}
        return {key: strict_json(item) for key, item in value.items()} | told
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_line(row: Mapping[str, PlainValue]) -> bytes:
    """The row as one line of strict JSON, newline included; of non-finite values as above."""
    for key, value in row.items():
        companion = f"{key}{NONFINITE_SUFFIX}"
        if companion in row and isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"the metric {key!r} is {value}, and the row also has {companion!r}",
                allowed=f"no name ending in {NONFINITE_SUFFIX!r} beside a non-finite value",
                fix="rename the second metric",
            )
    # ASCII escapes keep a line one line (U+2028) and carry a lone surrogate, which UTF-8 cannot.
    text = json.dumps(strict_json(row), allow_nan=False, separators=(",", ":"))
    return text.encode("ascii") + b"\n"


def row_of_line(line: bytes) -> Row | None:
    """The row of a line, or None if it is not a whole line of strict JSON with one flat object.

    Its step and its attempt, where it has them, are whole numbers that a run can reach.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or any(type(value) in (dict, list) for value in row.values()):
        return None
    counts = [row[key] for key in ("step", "attempt") if key in row]
    is_row = all(type(count) is int and abs(count) < MAX_STEP for count in counts)
    return cast(Row, row) if is_row else None


# ---- Writing -------------------------------------------------------------------------------------


class JsonlTracker:
    """Appends every row to a local file, each with a single write, so a kill tears at most one.

    Opening repairs what a killed attempt left: a torn last line moves to `<path>.torn`. A line that
    cannot be written raises `StorageError`; the next row then opens and repairs the file again.
    Rows outlive the process at once, and a power cut once `finish` has returned.

    `is_shared`: for a record that its run may be writing to at this moment. Every line is one write
    to the end of the file, so neither can land in the other; but a last line without its end may be
    one that is being written, and is set aside only when nobody goes on with it.
    """

    def __init__(self, path: str | PathLike[str], *, attempt: int, is_shared: bool = False) -> None:
        self._path, self._is_shared = Path(path), is_shared
        self._attempt = attempt
        self._descriptor: int | None = None
        self._open()  # now rather than at the first row: a run must not train to find it cannot log

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Append one row of the completed step with 0-based index `step`."""
        row = flat_metrics(metrics)
        own = dict.fromkeys(_STEP_KEYS, int(step))
        _refuse_other_values(row, own)
        self._append({**own, **self._stamp(), **{key: row[key] for key in row if key not in own}})

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Append values that describe the whole run."""
        row = flat_metrics(metrics)
        _refuse_other_values(row, {})
        self._append({"kind": "summary", **self._stamp(), **row})

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Append where the artifact is; the file itself is neither read nor copied."""
        artifact = {"name": name, "artifact_kind": kind, "path": os.fspath(path)}
        self._append({"kind": "artifact", **self._stamp(), **artifact})

    def finish(self) -> None:
        """Flush to the disk and close. A row that still comes later opens the file again."""
        if self._descriptor is None:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            self._close()

    def _stamp(self) -> dict[str, PlainValue]:
        # Microseconds are as fine as a float of this size can tell.
        return {"attempt": self._attempt, "time": round(time.time(), 6)}

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.is_symlink():  # it may lead to any file of this user
                raise OSError(errno.ELOOP, "it is a symbolic link, which is not written through")
            if self._path.exists():
                _set_aside_torn_line(self._path, is_shared=self._is_shared)
            # Append: should a forgotten process still write, no row can land on another.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor = open_regular(str(self._path), flags, 0o644)
        except OSError as error:
            raise self._unwritable(error) from error
        return self._descriptor

    def _append(self, row: Mapping[str, PlainValue]) -> None:
        line = json_line(row)
        descriptor = self._open() if self._descriptor is None else self._descriptor
        try:
            # One write takes the whole line. A full disk takes what fits; the write of the rest
            # then makes the system say why it will not.
            while line:
                line = line[os.write(descriptor, line) :]
        except OSError as error:
            self._close()  # the next row has to set the fragment aside before it appends
            raise self._unwritable(error) from error

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _unwritable(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write the metrics file {self._path}: {error.strerror or error}",
            allowed="a writable local file, on a disk with free space",
            fix=f"free space or correct the permissions under {self._path.parent}, then start "
            "the run again: rows already written are kept",
        )


def _refuse_other_values(row: Mapping[str, PlainValue], own: Mapping[str, int]) -> None:
    """Raise if a metric would replace one of the line's own keys; one that repeats it may stay."""
    for key in row:
        if key in _LINE_KEYS or (key in own and row[key] != own[key]):
            where = f"in the row of step {own['step']}" if own else "in the summary"
            raise ConfigError(
                f"a metric {key!r} = {row[key]!r} {where}",
                allowed=f"names other than {[*own, *_LINE_KEYS]}, which describe the line itself",
                fix=f"give the metric a namespace, such as 'train/{key}'",
            )


def _set_aside_torn_line(path: Path, *, is_shared: bool) -> None:
    """Leave `path` ending in a whole line; a torn last line is appended to `<path>.torn`."""
    deadline = time.monotonic() + (_PATIENCE_S if is_shared else 0)
    with open(open_regular(str(path), os.O_RDWR), "r+b", buffering=0) as file:
        while True:
            start = _last_line_start(file)
            file.seek(start)
            fragment = file.read()
            # In a shared record a whole line is not ours, and the next may be under way.
            is_settled = is_shared and fragment.endswith(b"\n")
            if not fragment or is_settled or row_of_line(fragment) is not None:
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_EVERY_S)
        torn = path.with_name(path.name + ".torn")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(open_regular(str(torn), flags, 0o644), "ab") as aside:
            aside.write(fragment.removesuffix(b"\n") + b"\n")
            aside.flush()
            # Only then cut: a kill between the two leaves the fragment twice, never nowhere.
            os.fsync(aside.fileno())
        file.truncate(start)
    _logger.warning(
        "%s ended in a torn line (%d bytes), as a killed process leaves it; moved to %s",
        *(path, len(fragment), torn),
    )


def _last_line_start(file: IO[bytes]) -> int:
    """Offset of the last line, read backwards in blocks: the file may be very long."""
    end = file.seek(0, os.SEEK_END) - 1  # the last byte may be the last line's own newline
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class CompositeTracker:
    """Hands every call to `record`, whose exceptions are raised, and then to each of `sinks`.

    Values are made plain once, so a device array is waited for once however many sinks there are.
    Nothing that a sink raises gets out; what it lost is counted, and later rows are still tried.
    """

    def __init__(self, record: Tracker, sinks: Iterable[Tracker] = ()) -> None:
        self._record, self._sinks = record, list(sinks)
        self._lost_rows: Counter[int] = Counter()  # by the index of the sink
        self._failed: set[int] = set()

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Log the row to the record, then to every sink."""
        row = flat_metrics(metrics)
        self._record.log(row, step=step)
        # A copy for each: what a sink does to its row is no other sink's business.
        self._call_sinks(lambda sink: sink.log(dict(row), step=step))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Log the summary to the record, then to every sink."""
        row = flat_metrics(metrics)
        self._record.log_summary(row)
        self._call_sinks(lambda sink: sink.log_summary(dict(row)))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Log the artifact to the record, then to every sink."""
        self._record.log_artifact(path, name=name, kind=kind)
        self._call_sinks(lambda sink: sink.log_artifact(path, name=name, kind=kind))

    def finish(self) -> None:
        """Finish all of them, even if the record cannot, and say what each sink has lost."""
        lost_rows, self._lost_rows = self._lost_rows, Counter()
        try:
            self._record.finish()
        finally:
            # A terminal is left clean even when the disk is full.
            self._call_sinks(lambda sink: sink.finish())
            self._lost_rows.clear()
            for index, lost in lost_rows.items():
                name = type(self._sinks[index]).__name__
                _logger.error("%s lost %d rows; the record has them", name, lost)

    def _call_sinks(self, call: Callable[[Tracker], None]) -> None:
        for index, sink in enumerate(self._sinks):
            try:
                call(sink)
            except Exception:
                self._lost_rows[index] += 1
                # Only the first is told in full: what is broken fails at every row.
                if index not in self._failed:
                    self._failed.add(index)
                    _logger.exception(
                        "%s failed. The run goes on and the record keeps every row; further "
                        "failures of this sink are only counted",
                        type(sink).__name__,
                    )


class NoopTracker:
    """A tracker that takes everything and keeps nothing; it never waits for a device."""

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Nothing happens."""

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Nothing happens."""

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Nothing happens."""

    def finish(self) -> None:
        """Nothing happens."""


# ---- Reading -------------------------------------------------------------------------------------


def read_metrics(path: str | PathLike[str]) -> list[Row]:
    """Every row of the file in order, summaries and artifacts included, as written.

    Lines that cannot be read are left out and reported in the log. The last of them may only be
    torn: the run may be writing it right now.
    """
    return list(_readable_rows(Path(path), is_torn_told=True))


def last_attempt(path: str | PathLike[str]) -> int:
    """The highest attempt in the file, 0 when there is none.

    Lines that cannot be read are left out and reported in the log: a damaged record must not keep a
    run from resuming.
    """
    rows = _readable_rows(Path(path)) if Path(path).exists() else ()
    return max(map(_attempt_of, rows), default=0)


def recorded_summary(path: str | PathLike[str]) -> Row:
    """The summary values in the file so far, none where it is not there; unreadable lines pass."""
    return summary_of(_readable_rows(Path(path))) if Path(path).exists() else {}


def is_step_row(row: Row) -> bool:
    """Whether a line is of a step, and neither a summary nor an artifact."""
    return "kind" not in row and "step" in row


def latest_rows(rows: Iterable[Row]) -> list[Row]:
    """One row for each step, by step, with the newest attempt's value for every key.

    Rows of one step (training, then evaluation) are put together, those of an older attempt under
    those of a newer: an attempt that only repeats the end of a run logs its evaluation alone.
    """
    by_step: dict[int, Row] = {}
    for row in rows:
        if not is_step_row(row):
            continue
        known = by_step.setdefault(row["step"], dict(row))
        if _attempt_of(row) >= _attempt_of(known):
            _overlay(known, row)
    return [by_step[step] for step in sorted(by_step)]


def summary_of(rows: Iterable[Row]) -> Row:
    """The run's summary values; where a name was logged again, the later value."""
    summary: Row = {}
    for row in rows:
        if row.get("kind") == "summary":
            _overlay(summary, {key: row[key] for key in row if key not in _LINE_KEYS})
    return summary


def _readable_rows(path: Path, *, is_torn_told: bool = False) -> Iterator[Row]:
    """The rows of the file; the log is told of lines that cannot be read, if the last only so."""
    unreadable: list[int] = []
    number = 0
    try:
        with open(open_regular(str(path)), "rb") as file:
            for number, line in enumerate(file, start=1):
                if (row := row_of_line(line)) is None:
                    unreadable.append(number)
                else:
                    yield row
    except OSError as error:
        raise StorageError(
            f"cannot read the metrics file {path}: {error.strerror or error}",
            allowed="the metrics.jsonl of a run that has logged a row",
            fix="check the run folder's path",
        ) from error
    if unreadable and unreadable[-1] == number:
        unreadable.pop()
        if is_torn_told:
            _logger.warning("%s: line %d, the last, is torn and was left out", path, number)
    if unreadable:
        _warn_of_damage(path, tuple(unreadable))


@cache  # once: a run reads its record when it begins and when it ends
def _warn_of_damage(path: Path, lines: tuple[int, ...]) -> None:
    plural = "" if len(lines) == 1 else "s"
    named = ", ".join(map(str, lines[:_MAX_LINES_NAMED]))
    named += ", …" if len(lines) > _MAX_LINES_NAMED else ""
    _logger.warning(
        "%s: %d damaged line%s left out, and all others used: line %s. `sed -n %dp %s` shows one",
        *(path, len(lines), plural, named, lines[0], path),
    )


def _attempt_of(row: Row) -> int:
    attempt = row.get("attempt", 0)
    return attempt if isinstance(attempt, int) else 0


def _overlay(known: Row, newer: Row) -> None:
    """Write `newer` over `known`; a value that is finite again loses its non-finite companion."""
    for key in newer:
        known.pop(key + NONFINITE_SUFFIX, None)
    known.update(newer)


@dataclass(frozen=True)
class Histogram:
    """Counts of equal bins from `low` to `high`."""

    counts: list[float]
    low: float
    high: float

    @property
    def edges(self) -> list[float]:
        """One more than there are counts."""
        width = (self.high - self.low) / len(self.counts)
        return [self.low + width * index for index in range(len(self.counts))] + [self.high]


def histograms_of(row: Mapping[str, PlainValue]) -> dict[str, Histogram]:
    """The histograms in a row by name; what only looks like one is left out."""
    found = {}
    for name, text in row.items():
        if "/hist/" not in name or not isinstance(text, str):
            continue
        try:
            counts = json.loads(text)
        except ValueError:
            continue
        low, high = row.get(f"{name}/min"), row.get(f"{name}/max")
        # By `type`: a flag is no number.
        if not isinstance(counts, list) or not counts:
            continue
        if {type(n) for n in (*counts, low, high)} <= {int, float}:
            found[name] = Histogram([float(n) for n in counts], float(low or 0), float(high or 0))
    return found
