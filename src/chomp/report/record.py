"""A run folder as a reader sees it: its lines as columns of numbers, its attempts, its damages.

For whoever draws or compares runs, of whatever state: finished, killed, or being written at this
moment. `read_record` reads a run once; a `RecordFile` reads on in a file that grows. Only a folder
that is no run is an exception; everything else that is wrong is in `problems`, for people.

A record may hold 100,000 lines of a kilobyte, and a page ten of them. Two things make that seconds:
orjson parses a block of lines at a time (in a fifth of the time of `json.loads`), and lines with
equal keys become one matrix, since a run logs the same names step after step.

Two things in a record belong to no attempt's time. Results that come afterwards (`chomp eval`) are
rows of the last attempt, days later perhaps: they are late. And what an attempt logged beyond the
step where a later one continued is abandoned: those steps were done again, or will be.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import orjson
from jaxtyping import Bool, Float, Int

from chomp.errors import ConfigError, StorageError
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
from chomp.tracking.record import MAX_STEP, row_of_line
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

# Axes: N rows, M some of them, K columns.

_LINE_KEYS = ("step", "global_step", "attempt", "time")
# What a block leaves behind, a hundred dicts, should still be in the processor's cache when it is
# turned into numbers: blocks eight times as long take a third longer.
_BLOCK_BYTES = 1 << 17
_MAX_TIME_S = 253402300800.0  # the year 10000: later, no calendar of a computer has a date
_MAX_LINES_NAMED = 5
_MAX_HELD = 40  # characters of a file that is no config
_NUMBERS = {int, float}
_Layout = tuple[str, ...]


# --- Lines as columns -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """The rows of steps that hold the same numbers, in the order of the file."""

    names: _Layout
    values: Float[np.ndarray, "K N"]  # NaN where the line has null
    lines: Int[np.ndarray, " N"]  # from 1

    def column(self, name: str, missing: float = float("nan")) -> Float[np.ndarray, " N"]:
        """The values under a name; `missing` everywhere for one that these rows do not have."""
        if name not in self.names:
            return np.full(self.lines.size, missing)
        values: np.ndarray = self.values[self.names.index(name)]
        return values

    @cached_property
    def steps(self) -> Int[np.ndarray, " N"]:
        """The step of each row."""
        return self.column("step").astype(np.int64)

    @cached_property
    def attempts(self) -> Int[np.ndarray, " N"]:
        """The attempt that each row is of; 0 where it does not say."""
        return self.column("attempt", 0.0).astype(np.int64)


@dataclass(frozen=True)
class Series:
    """Rows that hold one metric."""

    steps: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]  # NaN where the value was not finite
    times: Float[np.ndarray, " N"]  # seconds since 1970
    attempts: Int[np.ndarray, " N"]
    lines: Int[np.ndarray, " N"]  # from 1

    def at(self, chosen: Int[np.ndarray, " M"] | Bool[np.ndarray, " N"] | slice) -> "Series":
        """Some of the rows, by their indexes or by whether each is one of them."""
        return Series(
            self.steps[chosen],
            self.values[chosen],
            self.times[chosen],
            self.attempts[chosen],
            self.lines[chosen],
        )


class RecordFile:
    """The lines of a metrics file, which may grow, be cut, or be replaced by another one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.num_lines = 0  # whole ones
        self.is_torn = False  # the last line has no end: it is being written, or its writer is dead
        self.unreadable: list[int] = []  # numbers of the lines that are no JSON object, from 1
        self.without_step: list[int] = []  # of rows whose step or attempt is not valid
        self.others: dict[int, Row] = {}  # lines that are not of a step, by number
        self._blocks: dict[_Layout, Block] = {}
        self._new: dict[_Layout, list[Block]] = defaultdict(list)
        self._offset = 0
        # Where the last line that was read still ends at the offset, the file is still the same.
        self._last_line = b""

    def append(self, max_bytes: float = float("inf")) -> bool:
        """Read the whole lines that were added since the last call; whether there are more.

        It stops after `max_bytes`, but never within a line. A file that is no longer the one it was
        is read from its beginning.
        """
        with open_stream(self.path) as file:
            file.seek(self._offset - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:
                self._clear()
                file.seek(0)
            num_bytes, rest, has_more = 0, b"", False
            while not has_more and (read := file.read(_BLOCK_BYTES)):
                lines, newline, rest = (rest + read).rpartition(b"\n")
                if not newline:  # the line is longer than a block
                    continue
                self._take(lines)
                self._last_line = lines[lines.rfind(b"\n") + 1 :] + b"\n"
                num_bytes += len(lines) + 1
                has_more = num_bytes >= max_bytes
        self._offset += num_bytes
        self.is_torn = bool(rest) and not has_more
        return has_more

    def blocks(self) -> list[Block]:
        """All rows of steps so far, those with equal names in one block."""
        for names, parts in self._new.items():
            known = [self._blocks[names]] if names in self._blocks else []
            self._blocks[names], left_out = _joined([*known, *parts])
            self.without_step = sorted([*self.without_step, *left_out])
        self._new.clear()
        return [block for block in self._blocks.values() if block.lines.size]

    def _take(self, lines: bytes) -> None:
        rows = _rows(lines)
        first_line = self.num_lines + 1
        self.num_lines += len(rows)
        if (uniform := _uniform_block(rows, first_line)) is not None:
            self._new[uniform.names].append(uniform)
            return
        by_layout: dict[_Layout, list[tuple[int, Row]]] = defaultdict(list)
        for line, row in enumerate(rows, first_line):
            if row is None:
                self.unreadable.append(line)
            elif "step" in row and "kind" not in row:
                by_layout[tuple(row)].append((line, row))
            else:
                self.others[line] = row
        for numbered in by_layout.values():
            lines_of = np.array([line for line, _ in numbered], np.int64)
            block = _block([row for _, row in numbered], lines_of)
            self._new[block.names].append(block)


def _rows(lines: bytes) -> list[Row | None]:
    """The row of each line, None for one that is not strict JSON with one object."""
    # The newline stays: as JSON allows none inside a text, no text can span two lines.
    joined = lines.replace(b"\n", b",\n")
    num_lines = 1 + len(joined) - len(lines)
    try:
        rows = orjson.loads(b"[" + joined + b"]")
    except ValueError:
        rows = []
    if len(rows) == num_lines and set(map(type, rows)) == {dict}:
        return list(rows)
    # One by one, as every other reader of records does it.
    return [row_of_line(line + b"\n") for line in lines.split(b"\n")]


def _uniform_block(rows: Sequence[Row | None], first_line: int) -> Block | None:
    """All rows as one block, where they have the same keys and are of steps; else None.

    So are nearly all rows of a record. Numbers that are missing show when they are picked, and only
    the other keys are looked for: to compare all keys of all rows takes an eighth of reading.
    """
    first = rows[0]
    readable = [row for row in rows if row is not None]
    if first is None or "step" not in first or "kind" in first or len(readable) < len(rows):
        return None
    others = first.keys() - set(_numeric_names(first))
    if any(len(row) != len(first) or not others <= row.keys() for row in readable):
        return None
    try:
        return _block(readable, np.arange(first_line, first_line + len(rows)))
    except KeyError:
        return None


def _block(rows: Sequence[Row], lines: Int[np.ndarray, " N"]) -> Block:
    names = _numeric_names(rows[0])
    picked = map(itemgetter(*names), rows) if len(names) > 1 else ((row["step"],) for row in rows)
    try:
        # Four times as fast as a list of lists; null and most texts are errors. A text like "7"
        # is not, so that steps are looked at before.
        if not set(map(type, map(itemgetter("step"), rows))) <= _NUMBERS:
            raise TypeError
        flat = np.fromiter(chain.from_iterable(picked), np.float64, count=len(names) * len(rows))
    except (TypeError, ValueError, OverflowError):
        flat = np.array([_number(row[name]) for row in rows for name in names], np.float64)
    return Block(names, flat.reshape(len(rows), len(names)).T, lines)


def _numeric_names(row: Row) -> _Layout:
    """The names of numbers in a row, each once: a short key says what its long name says."""
    twice = {short for name, short in SHORT_KEYS.items() if name in row}
    # The step and the attempt are among them, whatever they are.
    return tuple(
        name
        for name, value in row.items()
        if name in ("step", "attempt")
        or ((value is None or type(value) in _NUMBERS) and name not in twice)
    )


def _number(value: Any) -> float:
    try:
        return float(value) if type(value) in _NUMBERS else float("nan")
    except OverflowError:  # a whole number of more digits than a float can stand for
        return float("nan")


def _joined(blocks: Sequence[Block]) -> tuple[Block, list[int]]:
    """One block of all, each column in one piece, and the lines that are left out of it.

    Those have a step or an attempt that is no whole number, or that no run comes to. A time of no
    calendar is as good as none.
    """
    names, size = blocks[0].names, sum(block.lines.size for block in blocks)
    values, lines = np.empty((len(names), size)), np.empty(size, np.int64)
    end = 0
    for block in blocks:
        begin, end = end, end + block.lines.size
        values[:, begin:end], lines[begin:end] = block.values, block.lines
    counts = values[[names.index(name) for name in ("step", "attempt") if name in names]]
    is_row = np.all((np.abs(counts) < MAX_STEP) & (counts == np.floor(counts)), axis=0)  # not NaN
    if "time" in names:
        times = values[names.index("time")]
        times[np.abs(times) >= _MAX_TIME_S] = np.nan
    left_out = lines[~is_row].tolist()
    if left_out:
        values, lines = values[:, is_row], lines[is_row]
    values.flags.writeable = False  # columns are handed out as they are, not copied
    return Block(names, values, lines), left_out


def _in_one(parts: Sequence[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    """All parts in one; the part itself where there is one, since a copy of it costs time."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)


# --- The record of a run --------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One start of the run, as far as it is in the record."""

    number: int
    first_step: int | None  # that it did, whether logged or not; None: it logged no training
    last_step: int | None  # None: it logged no step
    first_time: float
    last_time: float  # of its own lines: late ones do not count
    outcome: str | None  # `finished`, the exception that ended it, or None: nothing told its end


@dataclass(frozen=True)
class Record:
    """What there is of a run at one moment."""

    folder: str
    config: Mapping[str, Any] | None
    blocks: Sequence[Block] = ()
    others: Mapping[int, Row] = field(default_factory=dict)  # not of a step, by line from 1
    problems: tuple[str, ...] = ()

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
        blocks = sorted(self.blocks, key=lambda block: int(block.lines[0]))
        found = dict.fromkeys(name for block in blocks for name in block.names)
        # A short key stays where it stands alone: its value would be nowhere else.
        shortened = {short for name, short in SHORT_KEYS.items() if name in found}
        return tuple(name for name in found if name not in shortened and name not in _LINE_KEYS)

    @cached_property
    def summary(self) -> Row:
        """Values of the whole run; where a name was logged again, the later one."""
        return summary_of(self.others.values())

    @property
    def artifacts(self) -> tuple[Row, ...]:
        """The lines that name files of the run."""
        return tuple(row for row in self.others.values() if row.get("kind") == "artifact")

    def logged(self, name: str) -> Series:
        """The metric in every row that has it, in the order of the file; of `step`, every row."""
        found = [block for block in self.blocks if name in block.names]
        rows = Series(
            _in_one([block.steps for block in found], np.int64),
            _in_one([block.column(name) for block in found], np.float64),
            _in_one([block.column("time") for block in found], np.float64),
            _in_one([block.attempts for block in found], np.int64),
            _in_one([block.lines for block in found], np.int64),
        )
        # Nearly all metrics are in rows of one layout, which are in order.
        return rows if len(found) < 2 else rows.at(np.argsort(rows.lines))

    def in_time(self, name: str) -> Series:
        """`logged`, without rows that came from elsewhere after their attempt: late evaluations."""
        return self._without_late(self.logged(name))

    def _without_late(self, rows: Series) -> Series:
        return rows.at(~np.isin(rows.lines, self._late_lines)) if self._late_lines.size else rows

    @cached_property
    def _rows(self) -> Series:
        """Every row: kept, since rows of several layouts take a while to put in order."""
        return self.logged("step")

    def series(self, name: str) -> Series:
        """The metric at each step, the newest attempt's value; empty where it was never logged.

        Where a newer attempt went back, what older ones logged from there on is not in it.
        """
        rows = self.logged(name)
        if self._superseded_lines.size:
            rows = rows.at(~np.isin(rows.lines, self._superseded_lines))
        if np.all(rows.steps[1:] > rows.steps[:-1]):
            return rows
        order = np.argsort(rows.steps, kind="stable")
        steps = rows.steps[order]
        # Of rows with one step the last in the file counts, as in `tracking.latest_rows`.
        return rows.at(order[np.append(steps[1:] != steps[:-1], True)])

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """The starts of the run, by number."""
        others = {n: row for n, row in self.others.items() if isinstance(row.get("attempt"), int)}
        rows, saves = self._without_late(self._rows), self.logged(metrics.CHECKPOINT_STEP)
        training = self.in_time(metrics.DURATION)
        if not training.lines.size:  # a foreign record may have losses alone, of unknown seconds
            training = self.in_time(metrics.TRAIN_LOSS)
            training = replace(training, values=np.full(training.lines.size, np.nan))
        numbers = set(np.unique(self._rows.attempts).tolist())
        numbers |= {row["attempt"] for row in others.values()}
        found: list[Attempt] = []
        for number in sorted(numbers):
            own = rows.at(rows.attempts == number)
            said = {line: row for line, row in others.items() if row["attempt"] == number}
            end = self._ends.get(number, np.inf)
            told = [row.get("time") for line, row in said.items() if line <= end]
            told = [t for t in told if isinstance(t, int | float) and abs(t) < _MAX_TIME_S]
            times = np.append(own.times, np.array(told, np.float64))
            times = times[np.isfinite(times)]
            outcome = summary_of(said.values()).get(metrics.RUN_OUTCOME)
            first_step = None
            if (trained := training.at(training.attempts == number)).steps.size:
                before = saves.values[saves.attempts < number]
                first_time = times.min(initial=np.inf)
                first_step = self._first_step(trained, before if found else None, first_time)
            found.append(
                Attempt(
                    number,
                    first_step,
                    int(own.steps.max()) if own.steps.size else None,
                    float(times.min()) if times.size else float("nan"),
                    float(times.max()) if times.size else float("nan"),
                    outcome if isinstance(outcome, str) else None,
                )
            )
        return tuple(found)

    def _first_step(
        self, trained: Series, saves: Float[np.ndarray, " M"] | None, first_time: float
    ) -> int:
        """The first step that an attempt did, from its rows; `saves`: where it may have gone on."""
        trained = trained.at(np.argsort(trained.steps, kind="stable"))  # lines may be out of order
        first, gaps = int(trained.steps[0]), np.diff(trained.steps)
        every = max(1, int(np.median(gaps))) if gaps.size else log_every_in(self.config)
        if saves is not None:
            # After the newest checkpoint that earlier attempts told of, if the row reaches back to
            # it: an attempt may be killed before it has told of its last one.
            reached = [int(save) for save in saves if save <= first]
            return max(0, first + 1 - every, *reached)
        # A record may begin in the middle of a run: then the steps before its first row would have
        # taken longer than there was time.
        needed_s, had_s = (first + 1) * trained.values[0], trained.times[0] - first_time
        return first + 1 - every if first + 1 > every and needed_s > had_s else 0

    @cached_property
    def _ends(self) -> dict[int, int]:
        """In which line each attempt told its outcome."""
        return {
            number if isinstance(number := row.get("attempt"), int) else 0: line
            for line, row in self.others.items()
            if row.get("kind") == "summary" and metrics.RUN_OUTCOME in row
        }

    @cached_property
    def _late_lines(self) -> Int[np.ndarray, " M"]:
        """Lines of steps that were written after their attempt: below its outcome in the file.

        Where no outcome is told, these are rows of a step that the attempt had passed and that say
        nothing of training. (A result of the very last step cannot be told from the attempt's own.)
        """
        rows = self._rows
        is_training = np.isin(rows.lines, self.logged(metrics.DURATION).lines)
        is_late = np.zeros(rows.lines.size, bool)
        for number in np.unique(rows.attempts).tolist():
            own = np.flatnonzero(rows.attempts == number)
            if number in self._ends:
                is_late[own] = rows.lines[own] > self._ends[number]
            else:
                is_passed = rows.steps[own] < np.maximum.accumulate(rows.steps[own])
                is_late[own] = is_passed & ~is_training[own]
        return rows.lines[is_late]

    @cached_property
    def _superseded_lines(self) -> Int[np.ndarray, " M"]:
        """Lines of older attempts that a newer one took the place of; few runs have any."""
        rows = self._rows
        is_passed = np.zeros(rows.lines.size, bool)
        for attempt in self.attempts[1:]:
            # One without training, which only repeats an evaluation, leaves all rows as they are.
            if attempt.first_step is not None:
                is_passed |= (rows.attempts < attempt.number) & (rows.steps >= attempt.first_step)
        if np.any(rows.attempts[1:] < rows.attempts[:-1]):  # below a newer one's row of that step
            newest: dict[int, int] = {}
            pairs = zip(rows.steps.tolist(), rows.attempts.tolist(), strict=True)
            for index, (step, number) in enumerate(pairs):
                is_passed[index] |= number < newest.get(step, number)
                newest[step] = max(number, newest.get(step, number))
        return rows.lines[is_passed]


def read_record(folder: str, *, has_begun: bool = True) -> Record:
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
    config, problem = read_config(run)
    problems = [] if problem is None else [problem]
    own = record_in(run, config or {})
    file = RecordFile(path if is_file else own)
    is_there = exists(file.path)
    if is_there:
        file.append()
    blocks = file.blocks()
    # Steps of the executor have some of the files of a run too.
    has_lines = blocks or any({"kind", "attempt"} & row.keys() for row in file.others.values())
    is_described = exists(join(run, RESOLVED_CONFIG)) or exists(join(run, ORIGINAL_CONFIG))
    is_run = file.path == own and (is_described or (is_there and not is_file))
    if has_begun and not (has_lines or is_run):
        raise _no_run(path)
    name = name_of(file.path)
    problems += damages_of(file)
    if file.is_torn:
        problems.append(
            f"the last line of {name} has no end and is left out: it is being written right now, "
            "or its writer was killed"
        )
    if not is_there:
        problems.append(f"there is no {name} yet: the run has not logged anything")
    elif not blocks:
        empty = "has no row of a step yet" if file.num_lines else "is empty: nothing was logged yet"
        problems.append(f"{name} {empty}")
    return Record(run, config, blocks, file.others, tuple(problems))


def read_config(run: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """The resolved config of a run folder, or None and why it is unknown."""
    place = join(run, RESOLVED_CONFIG)
    try:
        config = resolved_config(run)
    except StorageError as error:
        return None, f"{RESOLVED_CONFIG} cannot be read: {error}"
    if config:
        return config, None
    if not exists(place):
        return None, f"there is no {RESOLVED_CONFIG}: the run's config is unknown"
    held = read_text(place, max_bytes=MAX_TEXT_BYTES).strip()
    shown = held if len(held) <= _MAX_HELD else f"{held[:_MAX_HELD]}…"
    return None, f"{RESOLVED_CONFIG} holds {shown} and no settings: the run's config is unknown"


def damages_of(file: RecordFile) -> list[str]:
    """Which lines of a record were left out, and why, in words."""
    problems = []
    for why, lines in (
        ("unreadable", file.unreadable),
        ("the step or attempt is not a valid number", file.without_step),
    ):
        if lines:
            told = ", ".join(f"line {number}" for number in lines[:_MAX_LINES_NAMED])
            more = f" and {len(lines) - _MAX_LINES_NAMED:,} more"
            told += more if len(lines) > _MAX_LINES_NAMED else ""
            problems.append(f"left out of {name_of(file.path)}, because {why}: {told}")
    return problems


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
