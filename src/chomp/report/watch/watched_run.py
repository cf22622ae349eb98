"""What is known of a run while it is watched, kept up from its folder alone.

A look takes in what was appended to the record since the last one: only whole lines, and none
twice, unless the file is no longer the one that it was. A resumed run repeats steps: as in
`chomp.tracking.latest_rows`, the newest attempt's value counts. Memory grows with the metrics that
are drawn, 20 bytes a value, and not with the lines of the record.
"""

import math
import os
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float, Int

from chomp.errors import StorageError
from chomp.report.record import step_gone_on_from
from chomp.report.run_facts import is_killed
from chomp.storage import join, name_of, read_text
from chomp.storage.files import MAX_TEXT_BYTES, open_regular
from chomp.tracking import Row, metrics, redacted
from chomp.tracking.console import Pace
from chomp.tracking.record import NONFINITE_SUFFIX, row_of_line
from chomp.tracking.run_files import (
    FINISHED,
    RESOLVED_CONFIG,
    SAMPLE_MARK,
    SAMPLES,
    eval_prefix_in,
    held_out_prefix,
    log_every_in,
    record_in,
    resolved_config,
    section_in,
)

# Taken in one look: some thousand rows, in about 50 ms, so that a long record can be seen to load.
_BLOCK_BYTES = 4 << 20
# A run may be compiling, or saving: shorter silences say nothing.
_MIN_QUIET_S = 120.0
_QUIET_GAPS = 5  # as many times the usual time between lines
# A record may be damaged: numbers beyond these are none.
_LARGEST_COUNT = 1 << 31
_LARGEST_NUMBER = 1e300
_LATEST_S = 1e12
_LEAST_PROGRESS = 1e-12
_KEPT_EVALUATIONS = 2  # the last one, and the one that it is compared with


@dataclass(frozen=True)
class Look:
    """What one look at the file found."""

    rows: list[Row] = field(default_factory=list)
    is_anew: bool = False  # the rows begin a file again: what was known before is void
    has_more: bool = False  # another look will find more at once
    problem: str | None = None  # why nothing could be read


class FollowedFile:
    """A file that others append to. It need not be there yet, and may be cut or replaced."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.unreadable_lines = 0  # whole lines, but no JSON objects
        self.torn_bytes = 0  # after the last whole line, when last looked at
        self._offset = 0
        self._block_bytes = _BLOCK_BYTES
        # Where the last taken line still ends at the offset, the file is still the same.
        self._last_line = b""

    @property
    def has_begun(self) -> bool:
        """Whether a whole line was ever read from the file as it is now."""
        return self._offset > 0

    def look(self) -> Look:
        """The rows that were appended since the last look, at most a block of them."""
        try:
            with open(open_regular(str(self.path)), "rb") as file:
                is_anew = self.has_begun and not self._is_same(file)
                if is_anew:
                    self._forget()
                return self._taken(file, is_anew=is_anew)
        except FileNotFoundError:
            return Look(problem="it is gone" if self.has_begun else None)
        except OSError as error:  # a network drive may answer again at the next look
            return Look(problem=f"it cannot be read: {error.strerror or error}")

    def _is_same(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._last_line))
        return file.read(len(self._last_line)) == self._last_line

    def _forget(self) -> None:
        self._offset, self._last_line = 0, b""
        self.unreadable_lines = 0

    def _taken(self, file: BinaryIO, *, is_anew: bool) -> Look:
        file.seek(self._offset)
        block = file.read(self._block_bytes)
        size = os.fstat(file.fileno()).st_size
        whole = block.rfind(b"\n") + 1
        if not whole and len(block) == self._block_bytes:
            self._block_bytes *= 2  # a line longer than a block: the next look takes more
        # Not splitlines, which would also end a line at a lone carriage return.
        lines = [line + b"\n" for line in block[:whole].split(b"\n")[:-1]]
        self._offset += whole
        self._last_line = lines[-1] if lines else self._last_line
        found = [row for row in map(row_of_line, lines) if row is not None]
        self.unreadable_lines += len(lines) - len(found)
        has_more = self._offset + len(block) - whole < size
        self.torn_bytes = 0 if has_more else len(block) - whole
        return Look(rows=found, is_anew=is_anew, has_more=has_more)


# Axes: N values.


class GrowingSeries:
    """Steps and values, 20 bytes each; NaN where a value was not finite."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._values = array("d")
        self._attempts = array("i")

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, value: float, *, attempt: int) -> None:
        """Set the value of a step, unless a later attempt has set it already."""
        last = len(self._steps)
        is_next = not last or step > self._steps[-1]  # nearly always
        place = last if is_next else bisect_left(self._steps, step)
        if is_next or self._steps[place] != step:
            self._steps.insert(place, step)
            self._values.insert(place, value)
            self._attempts.insert(place, attempt)
        elif attempt >= self._attempts[place]:
            self._values[place], self._attempts[place] = value, attempt

    def forget_from(self, step: int, *, before_attempt: int) -> None:
        """Leave out what older attempts logged of `step` and of all after it."""
        first = bisect_left(self._steps, step)
        is_kept = [attempt >= before_attempt for attempt in self._attempts[first:]]
        self._steps[first:] = array("q", compress(self._steps[first:], is_kept))
        self._values[first:] = array("d", compress(self._values[first:], is_kept))
        self._attempts[first:] = array("i", compress(self._attempts[first:], is_kept))

    def since(self, step: int) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Copies of the steps from `step` on, and of their values."""
        first = bisect_left(self._steps, step)
        return np.array(self._steps[first:], np.int64), np.array(self._values[first:], np.float64)


@dataclass(frozen=True)
class Sample:
    """A text that the model wrote."""

    title: str
    prompt: str
    continuation: str


class WatchedRun:
    """A run folder under observation; `look` brings all of it up to date."""

    config: Mapping[str, Any]  # as the run resolved it; empty where it is not there
    attempt: int  # the newest; 0: none has written a line
    outcome: str | None  # how it ended, as it said itself
    is_killed: bool  # it said nothing, and its process is gone
    completed_steps: int | None  # as its last row says
    last_line_s: float | None  # when a line was last written, in seconds since 1970
    latest: Row  # the newest value of every name, summaries included
    series: dict[str, GrowingSeries]
    eval_loss: GrowingSeries  # of the averaged weights where only those are evaluated
    evaluations: list[Row]  # the last ones by step, all rows of a step put together
    resumes: list[tuple[int, int]]  # the first step of a later attempt, and its number
    sample: Sample | None
    _saves: list[int]  # the checkpoints that attempts before this one told of, in steps
    _own_saves: list[int]  # and this one
    _first_step: int | None  # of this attempt; None: it has logged no training
    _pace: Pace
    _step_s: float | None  # when the last step was logged
    _gap_s: float  # how long after the one before
    _total_steps: int | None
    _sample_name: str | None  # named by the record, not yet read

    def __init__(self, folder: str, *, drawn: Sequence[str]) -> None:
        """Keep every value of the metrics `drawn`, and the newest ones of all others."""
        self.folder = folder
        self._drawn = tuple(drawn)
        self._read_config()
        self._file = FollowedFile(record_in(folder, self.config))
        self._file_problem: str | None = None
        self.is_killed = False
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the record."""
        self.last_line_s = None
        self.latest = {}
        self.series = {name: GrowingSeries() for name in self._drawn}
        self.eval_loss = GrowingSeries()
        self.evaluations = []
        self.resumes = []
        self.sample = None
        self._sample_name = None
        self._gap_s = 0.0
        self._saves, self._own_saves = [], []
        self._begin_attempt(0)

    def look(self) -> bool:
        """Take in what was written since the last look; whether another look finds more at once."""
        found = self._file.look()
        if found.is_anew:
            self._forget()
        self._file_problem = found.problem
        for row in found.rows:
            self._take(row)
        if not self.config:  # the folder of a run that has just begun
            self._read_config()
            if not self._file.has_begun:
                self._file = FollowedFile(record_in(self.folder, self.config))
        if not found.has_more:
            self._read_sample()
        # After the lines: one that says how the run ended comes before its process does.
        self.is_killed = self.has_begun and self.outcome is None and is_killed(self.folder)
        return found.has_more

    @property
    def name(self) -> str:
        """The run's id, else the folder's name."""
        run_id = self.config.get("run_id")
        return run_id if isinstance(run_id, str) and run_id else name_of(self.folder)

    @property
    def record_name(self) -> str:
        """What the record is called in the folder."""
        return self._file.path.name

    @property
    def has_begun(self) -> bool:
        """Whether the run has written a line."""
        return self._file.has_begun

    @property
    def is_finished(self) -> bool:
        """Whether the newest attempt said that it reached its end."""
        return self.outcome == FINISHED

    @property
    def eval_prefix(self) -> str:
        """What the names of the run's evaluations begin with."""
        return eval_prefix_in(self.config)

    @property
    def total_steps(self) -> int | None:
        """How many steps the run is to take, by its own progress or else by its config."""
        if self._total_steps is not None:
            return self._total_steps
        steps = section_in(self.config, "trainer").get("steps")
        return steps if isinstance(steps, int) else None

    def silent_s(self, now_s: float) -> float | None:
        """Seconds since the last line; None where there is none."""
        return None if self.last_line_s is None else max(0.0, now_s - self.last_line_s)

    def is_quiet(self, now_s: float) -> bool:
        """Whether no line came for much longer than lines take to come in this run.

        All that tells of a process on another machine; on this one, see `is_killed`.
        """
        silent_s = self.silent_s(now_s)
        usual_s = max(_MIN_QUIET_S, _QUIET_GAPS * self._gap_s)
        return self.outcome is None and silent_s is not None and silent_s > usual_s

    def seconds_left(self, now_s: float) -> float | None:
        """Time to the last step by the pace of this attempt; None where it cannot be told yet."""
        total, done, pace_s = self.total_steps, self.completed_steps, self._pace.seconds_per_step
        if total is None or done is None or pace_s is None:
            return None
        if self.outcome is not None or self.is_killed or self.is_quiet(now_s):
            return None
        return max(0.0, (total - done) * pace_s - (self.silent_s(now_s) or 0.0))

    def problems(self, now_s: float) -> list[str]:
        """What is amiss with the record, in words."""
        told = [] if self._file_problem is None else [f"{self.record_name}: {self._file_problem}"]
        lines = self._file.unreadable_lines
        if lines:
            are = "line is no JSON object and was" if lines == 1 else "lines are no JSON and were"
            told.append(f"{self.record_name}: {lines} {are} left out")
        if self._file.torn_bytes and (self.is_killed or self.is_quiet(now_s)):
            told.append(f"{self.record_name} ends within a line, as a killed run leaves it")
        skipped = number_in(self.latest, metrics.SKIPPED_STEPS)
        if skipped is not None and skipped > 0:
            told.append(f"steps that were not finite and left out: {skipped:.0f}")
        return told + self._config_problems

    def _take(self, row: Row) -> None:
        number = _count_in(row, "attempt") or 0
        if number > self.attempt:
            self._begin_attempt(number)
        kind, step = row.get("kind"), _count_in(row, "step")
        if not self._is_late(row, step):
            self.last_line_s = max(filter(None, [self.last_line_s, _time_in(row)]), default=None)
        if kind == "artifact":
            self._note_artifact(row)
        elif number >= self.attempt:
            self.latest.update(row)
        if kind == "summary" and number == self.attempt:
            outcome = row.get(metrics.RUN_OUTCOME)
            self.outcome = outcome if isinstance(outcome, str) else self.outcome
        if kind is None and step is not None:
            self._take_step(row, step, number)

    def _is_late(self, row: Row, step: int | None) -> bool:
        """Whether a line is a result that came afterwards, and no sign of life."""
        if self.outcome is not None or step is None:
            return self.outcome is not None
        return step + 1 < (self.completed_steps or 0) and metrics.DURATION not in row

    def _take_step(self, row: Row, step: int, attempt: int) -> None:
        if metrics.DURATION in row or metrics.TRAIN_LOSS in row:
            self._take_training(step, attempt)
        is_older = attempt < self.attempt
        if is_older and self._first_step is not None and step >= self._first_step:
            return  # of a process that was forgotten: the run went another way
        if (save := _count_in(row, metrics.CHECKPOINT_STEP)) is not None:
            self._own_saves.append(save)
        for name, series in self.series.items():
            value = number_in(row, name)
            if value is not None:
                series.add(step, value, attempt=attempt)
        if any(name in row for name in self._eval_marks):
            self._take_evaluation(row, step, attempt)
        # Results that come afterwards are of an older step, and move nothing.
        if attempt == self.attempt and step >= (self.completed_steps or 0):
            self._move_to(row, step)

    def _take_training(self, step: int, attempt: int) -> None:
        """At an attempt's first row of training, forget the steps that it does again."""
        if attempt < self.attempt or self._first_step is not None:
            return
        self._first_step = 0
        if self.attempt > 1:
            first = step_gone_on_from(step, log_every_in(self.config), self._saves)
            self._first_step = first
            self.resumes.append((first, attempt))
            for series in (*self.series.values(), self.eval_loss):
                series.forget_from(first, before_attempt=attempt)
            self.evaluations = [
                known
                for known in self.evaluations
                if known["attempt"] == attempt or known["step"] < first
            ]

    def _move_to(self, row: Row, step: int) -> None:
        written_s = _time_in(row)
        if written_s is not None:
            self._gap_s = 0.0 if self._step_s is None else written_s - self._step_s
            self._step_s = written_s
            self._pace.observe(step + 1, written_s)
        self.completed_steps = step + 1
        progress = number_in(row, metrics.RUN_PROGRESS)
        if progress is not None and _LEAST_PROGRESS <= progress <= 1:
            self._total_steps = round((step + 1) / progress)

    def _take_evaluation(self, row: Row, step: int, attempt: int) -> None:
        loss = number_in(row, f"{held_out_prefix(self.eval_prefix, row)}/loss")
        if loss is not None:
            self.eval_loss.add(step, loss, attempt=attempt)
        if attempt < self.attempt:
            return
        # What a newer attempt has yet to come to again is no longer the last evaluation.
        kept = [
            known
            for known in self.evaluations
            if known["attempt"] == attempt or known["step"] < step
        ]
        same = next((known for known in kept if known["step"] == step), None)
        if same is None:
            kept.append({**row, "attempt": attempt})
        else:
            same.update(row)
        self.evaluations = sorted(kept, key=lambda each: each["step"])[-_KEPT_EVALUATIONS:]

    def _begin_attempt(self, number: int) -> None:
        self.attempt = number
        self.outcome = None
        self.completed_steps = None
        self._first_step = None
        self._saves, self._own_saves = [*self._saves, *self._own_saves], []
        self._total_steps = None
        self._step_s = None
        self._pace = Pace(0)  # asked for its pace alone: the total is told by the rows
        if number > 1:
            self._read_config()

    def _note_artifact(self, row: Row) -> None:
        path = row.get("path")
        if row.get("artifact_kind") == "sample" and isinstance(path, str):
            # By its name alone: the folder may have been moved, and no line leads out of it.
            self._sample_name = os.path.basename(path)

    def _read_sample(self) -> None:
        if self._sample_name is None:
            return
        try:
            text = redacted(
                read_text(join(self.folder, SAMPLES, self._sample_name), max_bytes=MAX_TEXT_BYTES)
            )
        except StorageError:
            return  # named in the record, but not here (yet): the one before stays
        title = self._sample_name.removesuffix(".txt").replace("-", " ")
        prompt, mark, continuation = text.partition(SAMPLE_MARK)
        self.sample = Sample(title, prompt, mark + continuation)
        self._sample_name = None

    def _read_config(self) -> None:
        self._config_problems: list[str] = []
        try:
            self.config = resolved_config(self.folder)
        except StorageError as error:
            self.config = {}
            self._config_problems = [f"{RESOLVED_CONFIG} cannot be read: {error}"]
        of_models = (self.eval_prefix, f"{self.eval_prefix}/ema")
        self._eval_marks = [
            f"{prefix}/{name}" for prefix in of_models for name in ("tokens", "loss")
        ]


def number_in(row: Mapping[str, Any], name: str) -> float | None:
    """The value of a metric in a row, NaN where it was not finite; None where it has no number."""
    value = row.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < _LARGEST_NUMBER else math.nan
    return math.nan if value is None and name + NONFINITE_SUFFIX in row else None


def _count_in(row: Row, name: str) -> int | None:
    """A step or an attempt; None where a row has none that can be."""
    value = row.get(name)
    return value if type(value) is int and 0 <= value < _LARGEST_COUNT else None


def _time_in(row: Row) -> float | None:
    """When a row was written, in seconds since 1970."""
    written_s = number_in(row, "time")
    return written_s if written_s is not None and 0 <= written_s < _LATEST_S else None
