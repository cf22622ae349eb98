"""The order of examples within one stage of a mixture, from any offset, without walking there.

A component with share p that starts the stage with credit e (the examples it was owed and not yet
given, or minus those it was given too early) is due its j-th example of the stage at time
(j + 1/2 - e) / p. Examples are served in the order of those times, ties by the order of components.
All arithmetic is on whole numbers: no rounding, no drift, at any offset.
"""

import heapq
import math
from collections.abc import Sequence

# The next example of each component: its due time, the component, how many of it came before.
_Queue = list[tuple[int, int, int]]


class Stage:
    """One stage: fixed shares, from the counts and the credit the stages before it left.

    `shares`, `before` and `credit` have one entry per component of the mixture; `credit` counts in
    parts of `unit` to an example. A component with share 0 is never served and keeps its credit.
    """

    def __init__(
        self,
        start: int,
        shares: Sequence[int],
        before: Sequence[int],
        credit: Sequence[int],
        unit: int,
    ) -> None:
        self.start = start
        self.shares = shares
        self.before = before
        self._credit = credit
        self._unit = unit
        self._total = sum(shares)
        self._active = [i for i, share in enumerate(shares) if share]
        # Times in units that make all of them whole: (phase + 2 unit j) x pace.
        common = math.lcm(*(shares[i] for i in self._active))
        self._pace = [common // share if share else 0 for share in shares]
        self._phase = [unit - 2 * owed for owed in credit]
        self._gap = [2 * unit * pace for pace in self._pace]

    def followed_by(self, start: int, shares: Sequence[int]) -> "Stage":
        """The stage that begins at example `start`, with what this one leaves it."""
        length = start - self.start
        after = self.counts(length)
        # Not reduced to lowest terms: the unit is the common multiple of all totals so far.
        unit = math.lcm(self._unit, self._total)
        finer, share_unit = unit // self._unit, unit // self._total
        credit = [
            owed * finer + length * share * share_unit - (now - then) * unit
            for owed, share, then, now in zip(
                self._credit, self.shares, self.before, after, strict=True
            )
        ]
        return Stage(start, shares, after, credit, unit)

    def order(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        """For offsets start..stop-1: the component, and how many of it came before in the run."""
        queue = self._queue(start)
        components, positions = [], []
        for _ in range(stop - start):
            due, i, position = queue[0]
            components.append(i)
            positions.append(position)
            heapq.heapreplace(queue, (due + self._gap[i], i, position + 1))
        return components, positions

    def counts(self, offset: int) -> list[int]:
        """How many examples of each component come before an offset, since the run began."""
        counts = list(self.before)
        for _, i, count in self._queue(offset):
            counts[i] = count
        return counts

    def offset_of(self, component: int, index: int) -> int:
        """The offset at which a component with a share is served its `index`-th of the stage."""
        due = self._due(component, index)
        # Of a tie, the components that come first in order are served first.
        return sum(self._count_due(i, due if i < component else due - 1) for i in self._active)

    def _queue(self, offset: int) -> _Queue:
        """What is served at an offset and after it, as a heap."""
        # By time t the components have had t examples and their credit, give or take half an
        # example each: so a little before the time that gives `offset` is early enough. Unless
        # some came so early that they are not due yet: then further back.
        owed = sum(self._credit[i] for i in self._active) // self._unit
        back = len(self._active) // 2 + 2
        while sum(served := self._served(offset - owed - back)) > offset:
            back *= 2
        queue = [
            (self._due(i, count), i, self.before[i] + count)
            for i, count in zip(self._active, served, strict=True)
        ]
        heapq.heapify(queue)
        for _ in range(offset - sum(served)):
            due, i, position = queue[0]
            heapq.heapreplace(queue, (due + self._gap[i], i, position + 1))
        return queue

    def _due(self, component: int, index: int) -> int:
        phase = self._phase[component] + 2 * self._unit * index
        return phase * self._pace[component]

    def _count_due(self, component: int, time: int) -> int:
        """Examples of a component that are due at a time, in the units of `_due`, or before."""
        phase = time // self._pace[component] - self._phase[component]
        return max(0, phase // (2 * self._unit) + 1)

    def _served(self, time: int) -> list[int]:
        """Examples of each active component due by a time that counts in examples."""
        step = 2 * self._unit * self._total
        now = 2 * self._unit * time
        return [
            max(0, (now * self.shares[i] - self._phase[i] * self._total) // step + 1)
            for i in self._active
        ]
