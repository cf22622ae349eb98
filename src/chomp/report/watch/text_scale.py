"""Axes of a drawing in text: where a value lies between the ends, and which round values are told.

Every value that a scale was made of lies on it: nothing is cut off to make the rest look better.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

# Larger than any metric that means something; sums of very many still fit a float.
LARGEST_DRAWN = 1e100
# Above this ratio of the largest to the smallest, equal steps would flatten all but the largest.
_LOG_RATIO = 100.0
_ROUND = (1.0, 2.0, 5.0, 10.0)
# The suffixes of `chomp.tracking.console.compact`.
_SUFFIXES = ("", "k", "M", "G", "T")


@dataclass(frozen=True)
class Scale:
    """The values from `low` to `high`, which lie at 0 and 1; in between by logarithm or not."""

    low: float
    high: float
    is_log: bool = False

    def places(self, values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Where the values lie, from 0 to 1; a value outside of the scale at its nearer end."""
        low, high = self._shown(np.array([self.low, self.high]))
        within = np.clip(values, self.low, self.high)
        return np.clip((self._shown(within) - low) / (high - low), 0.0, 1.0)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values on the scale, ascending."""
        if self.is_log:
            ticks = _round_powers(self.low, self.high)
            return ticks[:: max(1, math.ceil(len(ticks) / max(1, count)))]
        # One tick alone says where a value lies, but not how far apart values are.
        ticks = self._even_ticks(count)
        return ticks if len(ticks) > 1 else self._even_ticks(2 * count)

    def _even_ticks(self, count: int) -> list[float]:
        step = _round_step((self.high - self.low) / max(1, count))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [number * step for number in range(first, last + 1)]

    def _shown(self, values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        return np.log(values) if self.is_log else values


def scale_of(values: Float[np.ndarray, " N"]) -> Scale:
    """The scale on which all of the values lie: logarithmic where they differ a hundredfold.

    The values are finite and at most `LARGEST_DRAWN`. Without any, or where all are the same, there
    is room around them.
    """
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * max(size, 1e-290):
        room = 0.05 * size if size > 1e-290 else 1.0
        return Scale(low - room, high + room)
    return Scale(low, high, is_log=low > 1e-290 and high / low >= _LOG_RATIO)


def tick_labels(ticks: list[float]) -> list[str]:
    """The ticks in words, with as many digits as tell them apart: 2.5, 120k, 3e-04."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest >= _LOG_RATIO * min(ticks, default=0.0) > 0:
        return [f"{tick:g}" for tick in ticks]
    gap = min((b - a for a, b in pairwise(ticks)), default=largest) or 1.0
    if largest != 0 and not 1e-3 <= largest < 1e15:
        digits = min(8, max(0, _exponent(largest) - _exponent(gap)))
        return [f"{tick:.{digits}e}" if tick else "0" for tick in ticks]
    thousands = min(len(_SUFFIXES) - 1, _exponent(largest) // 3 if largest >= 1e4 else 0)
    unit = 1000.0**thousands
    digits = min(8, max(0, -_exponent(gap / unit)))
    suffix = _SUFFIXES[thousands]
    return [f"{tick / unit:.{digits}f}{suffix}" if tick else "0" for tick in ticks]


def _round_step(at_least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below."""
    power = 10.0 ** _exponent(at_least)
    return next(power * factor for factor in _ROUND if power * factor >= at_least * (1 - 1e-9))


def _round_powers(low: float, high: float) -> list[float]:
    """The powers of ten from low to high; twice and five times them too where they are few."""
    exponents = range(_exponent(low), _exponent(high) + 1)
    factors = _ROUND[:3] if len(exponents) <= 3 else _ROUND[:1]
    found = [10.0**exponent * factor for exponent in exponents for factor in factors]
    return [value for value in found if low <= value <= high]


def _exponent(value: float) -> int:
    # A hair more, since 1000 may come as 999.9999999999999.
    return math.floor(math.log10(value * (1 + 1e-12)))
