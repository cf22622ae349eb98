"""A metric of a run as a function of what was spent, and how far the run's schedule had come.

Seconds are those of steps and of waiting for batches, each step counted once: what the change
itself costs. Compiling, evaluation, checkpoints and logging are left out, because a short run would
measure little else; so are pauses between attempts.

A learning rate that falls takes the loss down with it at the end of a schedule. A run that is read
before its end, against one that is read at its end, would lose by that alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from chomp.report.record import Record, Series
from chomp.tracking import metrics

# Axes: N points of a curve.

Budget = Literal["tokens", "flops", "time"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
UNITS: dict[Budget, str] = {"tokens": "tokens", "flops": "FLOPs", "time": "seconds"}
# By pair: the share of its own steps that the base had done, and the variant.
Progress = Sequence[tuple[float, float]]

# A training loss is of one batch; the mean over this share of the budget, up to its end, is taken.
SMOOTHED_SHARE = 0.05
_NOISY = "train/"
# At least so many finite rows make a mean if some are not finite, as after a skipped step.
_FEW = 3
_ROUNDING = 1e-6  # of sums of what was spent
_SLACK = 0.02  # schedules this close to each other count as equal


@dataclass(frozen=True)
class Curve:
    """Values of a metric in the order of what had been spent by then; NaN: not finite."""

    spent: Float[np.ndarray, " N"]
    progress: Float[np.ndarray, " N"]  # share of the run's steps that were done
    values: Float[np.ndarray, " N"]
    is_noisy: bool

    @property
    def reach(self) -> float:
        """The largest budget at which it has a value; 0 if it has none."""
        return float(self.spent[-1]) if self.spent.size else 0.0

    def value_at(self, budget: float) -> float | None:
        """The value once `budget` was spent; None outside of the curve, NaN if it was not finite.

        Between two points a loss is close to a line in the logarithm of what was spent.
        """
        slack = _ROUNDING * budget
        if not self.spent.size or not self.spent[0] - slack <= budget <= self.reach + slack:
            return None
        at = min(max(budget, float(self.spent[0])), self.reach)
        near = self._near(at)
        if self.is_noisy and near.size:
            finite = near[np.isfinite(near)]
            return float(np.mean(finite if finite.size >= _FEW else near))
        return float(np.interp(np.log(at), np.log(self.spent), self.values))

    def left_out_at(self, budget: float) -> int:
        """How many values that are not finite the mean there leaves out."""
        near = self._near(min(budget, self.reach))
        count = int(np.count_nonzero(~np.isfinite(near)))
        return count if self.is_noisy and near.size - count >= _FEW else 0

    def progress_at(self, budget: float) -> float:
        """The share of the run's steps that were done by then."""
        return float(np.interp(budget, self.spent, self.progress))

    def _near(self, at: float) -> Float[np.ndarray, " N"]:
        return self.values[(self.spent > (1 - SMOOTHED_SHARE) * at) & (self.spent <= at)]


def curve_of(record: Record, metric: str, budget: Budget) -> Curve:
    """The metric over what was spent; empty if the record lacks either."""
    series, spent = record.series(metric), _spent_by(record, budget)
    is_noisy = metric.startswith(_NOISY)
    if not series.steps.size or not spent.steps.size:
        nothing = np.empty(0)
        return Curve(nothing, nothing, nothing, is_noisy)
    # Before the first step nothing is spent; between rows, steps cost the same.
    before = _step_before(record, spent) if budget == "time" else -1
    knots, sums = np.append(before, spent.steps), np.append(0.0, spent.values)
    amounts = np.interp(series.steps, knots, sums)
    total = (record.config or {}).get("trainer", {}).get("steps")
    if not isinstance(total, int) or total < 1:
        total = max((attempt.last_step or 0) + 1 for attempt in record.attempts)
    done = (series.steps + 1) / total
    is_spent = amounts > 0
    return Curve(amounts[is_spent], done[is_spent], series.values[is_spent], is_noisy)


def _spent_by(record: Record, budget: Budget) -> Series:
    """What had been spent after each logged step: tokens, FLOPs or seconds."""
    if budget == "tokens":
        return _finite(record.series(metrics.TOTAL_TOKENS))
    if budget == "flops":
        found = record.series(metrics.TOTAL_GFLOPS)
        return _finite(replace(found, values=1e9 * found.values))
    each = _finite(record.series(metrics.DURATION))
    waited = record.series(metrics.LOADING_TIME)
    loading = dict(zip(waited.steps.tolist(), waited.values.tolist(), strict=True))
    # A row has the time of one step, and all the waiting since the row before.
    steps_done = np.diff(each.steps, prepend=_step_before(record, each))
    seconds = each.values * steps_done
    seconds += np.nan_to_num(np.array([loading.get(step, 0.0) for step in each.steps.tolist()]))
    return replace(each, values=np.cumsum(seconds))


def _finite(series: Series) -> Series:
    return series.at(np.isfinite(series.values))


def _step_before(record: Record, series: Series) -> int:
    """The step before the first of this run: -1, or later if it started at a checkpoint.

    Its first row is then taken for a whole interval of logging: nothing records where it started.
    """
    if not series.steps.size:
        return -1
    every = (record.config or {}).get("trainer", {}).get("log_every")
    if not isinstance(every, int) or every < 1:
        every = int(np.diff(series.steps).min(initial=series.steps[0] + 1))
    return max(-1, int(series.steps[0]) - every)


def mean_progress(progress: Progress) -> tuple[float, float]:
    """The share that the base had done, and the variant, over all pairs; all without pairs."""
    if not progress:
        return 1.0, 1.0
    base, variant = (math.fsum(side) / len(progress) for side in zip(*progress, strict=True))
    return base, variant


def are_apart(progress: Progress) -> bool:
    """Whether the two sides are at different places of their schedules, on average."""
    base, variant = mean_progress(progress)
    return abs(base - variant) > _SLACK


def why_undecided(budget: Budget, progress: Progress) -> str | None:
    """Why a difference there is not the change's alone, and what to do; None if it may be."""
    if not are_apart(progress):
        return None
    base, variant = (
        f"{100 * share:.0f} %" if share < 0.995 else "all" for share in mean_progress(progress)
    )
    return (
        f"the base had done {base} of its schedule there, the variant {variant} of it, and a "
        "learning rate that falls makes a difference by itself; train both for as many "
        f"{UNITS[budget]}"
    )


def progress_notes(budget: Budget, progress: Progress) -> list[str]:
    """Whether runs are read before their end, when a falling learning rate is not down yet."""
    leads = [base - variant for base, variant in progress]
    widest = max(map(abs, leads))
    if widest <= _SLACK:
        return []
    unit = UNITS[budget]
    if min(leads) < -_SLACK and max(leads) > _SLACK:
        return [
            f"at equal {unit} the two runs of a pair are up to {100 * widest:.0f} % of their "
            "schedule apart, now one ahead and now the other: their speed varied"
        ]
    behind, other = ("base", "variant") if max(leads) <= _SLACK else ("variant", "base")
    far, near = (f"{100 * share:.0f} %" for share in sorted(mean_progress(progress)))
    return [f"at equal {unit} the {behind} is {far} through its schedule and the {other} {near}"]
