"""Differences between paired runs, and what can be said from so few of them.

Seed i gives one run of the base and one of the variant, on the same data in the same order. What
they share cancels in the difference d_i = variant_i - base_i, so the statistics are of the d_i
alone: their mean, Student's interval around it, and the probability of such a mean were there no
difference. Nothing here knows what the numbers are.
"""

# ruff: noqa: PLC0415
# scipy takes a quarter of a second to import, and `chomp --help` must answer at once.

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chomp.config import Config
from chomp.errors import require

CONFIDENCE = 0.95
POWER = 0.8
# More pairs than anybody runs: beyond, the answer is "too many".
MOST_SEEDS = 1000
# 2^16 sign patterns take a twentieth of a second.
MOST_FLIPPED = 16


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
        """A difference in percent of what the base has on average."""
        return 100.0 * difference / abs(self.base_mean) if self.base_mean else math.nan


def paired_statistics(
    base: Sequence[float], variant: Sequence[float], *, confidence: float = CONFIDENCE
) -> PairedStatistics:
    """The statistics of `variant` minus `base`, pair by pair."""
    require(
        len(base) == len(variant) > 0 and all(map(math.isfinite, (*base, *variant))),
        given=f"{len(base)} values and {len(variant)} to pair with them: {[*base, *variant]}",
        allowed="as many finite values on both sides, and at least one",
        fix="leave out pairs of which one has no value",
    )
    require(
        0.5 <= confidence < 1,
        given=f"confidence={confidence}",
        allowed="a probability from 0.5 to below 1, such as 0.95",
        fix="leave it out for 0.95",
    )
    differences = tuple(after - before for before, after in zip(base, variant, strict=True))
    count, mean = len(differences), math.fsum(differences) / len(differences)
    deviation = error = low = high = t = p = effect = None
    if count > 1:
        squares = math.fsum((one - mean) ** 2 for one in differences)
        deviation = math.sqrt(squares / (count - 1))
        error = deviation / math.sqrt(count)
        half = error * t_quantile(count - 1, (1 + confidence) / 2)
        low, high = mean - half, mean + half
        if error > 0:
            t, effect = mean / error, mean / deviation
            p = min(1.0, 2 * t_tail(count - 1, abs(t)))
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

    Where there is no difference each d_i might as well have had the other sign, whatever its
    distribution. Never below 2 / 2^n, so five pairs cannot reach 0.05. None for very many pairs.
    """
    if len(differences) > MOST_FLIPPED:
        return None
    import numpy

    sums = numpy.zeros(1)
    for one in differences:
        sums = numpy.concatenate([sums + one, sums - one])
    # The signs that were seen count too, though rounding may put them a digit off.
    seen = abs(math.fsum(differences)) - 1e-9 * math.fsum(map(abs, differences))
    return float(numpy.mean(numpy.abs(sums) >= seen))


def power_of(count: int, standardized: float, *, alpha: float = 1 - CONFIDENCE) -> float:
    """How likely a paired t test of `count` pairs finds a true mean of that many deviations.

    Of the noncentral t distribution, both sides.
    """
    freedom = count - 1
    shift = min(abs(standardized) * math.sqrt(count), _CERTAIN)
    limit = t_quantile(freedom, 1 - alpha / 2)
    wrong_side = _noncentral_below(freedom, shift, -limit)
    return 1.0 - _noncentral_below(freedom, shift, limit) + wrong_side


def seeds_needed(
    deviation: float, effect: float, *, power: float = POWER, alpha: float = 1 - CONFIDENCE
) -> int | None:
    """The fewest pairs that find a true difference of `effect` with this power.

    `deviation` is that of the differences; None where it takes more than `MOST_SEEDS`.
    """
    if deviation == 0:
        return 2 if effect else None
    standardized = abs(effect) / deviation

    def is_enough(count: int) -> bool:
        return power_of(count, standardized, alpha=alpha) >= power

    return _first_true(is_enough, 2, MOST_SEEDS)


def detectable_effect(
    deviation: float, count: int, *, power: float = POWER, alpha: float = 1 - CONFIDENCE
) -> float:
    """The smallest true difference that `count` pairs find with this power."""
    low, high = 0.0, 1.0
    while power_of(count, high, alpha=alpha) < power:
        low, high = high, 2 * high
    for _ in itertools.repeat(None, 40):  # to 12 digits
        middle = (low + high) / 2
        is_found = power_of(count, middle, alpha=alpha) >= power
        low, high = (low, middle) if is_found else (middle, high)
    return high * deviation


def t_quantile(freedom: int, probability: float) -> float:
    """The value below which Student's t lies with that probability."""
    from scipy import special

    return float(special.stdtrit(freedom, probability))


def t_tail(freedom: int, value: float) -> float:
    """How likely Student's t lies above a value."""
    from scipy import special

    # Of the other tail, which keeps its digits where 1 - x would lose them.
    return float(special.stdtr(freedom, -value))


def _noncentral_below(freedom: int, shift: float, value: float) -> float:
    from scipy import special

    below = float(special.nctdtr(freedom, shift, value))
    # Far out, scipy 1.17 gives NaN for some of what is below 1e-40.
    return 0.0 if math.isnan(below) else below


# A noncentrality at which the power is 1 to a dozen digits, even with one degree of freedom.
_CERTAIN = 100.0


def _first_true(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The first whole number in the range from which on `holds`; None: it never does."""
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
