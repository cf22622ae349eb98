"""How many seeds a test takes: to find a difference, or to show that there is none.

That depends on how much differences vary by chance, which a few pairs tell badly: after two of them
the true deviation is more than three times the measured one in one case of four. So every number
is of an average over what the measured deviation s of n pairs leaves open, sigma^2 = s^2 (n - 1) /
chi^2 with n - 1 degrees of freedom, and exact where the deviation is known.
"""

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy import special

from chomp.ledger.statistics import CONFIDENCE, LEVEL, t_quantile

# Axes: C chances, each as likely as any other.

POWER = 0.8
# More pairs than anybody runs: beyond, the answer is "too many".
MOST_SEEDS = 1000
# The middles of so many equal parts of what may be: 2,000 change an average by less than 0.001.
_CHANCES = (np.arange(101) + 0.5) / 101
# A noncentrality at which the power is 1 to seven digits, even with one degree of freedom.
_CERTAIN = 100.0


def power_of(
    count: int,
    effect: float,
    *,
    deviation: float = 1.0,
    pilot: int | None = None,
    level: float = LEVEL,
) -> float:
    """How likely a paired t test of `count` pairs finds a true mean difference of `effect`.

    `pilot`: how many pairs the deviation was measured on; None: it is known. Both sides count.
    """
    freedom = count - 1
    shift = abs(effect) / _true_deviations(deviation, pilot) * math.sqrt(count)
    shift = np.minimum(shift, _CERTAIN)
    limit = t_quantile(freedom, 1 - level / 2)
    wrong_side = _noncentral_below(freedom, shift, -limit)
    return float(np.mean(1.0 - _noncentral_below(freedom, shift, limit) + wrong_side))


def seeds_needed(
    deviation: float,
    effect: float,
    *,
    pilot: int | None = None,
    power: float = POWER,
    level: float = LEVEL,
) -> int | None:
    """The fewest pairs that find a true difference of `effect` with this power.

    `deviation` is that of the differences; None where it takes more than `MOST_SEEDS`.
    """
    if deviation == 0:
        return 2 if effect else None

    def is_enough(count: int) -> bool:
        return power_of(count, effect, deviation=deviation, pilot=pilot, level=level) >= power

    return _first_true(is_enough, 2, MOST_SEEDS)


def seeds_to_show_none(
    deviation: float,
    limit: float,
    *,
    pilot: int | None = None,
    power: float = POWER,
    confidence: float = CONFIDENCE,
) -> int | None:
    """The fewest pairs whose interval is all within `limit` of 0, if there is no difference.

    None where it takes more than `MOST_SEEDS`, as where only equality would do.
    """
    deviations = _true_deviations(deviation, pilot)[:, None]

    def is_enough(count: int) -> bool:
        # The mean is normal, the interval's width by itself a chi.
        widths = np.sqrt(_chi_square(count - 1) / (count - 1))
        reach = t_quantile(count - 1, (1 + confidence) / 2) * widths
        room = np.maximum(limit * math.sqrt(count) / deviations - reach, 0.0)
        return float(np.mean(2 * special.ndtr(room) - 1)) >= power

    return _first_true(is_enough, 2, MOST_SEEDS)


@cache
def detectable_effect(
    count: int, *, pilot: int | None = None, power: float = POWER, level: float = LEVEL
) -> float:
    """The smallest true difference that `count` pairs find with this power, in deviations."""

    def is_found(effect: float) -> bool:
        return power_of(count, effect, pilot=pilot, level=level) >= power

    low, high = 0.0, 1.0
    while not is_found(high):
        low, high = high, 2 * high
    for _ in itertools.repeat(None, 40):  # to 12 digits
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _true_deviations(deviation: float, pilot: int | None) -> Float[np.ndarray, " C"]:
    """What the true deviation may be after one was measured, each value as likely."""
    if pilot is None:
        return np.array([deviation])
    return deviation * np.sqrt((pilot - 1) / _chi_square(pilot - 1))


def _chi_square(freedom: int) -> Float[np.ndarray, " C"]:
    return np.asarray(special.chdtri(freedom, _CHANCES))


def _noncentral_below(
    freedom: int, shift: Float[np.ndarray, " C"], value: float
) -> Float[np.ndarray, " C"]:
    # Far out, scipy 1.17 gives NaN for some of what is below 1e-40.
    return np.nan_to_num(special.nctdtr(freedom, shift, value))


def _first_true(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The first whole number in the range from which on `holds`; None: it never does."""
    end = low
    while not holds(end):  # small ones first: they are the usual answer, and cost less
        if end == high:
            return None
        low, end = end + 1, min(2 * end, high)
    while low < end:
        middle = (low + end) // 2
        low, end = (low, middle) if holds(middle) else (middle + 1, end)
    return low
