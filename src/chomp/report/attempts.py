"""The starts of a run, as far as its record tells: when each ran, and which steps it did.

Two things in a record belong to no attempt's time. Results that come afterwards (`chomp eval`) are
rows of the last attempt, days later perhaps: they are late. And what an attempt logged beyond the
step where a later one went on from is abandoned: those steps were done again, or will be.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from chomp.report.columns import MAX_TIME_S, Columns, Logged
from chomp.tracking import Row, metrics, summary_of

# Axes: N rows.


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
