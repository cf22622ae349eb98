"""The record of a run: `metrics.jsonl`, strict JSON appended line by line, and how to read it back.

A step's line is `step`, `global_step`, `attempt`, `time` and then the metrics. Lines with a `kind`
are not of a step: `summary` values describe the run, an `artifact` names a file of it. Each start
of a run is an attempt, counted from 1; steps that a resumed run repeats are in the file twice.

A line counts once its newline is on disk. A process killed inside a write can leave one fragment,
at the end; `set_aside_torn_line` moves it out of the way before anything is appended after it.

A histogram in a row: `<key>` is the text of a JSON list of counts; `<key>/min` and `<key>/max` are
the outer edges, and the bins between them are of equal width.
"""

import errno
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias, cast

from chomp.errors import ConfigError, StorageError
from chomp.storage.files import open_regular
from chomp.tracking.tracker import MetricValue, PlainValue, flat_metrics

# A row as read from a file. Its values are flat, but only the file knows of which type each is.
Row: TypeAlias = dict[str, Any]

NONFINITE_SUFFIX = "/nonfinite"
# As far as a page's 32 bits count; beyond that lies no run, nor as many attempts at one.
MAX_STEP = 1 << 31

_BLOCK_BYTES = 1 << 16
_logger = logging.getLogger(__name__)
# Keys of the line itself. A metric may repeat a step key, if it says the same.
_STEP_KEYS = ("step", "global_step")
_LINE_KEYS = ("attempt", "time", "kind")
_MAX_LINES_NAMED = 5
# A line is one write, so it is whole within microseconds; what is torn for longer is left for good.
_PATIENCE_S = 0.5
_LOOK_EVERY_S = 0.05
_HISTOGRAM_MARK = "/hist/"
_told_unreadable: set[tuple[object, ...]] = set()  # files and lines of which the log was told


def json_line(row: Mapping[str, PlainValue]) -> bytes:
    """The row as one line of strict JSON, newline included.

    JSON has no NaN or infinity: such a value becomes null, and `<key>/nonfinite` says which it was.
    """
    encoded: dict[str, PlainValue] = {}
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            if key + NONFINITE_SUFFIX in row:
                raise ConfigError(
                    f"the metric {key!r} is {value}, and the row also has "
                    f"{key + NONFINITE_SUFFIX!r}",
                    allowed=f"no name ending in {NONFINITE_SUFFIX!r} beside a non-finite value",
                    fix="rename the second metric",
                )
            encoded[key] = None
            encoded[key + NONFINITE_SUFFIX] = str(value)
        else:
            encoded[key] = value
    # ASCII escapes keep a line one line (U+2028) and carry a lone surrogate, which UTF-8 cannot.
    return json.dumps(encoded, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def strict_json(value: Any) -> Any:
    """A nested value with null for NaN and infinity, and `<key>/nonfinite` beside it as above."""
    if isinstance(value, Mapping):
        bad = {k: v for k, v in value.items() if isinstance(v, float) and not math.isfinite(v)}
        told = {f"{key}{NONFINITE_SUFFIX}": str(number) for key, number in bad.items()}
        return {key: strict_json(item) for key, item in value.items()} | told
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def row_of_line(line: bytes) -> Row | None:
    """The row of a line, or None if it is not a whole line of strict JSON with one flat object.

    Its step and its attempt, where it has them, are whole numbers that a run can reach.
    """
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or any(type(value) in (dict, list) for value in row.values()):
        return None
    counts = [row[key] for key in ("step", "attempt") if key in row]
    is_row = all(type(count) is int and abs(count) < MAX_STEP for count in counts)
    return cast(Row, row) if is_row else None


def set_aside_torn_line(path: Path) -> None:
    """Leave `path` ending in a whole line; a torn last line is appended to `<path>.torn`."""
    with open(open_regular(str(path), os.O_RDWR), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = _last_line_start(file, size)
        file.seek(start)
        fragment = file.read(size - start)
        if not fragment or row_of_line(fragment) is not None:
            return
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
        path,
        len(fragment),
        torn,
    )


def _last_line_start(file: BinaryIO, size: int) -> int:
    """Offset of the last line, read backwards in blocks: the file may be very long."""
    end = size - 1  # the last byte may be the last line's own newline
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


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
            is_settled = self._is_shared and _ends_in_a_line(self._path, _PATIENCE_S)
            if self._path.exists() and not is_settled:
                set_aside_torn_line(self._path)
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
    if not Path(path).exists():
        return 0
    return max((_attempt_of(row) for row in _readable_rows(Path(path))), default=0)


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
    for number, row in _numbered_rows(path):
        if row is None:
            unreadable.append(number)
        else:
            yield row
    if unreadable and unreadable[-1] == number:
        unreadable.pop()
        if is_torn_told:
            _logger.warning("%s: line %d, the last, is torn and was left out", path, number)
    # Once: a run reads its record when it begins and when it ends.
    if unreadable and (told := (str(path), *unreadable)) not in _told_unreadable:
        _told_unreadable.add(told)
        count, first = len(unreadable), unreadable[:_MAX_LINES_NAMED]
        _logger.warning(
            "%s: %d damaged line%s left out, and all others used: line %s%s. `sed -n %dp %s` shows "
            "one",
            *(path, count, "" if count == 1 else "s", ", ".join(map(str, first))),
            *("" if count == len(first) else ", …", first[0], path),
        )


def _numbered_rows(path: Path) -> Iterator[tuple[int, Row | None]]:
    """Each line's number from 1, and its row, or None where the line is torn or broken."""
    try:
        with open(open_regular(str(path)), "rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, row_of_line(line)
    except OSError as error:
        raise StorageError(
            f"cannot read the metrics file {path}: {error.strerror or error}",
            allowed="the metrics.jsonl of a run that has logged a row",
            fix="check the run folder's path",
        ) from error


def _refuse_other_values(row: Mapping[str, PlainValue], own: Mapping[str, int]) -> None:
    """Raise if a metric would replace one of the line's own keys; one that repeats it may stay."""
    clashes = [key for key in row if key in _LINE_KEYS or (key in own and row[key] != own[key])]
    if clashes:
        key = clashes[0]
        raise ConfigError(
            f"a metric {key!r} = {row[key]!r}"
            + (f" in the row of step {own['step']}" if own else " in the summary"),
            allowed=f"names other than {[*own, *_LINE_KEYS]}, which describe the line itself",
            fix=f"give the metric a namespace, such as 'train/{key}'",
        )


def _attempt_of(row: Row) -> int:
    attempt = row.get("attempt", 0)
    return attempt if isinstance(attempt, int) else 0


def _overlay(known: Row, newer: Row) -> None:
    """Write `newer` over `known`; a value that is finite again loses its non-finite companion."""
    for key in newer:
        known.pop(key + NONFINITE_SUFFIX, None)
    known.update(newer)


def _ends_in_a_line(path: Path, patience_s: float) -> bool:
    """Whether the file ends in a whole line, at once or within the time that a write may take."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() <= deadline:
        with open(open_regular(str(path)), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - 1, 0))
            if file.read() in (b"", b"\n"):
                return True
        time.sleep(_LOOK_EVERY_S)
    return False


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
        low, high = row.get(f"{name}/min"), row.get(f"{name}/max")
        if _HISTOGRAM_MARK not in name or not isinstance(text, str):
            continue
        try:
            counts = json.loads(text)
        except ValueError:
            continue
        if isinstance(counts, list) and counts and all(map(_is_number, [*counts, low, high])):
            found[name] = Histogram(list(map(float, counts)), float(low or 0), float(high or 0))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
