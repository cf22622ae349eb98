"""A run folder as a reader sees it: metrics as columns, attempts, and what is wrong with it.

For whoever draws or compares runs, of whatever state: finished, killed, or being written at this
moment. Only a folder that is no run is an exception; everything else that is wrong is described in
`problems`, for the reader of a page.

Two things in a record belong to no attempt's time. Results that come afterwards (`chomp eval`) are
rows of the last attempt, days later perhaps: they are late. And what an attempt logged beyond the
step where a later one continued is abandoned: those steps were done again, or will be.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from chomp.errors import ConfigError, StorageError
from chomp.report.columns import MAX_TIME_S, Columns, Logged, read_columns
from chomp.storage import (
    exists,
    is_folder,
    is_local,
    join,
    name_of,
    normalise,
    open_stream,
    parent_of,
    read_text,
)
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.tracking import Row, metrics, summary_of
from chomp.tracking.metrics import SHORT_KEYS
from chomp.tracking.run_files import (
    METRICS_FILE,
    ORIGINAL_CONFIG,
    RESOLVED_CONFIG,
    is_run_folder,
    log_every_in,
    record_in,
    resolved_config,
    run_folders_in,
)

# Axes: N rows.

_LINE_KEYS = ("step", "global_step", "attempt", "time")
_MAX_LINES_NAMED = 5
_MAX_HELD = 40  # characters of a file that is no config
_NOTHING = Columns((), (), (), (), (), is_torn=False, num_lines=0)
# Axes: N rows.


# --- Attempts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One start of the run, as far as it is in the record."""

    number: int
    first_step: int | None  # that it did, whether logged or not; None: it logged no training
    last_step: int | None  # None: it logged no step
    first_time: float
    last_time: float  # of its own lines: late ones do not count
    outcome: str | None  # `finished`, the exception that ended it, or None: nothing told its end


def attempts_of(
    columns: Columns, late: Int[np.ndarray, " N"], log_every: int
) -> tuple[Attempt, ...]:
    """The attempts by number; `late` are lines that count for none of their times.

    `log_every` is how many steps a row is taken to be of in an attempt that has only one.
    """
    rows = columns.logged("step")
    saves = columns.logged(metrics.CHECKPOINT_STEP)
    training = _training(columns)
    others = [
        (line, row)
        for line, row in zip(columns.other_lines, columns.others, strict=True)
        if isinstance(row.get("attempt"), int)
    ]
    found: list[Attempt] = []
    for number in sorted({*np.unique(rows.attempts).tolist(), *(r["attempt"] for _, r in others)}):
        own = rows.at((rows.attempts == number) & ~np.isin(rows.lines, late))
        said = [(line, row) for line, row in others if row["attempt"] == number]
        times = _times(own, said)
        trained = training.at((training.attempts == number) & np.isin(training.lines, own.lines))
        earlier = saves.values[saves.attempts < number]
        outcome = summary_of(row for _, row in said).get(metrics.RUN_OUTCOME)
        found.append(
            Attempt(
                number,
                _first_step(trained, earlier, times, log_every, is_first=not found),
                int(own.steps.max()) if own.steps.size else None,
                float(times.min()) if times.size else float("nan"),
                float(times.max()) if times.size else float("nan"),
                outcome if isinstance(outcome, str) else None,
            )
        )
    return tuple(found)


def late_lines(columns: Columns) -> Int[np.ndarray, " N"]:
    """Lines of steps that were written after their attempt: below its outcome in the file.

    Where no outcome is told, these are rows of a step that the attempt had passed and that say
    nothing of training. (A result of the very last step cannot be told from the attempt's own.)
    """
    rows = columns.logged("step")
    is_training = np.isin(rows.lines, columns.logged(metrics.DURATION).lines)
    is_late = np.zeros(rows.lines.size, bool)
    ends = dict(_ends(zip(columns.other_lines, columns.others, strict=True)))
    for number in np.unique(rows.attempts).tolist():
        own = np.flatnonzero(rows.attempts == number)
        if number in ends:
            is_late[own] = rows.lines[own] > ends[number]
        else:
            is_passed = rows.steps[own] < np.maximum.accumulate(rows.steps[own])
            is_late[own] = is_passed & ~is_training[own]
    return rows.lines[is_late]


def is_abandoned(rows: Logged, attempts: Sequence[Attempt]) -> Bool[np.ndarray, " N"]:
    """Whether each row is of a step from which a later attempt went on.

    An attempt that logged no training, such as one that only repeats the last evaluation, leaves
    all rows as they are.
    """
    is_passed = np.zeros(rows.lines.size, bool)
    for attempt in attempts[1:]:
        if attempt.first_step is not None:
            is_passed |= (rows.attempts < attempt.number) & (rows.steps >= attempt.first_step)
    return is_passed


def step_gone_on_from(first_logged: int, every: int, saves: Iterable[float]) -> int:
    """The first step of an attempt whose first row is of step `first_logged`, of `every` at most.

    It is that of the newest checkpoint which earlier attempts told of, if the row reaches back to
    it: an attempt may be killed before it has told of its last one.
    """
    reached = [int(save) for save in saves if save <= first_logged]
    return max(0, first_logged + 1 - every, *reached)


def _training(columns: Columns) -> Logged:
    """The rows of training with their seconds per step.

    A foreign record may have losses alone: then the seconds are unknown.
    """
    rows = columns.logged(metrics.DURATION)
    if rows.lines.size:
        return rows
    losses = columns.logged(metrics.TRAIN_LOSS)
    return replace(losses, values=np.full(losses.lines.size, np.nan))


def _ends(lines: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, int]]:
    """Each attempt's number, and the line in which it told its outcome."""
    for line, row in lines:
        if row.get("kind") == "summary" and metrics.RUN_OUTCOME in row:
            number = row.get("attempt")
            yield (number if isinstance(number, int) else 0), line


def _times(own: Logged, said: Sequence[tuple[int, Row]]) -> Float[np.ndarray, " N"]:
    """When an attempt's own lines were written, up to the one that tells its end."""
    end = max((line for _, line in _ends(said)), default=None)
    told = [
        float(time)
        for line, row in said
        if isinstance(time := row.get("time"), int | float)
        and abs(time) < MAX_TIME_S
        and (end is None or line <= end)
    ]
    times = np.append(own.times, told)
    return times[np.isfinite(times)]


def _first_step(
    trained: Logged,
    saves: Float[np.ndarray, " N"],
    times: Float[np.ndarray, " N"],
    log_every: int,
    *,
    is_first: bool,
) -> int | None:
    """The first step that an attempt did, from its rows of training."""
    if not trained.steps.size:
        return None
    trained = trained.at(np.argsort(trained.steps, kind="stable"))  # lines may be out of order
    first = int(trained.steps[0])
    gaps = np.diff(trained.steps)
    every = max(1, int(np.median(gaps))) if gaps.size else log_every
    if not is_first:
        return step_gone_on_from(first, every, saves)
    # A record may begin in the middle of a run: then the steps before its first row would have
    # taken longer than there was time.
    needed_s, had_s = (first + 1) * trained.values[0], trained.times[0] - times.min(initial=np.inf)
    return first + 1 - every if first + 1 > every and needed_s > had_s else 0


# --- The record -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """One metric over the run, each step once and in order."""

    steps: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]  # NaN where the value was not finite
    times: Float[np.ndarray, " N"]  # seconds since 1970


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
        if isinstance(run_id, str) and run_id:
            return run_id
        # `.` is a folder, and no name.
        return name_of(os.path.abspath(self.folder) if is_local(self.folder) else self.folder)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The metrics of steps, by their first appearance; a short key counts as its long name."""
        blocks = sorted(self.columns.blocks, key=lambda block: int(block.lines[0]))
        found = dict.fromkeys(name for block in blocks for name in block.names)
        # A short key stays where it stands alone: its value would be nowhere else.
        shortened = {short for name, short in SHORT_KEYS.items() if name in found}
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
        return attempts_of(self.columns, self._late_lines, log_every_in(self.config))

    def series(self, name: str) -> Series:
        """The metric at each step, the newest attempt's value; empty where it was never logged.

        Where a newer attempt went back, what older ones logged from there on is not in it.
        """
        rows = self.newest(name)
        return Series(rows.steps, rows.values, rows.times)

    def newest(self, name: str) -> Logged:
        """The rows behind `series`, with the attempt that each is of."""
        rows = self.logged(name)
        if self._superseded.size:
            rows = rows.at(~np.isin(rows.lines, self._superseded))
        if np.all(rows.steps[1:] > rows.steps[:-1]):
            return rows
        order = np.argsort(rows.steps, kind="stable")
        steps = rows.steps[order]
        # Of rows with one step the last in the file counts, as in `tracking.latest_rows`.
        return rows.at(order[np.append(steps[1:] != steps[:-1], True)])

    def logged(self, name: str) -> Logged:
        """The metric in every row that has it, steps of an attempt that were repeated included."""
        return self.columns.logged(name)

    def in_time(self, name: str) -> Logged:
        """`logged`, without rows that came from elsewhere after their attempt: late evaluations."""
        rows = self.logged(name)
        return rows.at(~np.isin(rows.lines, self._late_lines)) if self._late_lines.size else rows

    @cached_property
    def _late_lines(self) -> Int[np.ndarray, " N"]:
        return late_lines(self.columns)

    @cached_property
    def _superseded(self) -> Int[np.ndarray, " N"]:
        """Lines of older attempts that a newer one took the place of; few runs have any."""
        rows = self.logged("step")
        is_passed = is_abandoned(rows, self.attempts)
        if np.any(rows.attempts[1:] < rows.attempts[:-1]):
            is_passed |= _is_below_newer(rows)
        return rows.lines[is_passed]


def read_record(folder: str, *, has_begun: bool = True) -> RunRecord:
    """The record of a run folder, or of a metrics file given by its path.

    Raises `ConfigError` for what is neither. `has_begun=False`: the folder may be that of a run
    which failed before it wrote anything. A record that is missing, torn, damaged or being
    written gives what there is, and `problems` say what is not.
    """
    path = normalise(folder)
    is_file = not is_folder(path) and exists(path)
    run = parent_of(path) if is_file else path
    if not is_file and not is_run_folder(path):
        raise _no_run(path)
    config, problems = _config(run)
    own = record_in(run, config or {})
    file = path if is_file else own
    columns = None
    if exists(file):
        with open_stream(file) as stream:
            columns = read_columns(stream)
    # Steps of the executor have some of the files of a run too.
    marks = {"kind", "attempt"}
    has_lines = columns is not None and bool(
        columns.blocks or any(marks & row.keys() for row in columns.others)
    )
    is_described = exists(join(run, RESOLVED_CONFIG)) or exists(join(run, ORIGINAL_CONFIG))
    is_run = file == own and (is_described or (columns is not None and not is_file))
    if has_begun and not (has_lines or is_run):
        raise _no_run(path)
    name = name_of(file)
    if columns is None:
        problems.append(f"there is no {name} yet: the run has not logged anything")
        columns = _NOTHING
    else:
        problems += _damages(columns, name)
    return RunRecord(run, config, columns, tuple(problems))


def _config(run: str) -> tuple[Mapping[str, Any] | None, list[str]]:
    try:
        config = resolved_config(run)
    except StorageError as error:
        return None, [f"{RESOLVED_CONFIG} cannot be read: {error}"]
    if config:
        return config, []
    if not exists(join(run, RESOLVED_CONFIG)):
        return None, [f"there is no {RESOLVED_CONFIG}: the run's config is unknown"]
    held = read_text(join(run, RESOLVED_CONFIG), max_bytes=MAX_TEXT_BYTES).strip()
    shown = held if len(held) <= _MAX_HELD else f"{held[:_MAX_HELD]}…"
    return None, [f"{RESOLVED_CONFIG} holds {shown} and no settings: the run's config is unknown"]


def _damages(columns: Columns, name: str) -> list[str]:
    problems = []
    if columns.unreadable:
        problems.append(f"left out of {name}, because unreadable: {_told(columns.unreadable)}")
    if columns.without_step:
        told = _told(columns.without_step)
        problems.append(
            f"left out of {name}, because the step or the attempt is none of a run: {told}"
        )
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


def _told(lines: Sequence[int]) -> str:
    """The first of some lines by their numbers, and how many more there are."""
    shown = [f"line {number}" for number in lines[:_MAX_LINES_NAMED]]
    more = len(lines) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _is_below_newer(rows: Logged) -> Bool[np.ndarray, " N"]:
    """Whether each row stands in the file below one of a newer attempt and the same step."""
    newest: dict[int, int] = {}
    is_passed = np.zeros(rows.lines.size, bool)
    for index, (step, attempt) in enumerate(
        zip(rows.steps.tolist(), rows.attempts.tolist(), strict=True)
    ):
        is_passed[index] = attempt < newest.get(step, attempt)
        newest[step] = max(attempt, newest.get(step, attempt))
    return is_passed


def _no_run(path: str) -> ConfigError:
    there = "a folder in which no run has begun" if is_folder(path) else "which does not exist"
    fix = f"give a folder that holds {RESOLVED_CONFIG} or {join('…', METRICS_FILE)}"
    if runs := run_folders_in(path):
        there = f"which is no run folder but holds {len(runs)}"
        fix = f"name them: {join(path, '*')}, or one: {runs[-1]}"
    return ConfigError(
        f"{path}, {there}",
        allowed=f"a run folder, or the path of a {METRICS_FILE}",
        fix=fix,
    )
