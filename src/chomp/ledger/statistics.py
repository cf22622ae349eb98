"""Differences between paired runs, what so few of them can say, and how many seeds a test takes.

Seed i gives one run of the base and one of the variant, on the same data in the same order. What
they share cancels in the difference d_i = variant_i - base_i, so the statistics are of the d_i
alone: their mean, Student's interval around it, and the probability of such a mean if there were no
difference.

How many seeds it takes depends on how much differences vary by chance, which a few pairs measure
badly: after two of them the true deviation is more than three times the measured one in one case of
four. So every power is an average over what the measured deviation s of n pairs leaves open,
sigma^2 = s^2 (n - 1) / chi^2 with n - 1 degrees of freedom, and exact if the deviation is known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy import special

from chomp.config import Config
from chomp.errors import require

# Axes: C chances, each as likely as any other.

# The one alpha: the p that better or worse takes, and 1 - the confidence of intervals. Of 1,000
# changes that do nothing at most 50 are to be called something, in nearly every such thousand and
# not on average: at 0.05 there are more in 46 of 100 thousands, at 0.035 in 0.6 (binomial, more
# than 50 of 1,000; 0.036 is the last with less than one in 100).
LEVEL = 0.035
CONFIDENCE = 1 - LEVEL
POWER = 0.8
MOST_FLIPPED = 16  # pairs; 2^16 sign patterns take a twentieth of a second
MOST_SEEDS = 1000  # beyond, the answer is "too many"
# The middles of so many equal parts of what may be: 2,000 change an average by less than 0.001.
_CHANCES = (np.arange(101) + 0.5) / 101
# A noncentrality at which the power is 1 to seven digits, even with one degree of freedom.
_CERTAIN = 100.0


@dataclass(frozen=True, kw_only=True)
class PairedStatistics(Config):
    """What n paired differences say. None: n is too small to say it, or nothing varies."""

    differences: tuple[float, ...]
    base_mean: float
    mean: float
    deviation: float | None  # standard deviation of the differences; None for one pair
    error: float | None  # standard error of their mean
    low: float | None  # Student's interval around the mean
    high: float | None
    t: float | None
    p: float | None  # two-sided, paired t test
    sign_flip_p: float | None  # two-sided, exact; needs no normal distribution
    effect: float | None  # d_z: the mean in standard deviations of the differences
    confidence: float

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return len(self.differences)

    def percent(self, difference: float) -> float:
        """A difference in percent of the base's mean."""
        return 100.0 * difference / abs(self.base_mean) if self.base_mean else math.nan


def paired_statistics(
    base: Sequence[float], variant: Sequence[float], *, confidence: float = CONFIDENCE
) -> PairedStatistics:
    """The statistics of `variant` minus `base`, pair by pair.

    Test and interval are those of `scipy.stats.ttest_rel`, which takes 50 times as long and warns
    about equal values.
    """
    require(
        len(base) == len(variant) > 0 and all(map(math.isfinite, (*base, *variant))),
        f"{len(base)} values and {len(variant)} to pair with them: {[*base, *variant]}",
        allowed="the same number of finite values on both sides, at least one",
        fix="remove pairs in which one side has no value",
    )
    require(
        0.5 <= confidence < 1,
        f"confidence={confidence}",
        allowed="a probability of at least 0.5 and below 1, such as 0.95",
        fix=f"remove it for the default, {CONFIDENCE:g}",
    )
    differences = tuple(after - before for before, after in zip(base, variant, strict=True))
    count, mean = len(differences), math.fsum(differences) / len(differences)
    deviation = error = low = high = t = p = effect = None
    if count > 1:
        squares = math.fsum((one - mean) ** 2 for one in differences)
        deviation = math.sqrt(squares / (count - 1))
        error = deviation / math.sqrt(count)
        half = error * float(special.stdtrit(count - 1, (1 + confidence) / 2))
        low, high = mean - half, mean + half
        if error > 0:
            t, effect = mean / error, mean / deviation
            p = min(1.0, 2 * float(special.stdtr(count - 1, -abs(t))))
    return PairedStatistics(
        differences=differences,
        base_mean=math.fsum(base) / count,
        mean=mean,
        deviation=deviation,
        error=error,
        low=low,
        high=high,
        t=t,
        p=p,
        sign_flip_p=sign_flip_p(differences),
        effect=effect,
        confidence=confidence,
    )


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """The share of all 2^n choices of signs whose mean is at least as far from 0; two-sided.

    Without a difference each d_i could as well have the other sign, whatever its distribution.
    Never below 2 / 2^n, so five pairs cannot reach 0.05. None for more than `MOST_FLIPPED` pairs.
    """
    if len(differences) > MOST_FLIPPED:
        return None
    sums = np.zeros(1)
    for one in differences:
        sums = np.concatenate([sums + one, sums - one])
    # The observed signs count too, though rounding may put them a digit off.
    seen = abs(math.fsum(differences)) - 1e-9 * math.fsum(map(abs, differences))
    return float(np.mean(np.abs(sums) >= seen))


def power_of(
    count: int,
    effect: float,
    *,
    deviation: float = 1.0,
    pilot: int | None = None,
    level: float = LEVEL,
) -> float:
    """The probability that a paired t test of `count` pairs finds a true difference of `effect`.

    `pilot`: how many pairs the deviation was measured on; None: it is known. Both sides count.
    """
    freedom = count - 1
    shift = abs(effect) / _true_deviations(deviation, pilot) * math.sqrt(count)
    shift = np.minimum(shift, _CERTAIN)
    limit = special.stdtrit(freedom, 1 - level / 2)
    # Far out, scipy 1.17 gives NaN for some values below 1e-40.
    below, wrong_side = (
        np.nan_to_num(special.nctdtr(freedom, shift, at)) for at in (limit, -limit)
    )
    return float(np.mean(1.0 - below + wrong_side))


def seeds_needed(
    deviation: float,
    effect: float,
    *,
    pilot: int | None = None,
    power: float = POWER,
    level: float = LEVEL,
) -> int | None:
    """The fewest pairs that find a true difference of `effect` with this power.

    `deviation` is that of the differences. None if it takes more than `MOST_SEEDS`.
    """
    if deviation == 0:
        return 2 if effect else None
    return _fewest_pairs(
        lambda n: power_of(n, effect, deviation=deviation, pilot=pilot, level=level) >= power
    )


def seeds_to_show_none(
    deviation: float,
    limit: float,
    *,
    pilot: int | None = None,
    power: float = POWER,
    confidence: float = CONFIDENCE,
) -> int | None:
    """The fewest pairs whose interval is all within `limit` of 0, if there is no difference.

    None if it takes more than `MOST_SEEDS`, for example if only equality would do.
    """
    deviations = _true_deviations(deviation, pilot)[:, None]

    def is_enough(count: int) -> bool:
        # The mean is normal; the interval's width is an independent chi.
        widths = np.sqrt(_chi_square(count - 1) / (count - 1))
        reach = special.stdtrit(count - 1, (1 + confidence) / 2) * widths
        room = np.maximum(limit * math.sqrt(count) / deviations - reach, 0.0)
        return float(np.mean(2 * special.ndtr(room) - 1)) >= power

    return _fewest_pairs(is_enough)


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
    for _ in range(40):  # to 12 digits
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


def _fewest_pairs(is_enough: Callable[[int], bool]) -> int | None:
    """The smallest number of pairs that is enough; None if `MOST_SEEDS` are not."""
    low = high = 2
    while not is_enough(high):  # small ones first: they are the usual answer, and cost less
        if high == MOST_SEEDS:
            return None
        low, high = high + 1, min(2 * high, MOST_SEEDS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low
