"""The values of one metric so far: each step once, in order, added one at a time.

A resumed run repeats steps. As in `chomp.tracking.latest_rows`, the newest attempt's value counts;
what older attempts logged from the step on where a newer one went on is forgotten.
"""

from array import array
from bisect import bisect_left
from itertools import compress

import numpy as np
from jaxtyping import Float, Int

# Axes: N values.


class GrowingSeries:
    """Steps and values, 20 bytes each; NaN where a value was not finite."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._values = array("d")
        self._attempts = array("i")

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, value: float, *, attempt: int) -> None:
        """Set the value of a step, unless a later attempt has set it already."""
        last = len(self._steps)
        is_next = not last or step > self._steps[-1]  # nearly always
        place = last if is_next else bisect_left(self._steps, step)
        if is_next or self._steps[place] != step:
            self._steps.insert(place, step)
            self._values.insert(place, value)
            self._attempts.insert(place, attempt)
        elif attempt >= self._attempts[place]:
            self._values[place], self._attempts[place] = value, attempt

    def forget_from(self, step: int, *, before_attempt: int) -> None:
        """Leave out what older attempts logged of `step` and of all after it."""
        first = bisect_left(self._steps, step)
        is_kept = [attempt >= before_attempt for attempt in self._attempts[first:]]
        self._steps[first:] = array("q", compress(self._steps[first:], is_kept))
        self._values[first:] = array("d", compress(self._values[first:], is_kept))
        self._attempts[first:] = array("i", compress(self._attempts[first:], is_kept))

    def since(self, step: int) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Copies of the steps from `step` on, and of their values."""
        first = bisect_left(self._steps, step)
        return np.array(self._steps[first:], np.int64), np.array(self._values[first:], np.float64)
