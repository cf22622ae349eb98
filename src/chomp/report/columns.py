"""The lines of a record as columns of numbers, quickly, and packed for a page.

A record may hold 100,000 lines of a kilobyte, and a page ten of them. Two things make that seconds:
lines are parsed a block at a time by orjson (a fifth of the time of `json.loads`, three quarters of
that of pydantic's parser), and lines with equal keys become one matrix, since a run logs the same
names step after step. Nothing is raised for a line that cannot be read: it is counted. A page's
JSON holds arrays as base64 of little-endian bytes, a quarter of their digits.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import IO, Any

import numpy as np
import orjson
from jaxtyping import Bool, Float, Int

from chomp.tracking import Row
from chomp.tracking.metrics import SHORT_KEYS
from chomp.tracking.record import MAX_STEP, row_of_line

# Axes: N rows or numbers, M some of them, K columns.

# The largest that a 32-bit float can be. What lies beyond is drawn there: as infinity it would be
# drawn nowhere.
LARGEST = float(np.finfo(np.float32).max)
# What a block leaves behind, a hundred dicts, should still be in the processor's cache when it is
# turned into numbers: blocks eight times as long take a third longer.
_BLOCK_BYTES = 1 << 17
# The year 10000, after which no calendar of a computer has a date.
MAX_TIME_S = 253402300800.0
_Layout = tuple[str, ...]
_NUMBERS = {int, float}


def packed_steps(steps: Int[np.ndarray, " N"]) -> str:
    """The steps as 32-bit integers."""
    return base64.b64encode(steps.astype("<i4").tobytes()).decode()


def packed_values(values: Float[np.ndarray, " N"]) -> str:
    """The values as 32-bit floats: seven digits, which is more than a screen can show.

    Each is finite, `LARGEST` at most, or NaN.
    """
    return base64.b64encode(np.clip(values, -LARGEST, LARGEST).astype("<f4").tobytes()).decode()


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
        return self.values[self.names.index(name)]

    @cached_property
    def steps(self) -> Int[np.ndarray, " N"]:
        """The step of each row."""
        return self.column("step").astype(np.int64)

    @cached_property
    def attempts(self) -> Int[np.ndarray, " N"]:
        """The attempt that each row is of; 0 where it does not say."""
        return self.column("attempt", 0.0).astype(np.int64)


@dataclass(frozen=True)
class Logged:
    """One metric as the file has it: every attempt's rows, in the order they were written."""

    attempts: Int[np.ndarray, " N"]
    steps: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]  # NaN where the value was not finite
    times: Float[np.ndarray, " N"]  # seconds since 1970
    lines: Int[np.ndarray, " N"]  # from 1

    def at(self, chosen: Int[np.ndarray, " M"] | Bool[np.ndarray, " N"]) -> "Logged":
        """Some of the rows, by their indexes or by whether each is one of them."""
        return Logged(
            self.attempts[chosen],
            self.steps[chosen],
            self.values[chosen],
            self.times[chosen],
            self.lines[chosen],
        )


@dataclass(frozen=True)
class Columns:
    """All that is in the lines of a record."""

    blocks: tuple[Block, ...]
    others: tuple[Row, ...]  # lines that are not of a step, in order: summaries, artifacts
    other_lines: tuple[int, ...]  # the number of each of them, from 1
    unreadable: tuple[int, ...]  # numbers of the lines that are no JSON object, from 1
    without_step: tuple[int, ...]  # of rows left out: the step or the attempt is none of a run
    is_torn: bool  # whether the last line has no end: it is being written, or its writer was killed
    num_lines: int  # whole lines

    def logged(self, name: str) -> Logged:
        """Every row that has the metric; of `step`, every row there is."""
        found = [block for block in self.blocks if name in block.names]
        rows = Logged(
            _in_one([block.attempts for block in found], np.int64),
            _in_one([block.steps for block in found], np.int64),
            _in_one([block.column(name) for block in found], np.float64),
            _in_one([block.column("time") for block in found], np.float64),
            _in_one([block.lines for block in found], np.int64),
        )
        # Nearly all metrics are in rows of one layout, which are in order.
        return rows if len(found) < 2 else rows.at(np.argsort(rows.lines))


def read_columns(file: IO[bytes]) -> Columns:
    """The columns of an open metrics file, which is read to its end."""
    parts: dict[_Layout, list[Block]] = {}
    others: dict[int, Row] = {}
    unreadable: list[int] = []
    first_line = 1
    lines = _LineBlocks(file)
    for block_lines in lines:
        rows = _rows(block_lines)
        if (uniform := _uniform_block(rows, first_line)) is not None:
            parts.setdefault(uniform.names, []).append(uniform)
            first_line += len(rows)
            continue
        for layout, indexes in _indexes_by_layout(rows).items():
            numbers = np.array(indexes, np.int64) + first_line
            if layout is None:
                unreadable += numbers.tolist()
            elif "step" in layout and "kind" not in layout:
                block = _block(_at(rows, indexes), numbers)
                parts.setdefault(block.names, []).append(block)
            else:
                others |= zip(numbers.tolist(), _at(rows, indexes), strict=True)
        first_line += len(rows)
    joined = list(map(_joined, parts.values()))
    return Columns(
        blocks=tuple(block for block, _ in joined if block.lines.size),
        # A block's lines were taken layout by layout.
        others=tuple(others[number] for number in sorted(others)),
        other_lines=tuple(sorted(others)),
        unreadable=tuple(unreadable),
        without_step=tuple(sorted(chain.from_iterable(left_out for _, left_out in joined))),
        is_torn=lines.is_torn,
        num_lines=first_line - 1,
    )


class _LineBlocks:
    """Blocks of whole lines, each without its last newline."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.is_torn = False  # known at the end: whether something follows the last newline

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while read := self._file.read(_BLOCK_BYTES):
            lines, newline, rest = (rest + read).rpartition(b"\n")
            if newline:  # else the line is longer than a block
                yield lines
        self.is_torn = bool(rest)


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


def _indexes_by_layout(rows: Sequence[Row | None]) -> dict[_Layout | None, Sequence[int]]:
    """Where the rows with each set of keys are; None stands for lines that could not be read."""
    found: dict[_Layout | None, list[int]] = {}
    for index, row in enumerate(rows):
        found.setdefault(None if row is None else tuple(row), []).append(index)
    return {**found}


def _at(rows: Sequence[Row | None], indexes: Sequence[int]) -> list[Row]:
    return [row for index in indexes if (row := rows[index]) is not None]


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
        if name in ("step", "attempt") or (_is_number_or_null(value) and name not in twice)
    )


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
        times[np.abs(times) >= MAX_TIME_S] = np.nan
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


def _is_number_or_null(value: Any) -> bool:
    return value is None or type(value) in _NUMBERS


def _number(value: Any) -> float:
    try:
        return float(value) if type(value) in _NUMBERS else float("nan")
    except OverflowError:  # a whole number of more digits than a float can stand for
        return float("nan")
