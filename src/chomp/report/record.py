"""A run folder as a reader sees it: metrics as columns, attempts, and what is wrong with it.

For whoever draws or compares runs, of whatever state: finished, killed, or being written at this
moment. Only what is no run at all is an exception; everything else that is amiss is said in
`problems`, in words for the reader of a page.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from chomp.errors import ConfigError, StorageError, message
from chomp.report.columns import Columns, read_columns
from chomp.storage import exists, is_folder, join, name_of, normalise, open_stream, parent_of
from chomp.tracking import Row, summary_of
from chomp.tracking.names import RUN_OUTCOME, SHORT_KEYS
from chomp.tracking.run_files import (
    METRICS_FILE,
    RESOLVED_CONFIG,
    is_run_folder,
    record_in,
    resolved_config,
)

# Axes: N rows, M some of them.

_LINE_KEYS = ("step", "global_step", "attempt", "time")
_MAX_LINES_NAMED = 5
_NOTHING = Columns((), (), (), is_torn=False, num_lines=0)


@dataclass(frozen=True)
class Series:
    """One metric over the run, each step once and in order."""

    steps: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]  # NaN where the value was not finite
    times: Float[np.ndarray, " N"]  # seconds since 1970


@dataclass(frozen=True)
class Logged:
    """One metric as the file has it: every attempt's rows, in the order they were written."""

    attempts: Int[np.ndarray, " N"]
    steps: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]
    times: Float[np.ndarray, " N"]

    def at(self, indexes: Int[np.ndarray, " M"]) -> "Logged":
        """Some of the rows."""
        return Logged(
            self.attempts[indexes], self.steps[indexes], self.values[indexes], self.times[indexes]
        )


@dataclass(frozen=True)
class Attempt:
    """One start of the run, as far as it is in the record."""

    number: int
    first_step: int | None  # None: it logged no step
    last_step: int | None
    first_time: float
    last_time: float
    outcome: str | None  # `finished`, the exception that ended it, or None: nothing told its end


@dataclass(frozen=True)
class RunRecord:
    """What `read_record` found."""

    folder: str
    config: Mapping[str, Any] | None
    columns: Columns
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run's id, or the folder's name where the config has none."""
        run_id = (self.config or {}).get("run_id")
        return run_id if isinstance(run_id, str) and run_id else name_of(self.folder)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The metrics of steps, by their first appearance; a short key counts as its long name."""
        blocks = sorted(self.columns.blocks, key=lambda block: int(block.lines[0]))
        found = dict.fromkeys(name for block in blocks for name in block.names)
        # A short key stays where it stands alone: its value would be nowhere else.
        shortened = {short for name, short in SHORT_KEYS.items() if name in found and short != name}
        return tuple(name for name in found if name not in shortened and name not in _LINE_KEYS)

    @cached_property
    def summary(self) -> Row:
        """Values of the whole run; where a name was logged again, the later one."""
        return summary_of(self.columns.others)

    @property
    def artifacts(self) -> tuple[Row, ...]:
        """The lines that name files of the run."""
        return tuple(row for row in self.columns.others if row.get("kind") == "artifact")

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """The starts of the run, by number."""
        return tuple(_attempts(self))

    def series(self, name: str) -> Series:
        """The metric at each step, the newest attempt's value; empty where it was never logged."""
        rows = self.newest(name)
        return Series(rows.steps, rows.values, rows.times)

    def newest(self, name: str) -> Logged:
        """The rows behind `series`, with the attempt that each is of."""
        rows, lines = self._rows_of(name)
        if self._superseded.size:
            rows = rows.at(np.flatnonzero(~np.isin(lines, self._superseded)))
        if np.all(rows.steps[1:] > rows.steps[:-1]):
            return rows
        order = np.argsort(rows.steps, kind="stable")
        steps = rows.steps[order]
        # Of rows with one step the last in the file counts, as in `tracking.latest_rows`.
        return rows.at(order[np.append(steps[1:] != steps[:-1], True)])

    def logged(self, name: str) -> Logged:
        """The metric in every row that has it, steps of an attempt that were repeated included."""
        return self._rows_of(name)[0]

    def _rows_of(self, name: str) -> tuple[Logged, Int[np.ndarray, " N"]]:
        """The rows that have the metric in the order of the file, and their lines."""
        found = [block for block in self.columns.blocks if name in block.names]
        rows = Logged(
            _joined([block.attempts for block in found], np.int64),
            _joined([block.steps for block in found], np.int64),
            _joined([block.column(name) for block in found], np.float64),
            _joined([block.column("time") for block in found], np.float64),
        )
        lines = _joined([block.lines for block in found], np.int64)
        if len(found) < 2:  # as nearly all metrics
            return rows, lines
        order = np.argsort(lines)
        return rows.at(order), lines[order]

    @cached_property
    def _superseded(self) -> Int[np.ndarray, " N"]:
        """Lines of an older attempt below a newer one's of the same step; few runs have any."""
        rows, lines = self._rows_of("step")
        if np.all(rows.attempts[1:] >= rows.attempts[:-1]):
            return np.empty(0, np.int64)
        newest: dict[int, int] = {}
        passed = []
        for line, step, attempt in zip(
            lines.tolist(), rows.steps.tolist(), rows.attempts.tolist(), strict=True
        ):
            if attempt < newest.get(step, attempt):
                passed.append(line)
            else:
                newest[step] = attempt
        return np.array(passed, np.int64)


def read_record(folder: str) -> RunRecord:
    """The record of a run folder, or of a metrics file given by its path.

    Raises `ConfigError` for what is neither. A record that is missing, torn, damaged or being
    written gives what there is, and `problems` say what is not.
    """
    path = normalise(folder)
    is_file = not is_folder(path) and exists(path)
    run = parent_of(path) if is_file else path
    if not is_file and not is_run_folder(path):
        raise _no_run(path)
    config, problems = _config(run)
    file = path if is_file else record_in(run, config or {})
    columns = _read(file)
    problems += _missing(file) if columns is None else _damages(columns, name_of(file))
    return RunRecord(run, config, columns or _NOTHING, tuple(problems))


def _read(file: str) -> Columns | None:
    """What the file holds; None where it does not exist."""
    if not exists(file):
        return None
    with open_stream(file) as stream:
        return read_columns(stream)


def _config(run: str) -> tuple[Mapping[str, Any] | None, list[str]]:
    try:
        config = resolved_config(run)
    except StorageError as error:
        return None, [f"{RESOLVED_CONFIG} cannot be read: {error}"]
    if config:
        return config, []
    return None, [f"there is no {RESOLVED_CONFIG}: the run's config is unknown"]


def _missing(file: str) -> list[str]:
    return [f"there is no {name_of(file)} yet: the run has not logged anything"]


def _damages(columns: Columns, name: str) -> list[str]:
    problems = []
    if columns.unreadable:
        shown = [f"line {number}" for number in columns.unreadable[:_MAX_LINES_NAMED]]
        more = len(columns.unreadable) - len(shown)
        told = ", ".join(shown) + (f" and {more:,} more" if more else "")
        problems.append(f"left out of {name}, because unreadable: {told}")
    if columns.is_torn:
        problems.append(
            f"the last line of {name} has no end and is left out: it is being written right now, "
            "or its writer was killed"
        )
    if not columns.blocks:
        empty = (
            "has no row of a step yet" if columns.num_lines else "is empty: nothing was logged yet"
        )
        problems.append(f"{name} {empty}")
    return problems


def _joined(parts: Sequence[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    """All parts in one; the part itself where there is one, since a copy of it costs time."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _attempts(record: RunRecord) -> Iterator[Attempt]:
    rows = record.logged("step")
    others = [row for row in record.columns.others if isinstance(row.get("attempt"), int)]
    numbers = set(np.unique(rows.attempts).tolist()) | {row["attempt"] for row in others}
    for number in sorted(numbers):
        own = rows.at(np.flatnonzero(rows.attempts == number))
        lines = [row for row in others if row["attempt"] == number]
        told = [float(row["time"]) for row in lines if isinstance(row.get("time"), int | float)]
        times = np.append(own.times, told)
        times = times[np.isfinite(times)]
        outcome = summary_of(lines).get(RUN_OUTCOME)
        yield Attempt(
            number,
            int(own.steps.min()) if own.steps.size else None,
            int(own.steps.max()) if own.steps.size else None,
            float(times.min()) if times.size else float("nan"),
            float(times.max()) if times.size else float("nan"),
            outcome if isinstance(outcome, str) else None,
        )


def _no_run(path: str) -> ConfigError:
    there = "a folder in which no run has begun" if is_folder(path) else "which does not exist"
    return ConfigError(
        message(
            given=f"{path}, {there}",
            allowed=f"a run folder, or the path of a {METRICS_FILE}",
            fix=f"give a folder that holds {RESOLVED_CONFIG} or {join('…', METRICS_FILE)}",
        )
    )
