"""How a run went on in time: what a step is in tokens, FLOPs and seconds, and where time went."""

from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from chomp.report.curves import LARGEST, pack_steps, pack_values
from chomp.report.record import Record, Series
from chomp.tracking import metrics
from chomp.tracking.run_files import EMA, FINISHED, PIECE_FINISHED, eval_prefix_in

# Axes: N rows, M of them that are kept.

# Between two of these a page draws straight lines: for tokens and FLOPs that is exact, and for
# time a pause shorter than a 300th of the run is smeared over that.
_KNOTS = 300
_AFTER = "after the last row"


def axes(record: Record) -> dict[str, Any]:
    """Steps, and what each is on the other axes, at a few knots; null for an axis it lacks.

    They reach to the last step of any row: an evaluation may come between two rows of training.
    """
    rows, seconds = _rows_in_time(record)
    knots = np.empty(0, np.int64)
    if rows.steps.size:  # evenly spread, with both sides of every resume
        spread = np.linspace(0, rows.steps.size - 1, min(_KNOTS, rows.steps.size)).round()
        turns = np.flatnonzero(np.diff(rows.attempts))
        knots = np.unique(np.concatenate([spread.astype(np.int64), turns, turns + 1]))
    steps = rows.steps[knots]
    last = record.series("step").steps[-1:]
    reached = np.append(steps, last[last > steps[-1:]]) if steps.size else steps
    tokens, gflops = record.series(metrics.TOTAL_TOKENS), record.series(metrics.TOTAL_GFLOPS)
    return {
        "step": pack_steps(reached),
        "tokens": _on_axis(tokens.steps, tokens.values, reached, 1.0),
        "flops": _on_axis(gflops.steps, gflops.values, reached, 1e9),
        "seconds": _on_axis(steps, seconds[knots], reached, 1.0),
    }


def trained_seconds(record: Record) -> float:
    """Seconds trained until the last row; 0 where there is none."""
    _, seconds = _rows_in_time(record)
    return float(seconds[-1]) if seconds.size and np.isfinite(seconds[-1]) else 0.0


def resumes(record: Record) -> list[dict[str, Any]]:
    """Where each later attempt begins to count, and what happened there."""
    found = []
    for before, after in pairwise(record.attempts):
        if after.first_step is None:
            continue
        parts = []
        pause = after.first_time - before.last_time
        if np.isfinite(pause):
            told = {None: "was cut off", FINISHED: "finished", PIECE_FINISHED: "finished its piece"}
            ended = told.get(before.outcome, f"ended with {before.outcome}")
            parts.append(f"{duration_text(max(0.0, pause))} after attempt {before.number} {ended}")
        if before.last_step is not None and before.last_step >= after.first_step:
            repeated = before.last_step + 1 - after.first_step
            parts.append(f"{count_text(repeated, 'step is', 'steps are')} done again")
        note = ", ".join(parts)
        found.append({"step": after.first_step, "attempt": after.number, "note": note})
    return found


def paused_seconds(record: Record) -> float:
    """Seconds between attempts, in which nothing ran."""
    gaps = (after.first_time - before.last_time for before, after in pairwise(record.attempts))
    return sum(max(0.0, gap) for gap in gaps if np.isfinite(gap))


def waterfall(record: Record) -> list[dict[str, Any]]:
    """Seconds of each kind over all attempts, steps that were done twice included.

    They sum to the wall clock of the attempts, from first line to last. What follows the last row
    of training (a last sample, a last checkpoint) no row accounts for, so it is a kind of its own,
    but for evaluations, which tell their time. `other` is what remains: setting up before the first
    step, and whatever else no line tells of.
    """
    wall = sum(attempt.last_time - attempt.first_time for attempt in record.attempts)
    if not np.isfinite(wall) or not record.blocks:
        return []
    prefix = eval_prefix_in(record.config)
    names = (f"{prefix}/total_time", f"{prefix}/{EMA}/total_time", metrics.LM_EVAL_TOTAL_TIME)
    evals = [_once_in_time(record, name) for name in names]
    # The seconds per step times the steps of each row.
    durations = _once_in_time(record, metrics.DURATION, is_within=False)
    counts, after_s = np.zeros(durations.steps.size), 0.0
    training = record.in_time(metrics.DURATION)
    for attempt in record.attempts:
        is_own = durations.attempts == attempt.number
        if attempt.first_step is not None:
            counts[is_own] = np.diff(durations.steps[is_own], prepend=attempt.first_step - 1)
        ends = training.times[training.attempts == attempt.number]
        if np.isfinite(ends).any():
            end = float(np.nanmax(ends))
            told = (
                _sum(rows.values[(rows.attempts == attempt.number) & (rows.times > end)])
                for rows in evals
            )
            after_s += max(0.0, attempt.last_time - end - sum(told))
    with np.errstate(over="ignore", invalid="ignore"):
        spent = durations.values * counts

    def total(name: str) -> float:
        return _sum(_once_in_time(record, name).values)

    seconds = {
        "step": _sum(spent[_is_within(record, durations)]),
        "loading": total(metrics.LOADING_TIME),
        "hooks": total(metrics.HOOK_TIME),
        "eval": sum(_sum(rows.values) for rows in evals),
        "checkpoint": total(metrics.CHECKPOINT_TIME),
        "compile": total(metrics.COMPILE_TIME),
        _AFTER: after_s,
    }
    seconds["other"] = max(0.0, wall - sum(seconds.values()))
    return [
        # JSON has no infinity, which times that are no times may sum to, and no time is negative.
        {"label": label, "seconds": round(min(max(value, 0.0), LARGEST), 6)}
        for label, value in seconds.items()
        if label != _AFTER or round(value, 3)
    ]


def _rows_in_time(record: Record) -> tuple[Series, Float[np.ndarray, " N"]]:
    """A row for each step that was logged, and the seconds trained until then.

    Every row counts from the line before it in its attempt, the first from the attempt's beginning,
    before it compiles. So neither pauses between attempts nor steps that were done again count.
    """
    # Either is on every row that a loop logs; a foreign record may have only the loss, or neither.
    wanted = (metrics.DURATION, metrics.TRAIN_LOSS, *record.names)
    name = next((name for name in wanted if name in record.names), metrics.DURATION)
    rows, every = record.series(name), record.logged(name)
    seconds = np.zeros(rows.steps.size)
    for attempt in record.attempts:
        is_own = rows.attempts == attempt.number
        times = np.sort(every.times[every.attempts == attempt.number])
        ends = rows.times[is_own]
        begins = np.concatenate([[attempt.first_time], times])[np.searchsorted(times, ends)]
        seconds[is_own] = np.maximum(ends - begins, 0.0)
    return rows, np.cumsum(seconds)


def _on_axis(
    known: Int[np.ndarray, " N"],
    spent: Float[np.ndarray, " N"],
    steps: Int[np.ndarray, " M"],
    unit: float,
) -> str | None:
    """What was spent by each step; past the last row it goes on as before it."""
    is_there = np.abs(spent) <= LARGEST / unit  # what is larger, or no number, is no place
    if not is_there.any():
        return None
    known, spent = known[is_there], spent[is_there]
    values = np.interp(steps, known, spent)
    if known.size > 1:
        pace = (spent[-1] - spent[-2]) / (known[-1] - known[-2])
        values += np.maximum(steps - known[-1], 0) * pace
    return pack_values(values * unit)


def _once_in_time(record: Record, name: str, *, is_within: bool = True) -> Series:
    """The rows of a metric in its attempts' time: by attempt, then by step, and each step once.

    A line that is in the file twice tells of its time once. `is_within`: only of time within the
    wall clock of its attempt.
    """
    rows = record.in_time(name)
    later, on = np.diff(rows.attempts), np.diff(rows.steps)
    if not np.all((later > 0) | ((later == 0) & (on > 0))):  # as they are in nearly all records
        rows = rows.at(np.lexsort((rows.lines, rows.steps, rows.attempts)))
        is_next = (np.diff(rows.attempts) > 0) | (np.diff(rows.steps) > 0)
        rows = rows.at(np.append(is_next, True))
    return rows.at(_is_within(record, rows)) if is_within else rows


def _is_within(record: Record, rows: Series) -> Bool[np.ndarray, " N"]:
    """Whether the time that each row tells of is within the wall clock of its attempt.

    Where a row is the first line of all, as in a record that begins in the middle of a run, what
    it tells of was before.
    """
    numbers = [attempt.number for attempt in record.attempts]
    starts = np.array([attempt.first_time for attempt in record.attempts])
    return rows.times > starts[np.searchsorted(numbers, rows.attempts)]


def _sum(values: Float[np.ndarray, " N"]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.nansum(values))


def count_text(number: int, one: str, more: str) -> str:
    """A number with what it counts: `1 step`, `1,200 steps`."""
    return f"{number:,} {one if number == 1 else more}"


def duration_text(seconds: float) -> str:
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
