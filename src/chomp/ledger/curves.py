"""A metric of a run as a function of what was spent: tokens, FLOPs or seconds.

Seconds are those of steps and of waiting for batches, each step counted once: what the change
itself costs. Compiling, evaluation, checkpoints and logging are left out, as a short run would
measure little else and their share is a matter of settings; so are pauses between attempts.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from chomp.report.record import RunRecord, Series
from chomp.tracking import metrics

# Axes: N points of a curve.

Budget = Literal["tokens", "flops", "time"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
UNITS: dict[Budget, str] = {"tokens": "tokens", "flops": "FLOPs", "time": "seconds"}

# A training loss is of one batch; the mean over this share of the budget, up to its end, is taken.
SMOOTHED_SHARE = 0.05
_NOISY = "train/"
# So many rows of it have to be finite where one is not: a step that was skipped is no divergence.
_FEW = 3
# Spent amounts that are equal but for the digits of a sum.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Curve:
    """Values of a metric in the order of what had been spent by then; NaN: not finite."""

    spent: Float[np.ndarray, " N"]
    progress: Float[np.ndarray, " N"]  # share of the run's steps that were done
    values: Float[np.ndarray, " N"]
    is_noisy: bool

    @property
    def reach(self) -> float:
        """The largest budget at which it has a value; 0 where it has none."""
        return float(self.spent[-1]) if self.spent.size else 0.0

    def value_at(self, budget: float) -> float | None:
        """The value once `budget` was spent; None outside of the curve, NaN if it was not finite.

        Between two points a loss is close to a line in the logarithm of what was spent.
        """
        if not self._holds(budget):
            return None
        at = min(max(budget, float(self.spent[0])), self.reach)
        if self.is_noisy:
            near = self._near(at)
            finite = near[np.isfinite(near)]
            if near.size:
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
        """The values that a mean up to `at` is of."""
        return self.values[(self.spent > (1 - SMOOTHED_SHARE) * at) & (self.spent <= at)]

    def _holds(self, budget: float) -> bool:
        if not self.spent.size:
            return False
        slack = _ROUNDING * budget
        return float(self.spent[0]) - slack <= budget <= self.reach + slack


def curve_of(record: RunRecord, metric: str, budget: Budget) -> Curve:
    """The metric over what was spent; empty where the record lacks either."""
    series = record.series(metric)
    spent = spent_by(record, budget)
    if not series.steps.size or not spent.steps.size:
        nothing = np.empty(0)
        return Curve(nothing, nothing, nothing, metric.startswith(_NOISY))
    # Before the first step nothing is spent; between rows, steps cost the same.
    before = _step_before(record, spent) if budget == "time" else -1
    knots, sums = np.append(before, spent.steps), np.append(0.0, spent.values)
    amounts = np.interp(series.steps, knots, sums)
    done = (series.steps + 1) / _total_steps(record)
    is_spent = amounts > 0
    return Curve(
        amounts[is_spent], done[is_spent], series.values[is_spent], metric.startswith(_NOISY)
    )


def spent_by(record: RunRecord, budget: Budget) -> Series:
    """What had been spent after each logged step: tokens, FLOPs or seconds."""
    if budget == "tokens":
        return _finite(record.series(metrics.TOTAL_TOKENS))
    if budget == "flops":
        found = record.series(metrics.TOTAL_GFLOPS)
        return _finite(Series(found.steps, 1e9 * found.values, found.times))
    each = _finite(record.series(metrics.DURATION))
    waited = record.series(metrics.LOADING_TIME)
    loading = dict(zip(waited.steps.tolist(), waited.values.tolist(), strict=True))
    # A row tells the time of one step, and all the waiting since the row before.
    steps_done = np.diff(each.steps, prepend=_step_before(record, each))
    seconds = each.values * steps_done
    seconds += np.nan_to_num(np.array([loading.get(step, 0.0) for step in each.steps.tolist()]))
    return Series(each.steps, np.cumsum(seconds), each.times)


def _finite(series: Series) -> Series:
    kept = np.isfinite(series.values)
    return Series(series.steps[kept], series.values[kept], series.times[kept])


def _step_before(record: RunRecord, series: Series) -> int:
    """The step before the first of this run: -1, or later where it began at a checkpoint.

    Its own steps are those of one row then, as nothing tells at which it was begun.
    """
    if not series.steps.size:
        return -1
    every = (record.config or {}).get("trainer", {}).get("log_every")
    if not isinstance(every, int) or every < 1:
        every = int(np.diff(series.steps).min(initial=series.steps[0] + 1))
    return max(-1, int(series.steps[0]) - every)


def _total_steps(record: RunRecord) -> int:
    """The steps that the run was to take, by its config; else those that it took."""
    steps = (record.config or {}).get("trainer", {}).get("steps")
    if isinstance(steps, int) and steps > 0:
        return steps
    return max((attempt.last_step or 0) + 1 for attempt in record.attempts)
