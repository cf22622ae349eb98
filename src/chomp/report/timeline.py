"""How a run went on in time: what a step is in tokens, FLOPs and seconds, and where time went."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from chomp.report.columns import LARGEST, Logged, packed_steps, packed_values
from chomp.report.record import Attempt, RunRecord, Series
from chomp.tracking import metrics
from chomp.tracking.run_files import FINISHED, PIECE_FINISHED, eval_prefix_in

# Axes: N rows, M of them that are kept.

# Between two of these a page draws straight lines: for tokens and FLOPs that is exact, and for
# time a pause shorter than a 300th of the run is smeared over that.
_KNOTS = 300
# Any of them is on every row that a loop logs; a foreign record may have only the loss.
_ROWS = (metrics.DURATION, metrics.TRAIN_LOSS)
_PHASES = {
    "loading": metrics.LOADING_TIME,
    "hooks": metrics.HOOK_TIME,
    "checkpoint": metrics.CHECKPOINT_TIME,
    "compile": metrics.COMPILE_TIME,
}
_AFTER = "after the last row"


def axes(record: RunRecord) -> dict[str, Any]:
    """Steps, and what each is on the other axes, at a few knots; null for an axis it lacks.

    They reach to the last step of any row: an evaluation may come between two rows of training.
    """
    rows, seconds = _rows_in_time(record)
    knots = _knots(rows)
    steps = rows.steps[knots]
    last = record.newest("step").steps[-1:]
    reached = np.append(steps, last[last > steps[-1:]]) if steps.size else steps
    return {
        "step": packed_steps(reached),
        "tokens": _on_axis(record.series(metrics.TOTAL_TOKENS), reached, 1.0),
        "flops": _on_axis(record.series(metrics.TOTAL_GFLOPS), reached, 1e9),
        "seconds": _on_axis(Series(steps, seconds[knots], seconds[knots]), reached, 1.0),
    }


def trained_seconds(record: RunRecord) -> float:
    """Seconds trained until the last row; 0 where there is none."""
    _, seconds = _rows_in_time(record)
    return float(seconds[-1]) if seconds.size and np.isfinite(seconds[-1]) else 0.0


def resumes(record: RunRecord) -> list[dict[str, Any]]:
    """Where each later attempt begins to count, and what happened there."""
    found = []
    for before, after in pairwise(record.attempts):
        if after.first_step is None:
            continue
        found.append(
            {
                "step": after.first_step,
                "attempt": after.number,
                "note": _resume_note(before, after),
            }
        )
    return found


def paused_seconds(record: RunRecord) -> float:
    """Seconds between attempts, in which nothing ran."""
    gaps = (after.first_time - before.last_time for before, after in pairwise(record.attempts))
    return sum(max(0.0, gap) for gap in gaps if np.isfinite(gap))


def waterfall(record: RunRecord) -> list[dict[str, Any]]:
    """Seconds of each kind over all attempts, steps that were done twice included.

    They sum to the wall clock of the attempts, from first line to last. What follows the last row
    of training (a last sample, a last checkpoint) no row accounts for, so it is a kind of its own,
    but for evaluations, which tell their time. `other` is what remains: setting up before the first
    step, and whatever else no line tells of.
    """
    wall = sum(attempt.last_time - attempt.first_time for attempt in record.attempts)
    if not np.isfinite(wall) or not record.columns.blocks:
        return []
    seconds = {"step": _step_seconds(record)}
    seconds |= {label: _sum(_within(record, name)) for label, name in _PHASES.items()}
    evals = [_within(record, name) for name in _eval_times(record)]
    seconds["eval"] = sum(map(_sum, evals))
    seconds[_AFTER] = _seconds_after(record, evals)
    seconds["other"] = max(0.0, wall - sum(seconds.values()))
    order = ("step", "loading", "hooks", "eval", "checkpoint", "compile", _AFTER, "other")
    return [
        # JSON has no infinity, which times that are no times may sum to, and no time is negative.
        {"label": label, "seconds": round(min(max(seconds[label], 0.0), LARGEST), 6)}
        for label in order
        if label != _AFTER or round(seconds[label], 3)
    ]


def _rows_in_time(record: RunRecord) -> tuple[Logged, Float[np.ndarray, " N"]]:
    """A row for each step that was logged, and the seconds trained until then.

    Every row counts from the line before it in its attempt, the first from the attempt's beginning,
    before it compiles. So neither pauses between attempts nor steps that were done again count.
    """
    name = next(
        (name for name in (*_ROWS, *record.names) if name in record.names), metrics.DURATION
    )
    rows, every = record.newest(name), record.logged(name)
    seconds = np.zeros(rows.steps.size)
    for attempt in record.attempts:
        is_own = rows.attempts == attempt.number
        times = np.sort(every.times[every.attempts == attempt.number])
        ends = rows.times[is_own]
        begins = np.concatenate([[attempt.first_time], times])[np.searchsorted(times, ends)]
        seconds[is_own] = np.maximum(ends - begins, 0.0)
    return rows, np.cumsum(seconds)


def _knots(rows: Logged) -> Int[np.ndarray, " M"]:
    """Indexes of rows, evenly spread, with both sides of every resume."""
    if not rows.steps.size:
        return np.empty(0, np.int64)
    spread = np.linspace(0, rows.steps.size - 1, min(_KNOTS, rows.steps.size)).round()
    turns = np.flatnonzero(np.diff(rows.attempts))
    return np.unique(np.concatenate([spread.astype(np.int64), turns, turns + 1]))


def _on_axis(series: Series, steps: Int[np.ndarray, " M"], unit: float) -> str | None:
    """What was spent by each step; past the last row it goes on as before it."""
    is_there = np.abs(series.values) <= LARGEST / unit  # what is larger, or no number, is no place
    if not is_there.any():
        return None
    known, spent = series.steps[is_there], series.values[is_there]
    values = np.interp(steps, known, spent)
    if known.size > 1:
        pace = (spent[-1] - spent[-2]) / (known[-1] - known[-2])
        values += np.maximum(steps - known[-1], 0) * pace
    return packed_values(values * unit)


def _eval_times(record: RunRecord) -> tuple[str, ...]:
    prefix = eval_prefix_in(record.config)
    return f"{prefix}/total_time", f"{prefix}/ema/total_time", metrics.LM_EVAL_TOTAL_TIME


def _told(record: RunRecord, name: str) -> Logged:
    """The rows of a metric in its attempts' time: by attempt, then by step, and each step once.

    A line that is in the file twice tells of its time once.
    """
    rows = record.in_time(name)
    later, on = np.diff(rows.attempts), np.diff(rows.steps)
    if not np.all((later > 0) | ((later == 0) & (on > 0))):  # as they are in nearly all records
        rows = rows.at(np.lexsort((rows.lines, rows.steps, rows.attempts)))
        is_next = (np.diff(rows.attempts) > 0) | (np.diff(rows.steps) > 0)
        rows = rows.at(np.append(is_next, True))
    return rows


def _within(record: RunRecord, name: str) -> Logged:
    rows = _told(record, name)
    return rows.at(_is_within(record, rows))


def _sum(rows: Logged) -> float:
    with np.errstate(over="ignore"):
        return float(np.nansum(rows.values))


def _step_seconds(record: RunRecord) -> float:
    """Seconds per step times the steps of each row."""
    rows = _told(record, metrics.DURATION)
    counts = np.zeros(rows.steps.size)
    for attempt in record.attempts:
        if attempt.first_step is not None:
            is_own = rows.attempts == attempt.number
            counts[is_own] = np.diff(rows.steps[is_own], prepend=attempt.first_step - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.nansum((rows.values * counts)[_is_within(record, rows)]))


def _seconds_after(record: RunRecord, evals: Sequence[Logged]) -> float:
    """Seconds from the last row of training of each attempt to its last line, without `evals`."""
    training = record.in_time(metrics.DURATION)
    seconds = 0.0
    for attempt in record.attempts:
        ends = training.times[training.attempts == attempt.number]
        if not np.isfinite(ends).any():
            continue
        end = float(np.nanmax(ends))
        own = (rows.at((rows.attempts == attempt.number) & (rows.times > end)) for rows in evals)
        seconds += max(0.0, attempt.last_time - end - sum(map(_sum, own)))
    return seconds


def _is_within(record: RunRecord, rows: Logged) -> Bool[np.ndarray, " N"]:
    """Whether the time that each row tells of is within the wall clock of its attempt.

    Where a row is the first line of all, as in a record that begins in the middle of a run, what
    it tells of was before.
    """
    numbers = [attempt.number for attempt in record.attempts]
    starts = np.array([attempt.first_time for attempt in record.attempts])
    return rows.times > starts[np.searchsorted(numbers, rows.attempts)]


def _resume_note(before: Attempt, after: Attempt) -> str:
    parts = []
    pause = after.first_time - before.last_time
    if np.isfinite(pause):
        ended = f"attempt {before.number} {_ending(before)}"
        parts.append(f"{told_seconds(max(0.0, pause))} after {ended}")
    if before.last_step is not None and after.first_step is not None:
        repeated = before.last_step + 1 - after.first_step
        if repeated > 0:
            parts.append(f"{counted(repeated, 'step is', 'steps are')} done again")
    return ", ".join(parts)


def _ending(attempt: Attempt) -> str:
    if attempt.outcome is None:
        return "was cut off"
    if attempt.outcome in (FINISHED, PIECE_FINISHED):
        return "finished" if attempt.outcome == FINISHED else "finished its piece"
    return f"ended with {attempt.outcome}"


def counted(number: int, one: str, more: str) -> str:
    """A number with what it counts: `1 step`, `1,200 steps`."""
    return f"{number:,} {one if number == 1 else more}"


def told_seconds(seconds: float) -> str:
    """A length of time for people: `45 s`, `12 min 30 s`, `3 h 05 min`, `2 d 4 h`."""
    whole = round(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
