"""Differences between paired runs, and what can be said from so few of them.

Seed i gives one run of the base and one of the variant, on the same data in the same order. What
they share cancels in the difference d_i = variant_i - base_i, so the statistics are of the d_i
alone: their mean, Student's interval around it, and the probability of such a mean were there no
difference. Nothing here knows what the numbers are.
"""

# ruff: noqa: PLC0415
# scipy takes a quarter of a second to import, and `chomp --help` must answer at once.

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chomp.config import Config
from chomp.errors import require

# Of the intervals that are shown.
CONFIDENCE = 0.95
# The p that better or worse takes. Of 1,000 changes that do nothing at most 50 are to be called so,
# in nearly every such thousand and not on average: at 0.05 there are more in 46 of 100 thousands,
# at 0.035 in 0.6 (binomial, more than 50 of 1,000; 0.036 is the last with less than one in 100).
LEVEL = 0.035
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
        f"{len(base)} values and {len(variant)} to pair with them: {[*base, *variant]}",
        allowed="the same number of finite values on both sides, at least one",
        fix="remove pairs in which one side has no value",
    )
    require(
        0.5 <= confidence < 1,
        f"confidence={confidence}",
        allowed="a probability of at least 0.5 and below 1, such as 0.95",
        fix="remove it for the default, 0.95",
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


def t_quantile(freedom: int, probability: float) -> float:
    """The value below which Student's t lies with that probability."""
    from scipy import special

    return float(special.stdtrit(freedom, probability))


def t_tail(freedom: int, value: float) -> float:
    """How likely Student's t lies above a value."""
    from scipy import special

    # Of the other tail, which keeps its digits where 1 - x would lose them.
    return float(special.stdtr(freedom, -value))
