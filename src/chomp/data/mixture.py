"""Which component the n-th example comes from: exact proportions, no state.

Component i with share p wants its j-th example (from 0) at time (2j + 1) / (2p); examples are
served in the order of those times, ties by the order of names. So after n examples every component
has had its share of n to within a constant, and the count before any n is found by bisection.
All arithmetic is on whole numbers: no rounding, no drift, at any n.
"""

import heapq
import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from jaxtyping import Int

from chomp.errors import DataError, message


class Mixture:
    """Component and position of every example, from weights alone."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        are_valid = all(math.isfinite(weight) and weight >= 0 for weight in weights.values())
        if not are_valid or not any(weights.values()):
            raise DataError(
                message(
                    given=f"mixture weights {dict(weights)}",
                    allowed="finite weights of 0 or more, at least one above 0",
                    fix="give each component its share; they need not add up to 1",
                )
            )
        # Sorted by name: the order in which a config lists its components changes nothing.
        self.names: tuple[str, ...] = tuple(sorted(n for n, w in weights.items() if w > 0))
        # 0.7 means seven tenths, not its nearest binary fraction: hence the decimal text.
        exact = [Fraction(repr(float(weights[name]))) for name in self.names]
        scale = math.lcm(*(share.denominator for share in exact))
        whole = [int(share * scale) for share in exact]
        # In lowest terms, so that weights in the same proportion are the same mixture.
        self._shares = [share // math.gcd(*whole) for share in whole]
        self._total = sum(self._shares)
        # Times in units that make all of them whole: (2j + 1) / share, over this common multiple.
        common = math.lcm(*self._shares)
        self._pace = [common // share for share in self._shares]

    @property
    def proportions(self) -> dict[str, int]:
        """Whole numbers in the proportion of the weights, by name; all that decides the order."""
        return dict(zip(self.names, self._shares, strict=True))

    def share(self, name: str) -> float:
        """The part of all examples that comes from a component."""
        return self._shares[self.names.index(name)] / self._total if name in self.names else 0.0

    def assign(self, start: int, stop: int) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """For examples start..stop-1: index into `names`, and how many of it came before."""
        counts = self.counts_before(start)
        events = [(self._time(i, count), i, count) for i, count in enumerate(counts)]
        heapq.heapify(events)
        components = np.empty(stop - start, np.int64)
        positions = np.empty(stop - start, np.int64)
        for n in range(stop - start):
            _, i, count = events[0]
            components[n], positions[n] = i, count
            heapq.heapreplace(events, (self._time(i, count + 1), i, count + 1))
        return components, positions

    def counts_before(self, example: int) -> list[int]:
        """How many examples of each component come before the given one."""
        # The latest whole time by which at most `example` examples were served; the few that are
        # left (one per component at most, or nearly) are served one by one.
        low, high = 0, example + len(self._shares) + 1
        while low < high:
            middle = (low + high + 1) // 2
            if sum(self._served(middle)) <= example:
                low = middle
            else:
                high = middle - 1
        counts = self._served(low)
        events = [(self._time(i, count), i) for i, count in enumerate(counts)]
        heapq.heapify(events)
        for _ in range(example - sum(counts)):
            _, i = events[0]
            counts[i] += 1
            heapq.heapreplace(events, (self._time(i, counts[i]), i))
        return counts

    def _time(self, component: int, count: int) -> int:
        return (2 * count + 1) * self._pace[component]

    def _served(self, time: int) -> list[int]:
        """Examples of each component whose time is at most the given whole number."""
        return [(2 * time * share + self._total) // (2 * self._total) for share in self._shares]
