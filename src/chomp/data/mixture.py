"""How many examples a step takes, and which component the n-th comes from: exact, without state.

A component with share p that starts the stage with credit e (the examples it was owed and not yet
given, or minus those it was given too early) is due its j-th example of the stage at time
(j + 1/2 - e) / p. Examples are served in the order of those times, ties by the order of components.
All arithmetic is on whole numbers: no rounding, no drift, at any offset. What a component was owed
at the end of one stage it has as credit in the next: short stages round nothing away. The count
before any n costs the same at every n, once its stage has been reached.
"""

import bisect
import heapq
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, zip_longest
from typing import Literal

import numpy as np
from jaxtyping import Int

from chomp.errors import require

StopStrategy = Literal["restart", "first_exhausted", "all_exhausted"]
Weights = Mapping[str, float]
# Examples of two mixtures that are compared at once: most that differ do so soon.
_FEW_COMPARED, _MOST_COMPARED = 64, 1 << 16


class BatchSchedule:
    """Examples of every step: `grad_accum` micro-batches of `batch_size(step)` rows.

    `sizes` is one size, or pairs of the step at which a size starts and that size; the last size
    lasts for ever. Exact at any step, in time that grows only with the number of changes.
    """

    def __init__(self, sizes: int | Sequence[tuple[int, int]], grad_accum: int = 1) -> None:
        pairs = [(0, sizes)] if isinstance(sizes, int) else list(sizes)
        self._starts = [start for start, _ in pairs]
        self._sizes = [size for _, size in pairs]
        self.grad_accum = grad_accum
        is_one = len(pairs) == 1 and self._starts == [0]
        given = f"train.batch_size={self._sizes[0] if is_one else pairs}"
        require(
            self._starts[:1] == [0] and all(a < b for a, b in pairwise([*self._starts, 2**31])),
            given,
            allowed="one size, or [start step, size] pairs: the first at 0, each after the last "
            "and below 2147483648",
            fix="start train.batch_size at step 0 and list its changes in their order",
        )
        require(
            all(0 < size < 2**31 for size in self._sizes),
            given,
            allowed="sizes of at least 1 row and below 2147483648",
            fix="set train.batch_size to the rows of one micro-batch, over all hosts",
        )
        # Examples before each start, so that no question walks over the steps.
        self._before = [0]
        for (start, stop), size in zip(pairwise(self._starts), self._sizes, strict=False):
            self._before.append(self._before[-1] + (stop - start) * size * grad_accum)

    @property
    def distinct_sizes(self) -> tuple[int, ...]:
        """Every size that occurs, from small to large: one compiled step each."""
        return tuple(sorted(set(self._sizes)))

    def batch_size(self, step: int) -> int:
        """Rows of one micro-batch of a step."""
        return self._sizes[bisect.bisect_right(self._starts, step) - 1]

    def examples(self, step: int) -> int:
        """Examples that a step takes, over all its micro-batches."""
        return self.batch_size(step) * self.grad_accum

    def examples_before(self, step: int) -> int:
        """Examples that the steps before this one take: the number of its first example."""
        i = bisect.bisect_right(self._starts, step) - 1
        return self._before[i] + (step - self._starts[i]) * self._sizes[i] * self.grad_accum

    def step_of(self, example: int) -> int:
        """The step that takes an example."""
        i = bisect.bisect_right(self._before, example) - 1
        return self._starts[i] + (example - self._before[i]) // (self._sizes[i] * self.grad_accum)


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
        self.start, self.shares, self.before = start, shares, before
        self._credit, self._unit, self._total = credit, unit, sum(shares)
        self._active = [i for i, share in enumerate(shares) if share]
        # Times in units that make all of them whole: (phase + 2 unit j) x pace.
        self._common = math.lcm(*(shares[i] for i in self._active))
        self._pace = [self._common // share if share else 0 for share in shares]
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

    def _queue(self, offset: int) -> list[tuple[int, int, int]]:
        """A heap of the next example of each component from an offset on.

        Entries are due time, component, and how many of the component came before in the run.
        """
        # By time t the components have had t examples and their credit, give or take half an
        # example each: so a little before the time that gives `offset` is early enough. Unless
        # some came so early that they are not due yet: then further back.
        owed = sum(self._credit[i] for i in self._active) // self._unit
        back, served = len(self._active) // 2 + 2, [offset + 1]
        while sum(served) > offset:
            time = 2 * self._unit * self._common * (offset - owed - back) // self._total
            served = [self._count_due(i, time) for i in self._active]
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
        return (self._phase[component] + 2 * self._unit * index) * self._pace[component]

    def _count_due(self, component: int, time: int) -> int:
        """Examples of a component that are due at a time, in the units of `_due`, or before."""
        phase = time // self._pace[component] - self._phase[component]
        return max(0, phase // (2 * self._unit) + 1)


class Mixture:
    """Component and position of every example, from weights alone.

    One mapping of weights is one stage; else pairs of the example a stage starts at and its
    weights. A component with weight 0 in a stage is not served in it, from its first example on.
    Weights and starts are checked where a data config is read.
    """

    def __init__(self, stages: Weights | Sequence[tuple[int, Weights]]) -> None:
        pairs = [(0, stages)] if isinstance(stages, Mapping) else list(stages)
        self.starts = tuple(start for start, _ in pairs)
        # Sorted by name: the order in which a config lists its components changes nothing.
        self.names: tuple[str, ...] = tuple(
            sorted({name for _, weights in pairs for name, weight in weights.items() if weight > 0})
        )
        self._shares: list[list[int]] = []
        for _, weights in pairs:
            # 0.7 means seven tenths, not its nearest binary fraction: hence the decimal text.
            exact = [Fraction(repr(float(weights.get(name, 0.0)))) for name in self.names]
            scale = math.lcm(*(share.denominator for share in exact))
            whole = [int(share * scale) for share in exact]
            # In lowest terms, so that weights in the same proportion are the same mixture.
            self._shares.append([share // math.gcd(*whole) for share in whole])
        nothing = [0] * len(self.names)
        # A stage follows from the one before it, so it is made when first needed, and kept.
        self._made = {0: Stage(0, self._shares[0], nothing, nothing, 1)}

    @property
    def changes(self) -> list[tuple[int, dict[str, int]]]:
        """The examples at which the proportions change, from 0 on, with those from there on."""
        found: list[tuple[int, dict[str, int]]] = []
        for start, shares in zip(self.starts, self._shares, strict=True):
            now = {name: share for name, share in zip(self.names, shares, strict=True) if share}
            if not found or found[-1][1] != now:
                found.append((start, now))
        return found

    @property
    def identity(self) -> dict[str, int] | list[list[int | dict[str, int]]]:
        """All that decides the order: whole numbers in the proportion of the weights, by name.

        With stages, lists of start and proportions, one wherever the proportions change: equal
        again when they come back from JSON.
        """
        if len(self.changes) == 1:
            return self.changes[0][1]
        return [[start, proportions] for start, proportions in self.changes]

    def stage_at(self, example: int) -> int:
        """Number of the stage that an example belongs to."""
        return bisect.bisect_right(self.starts, example) - 1

    def weights_at(self, example: int) -> dict[str, float]:
        """Share of every component in the stage of an example; together they are 1."""
        shares = self._shares[self.stage_at(example)]
        total = sum(shares)
        return {name: share / total for name, share in zip(self.names, shares, strict=True)}

    def assign(self, start: int, stop: int) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """For examples start..stop-1: index into `names`, and how many of it came before."""
        components: list[int] = []
        positions: list[int] = []
        while start < stop:
            number = self.stage_at(start)
            end = min([stop, *self.starts[number + 1 : number + 2]])
            stage = self._stage(number)
            served = stage.order(start - stage.start, end - stage.start)
            components += served[0]
            positions += served[1]
            start = end
        return np.array(components, np.int64), np.array(positions, np.int64)

    def counts_before(self, example: int) -> list[int]:
        """How many examples of each component come before the given one."""
        stage = self._stage(self.stage_at(example))
        return stage.counts(example - stage.start)

    def index_of(self, name: str, position: int) -> int | None:
        """The example that is a component's `position`-th, from 0; None: it never comes."""
        if name not in self.names:
            return None
        component, last = self.names.index(name), len(self.starts) - 1
        number = next(
            (i for i in range(last) if self._stage(i + 1).before[component] > position), last
        )
        stage = self._stage(number)
        if stage.shares[component] == 0:
            return None
        return stage.start + stage.offset_of(component, position - stage.before[component])

    def _stage(self, number: int) -> Stage:
        # Two threads may make the same stage: the same value, of which the first is kept.
        for i in range(len(self._made), number + 1):
            made = self._made[i - 1].followed_by(self.starts[i], self._shares[i])
            self._made.setdefault(i, made)
        return self._made[number]


def first_difference(one: Mixture, other: Mixture, stop: int) -> int | None:
    """The first example before `stop` that two mixtures take from other rows; None: there is none.

    Examples before the first change that only one of them has are not looked at one by one.
    """
    end_of_changes: tuple[int, dict[str, int]] = (stop, {})
    changes = zip_longest(one.changes, other.changes, fillvalue=end_of_changes)
    start = next((min(a[0], b[0]) for a, b in changes if a != b), stop)
    count = _FEW_COMPARED
    while start < stop:
        end = min(start + count, stop)
        components, rows = one.assign(start, end)
        other_components, other_rows = other.assign(start, end)
        differ = np.asarray(one.names)[components] != np.asarray(other.names)[other_components]
        places = np.flatnonzero(differ | (rows != other_rows))
        if len(places):
            return start + int(places[0])
        start, count = end, min(2 * count, _MOST_COMPARED)
    return None


def mixture_length(mixture: Mixture, rows: Mapping[str, int], strategy: StopStrategy) -> int | None:
    """How many examples a strategy allows; None: without end.

    "first_exhausted" ends with the first component whose rows have all come once, and
    "all_exhausted" with the last (the others start again meanwhile). A component that never gets
    to its end ends nothing. `rows` has the size of every component's epoch.
    """
    if strategy == "restart":
        return None
    last_rows = [mixture.index_of(name, rows[name] - 1) for name in mixture.names]
    ends = [last + 1 for last in last_rows if last is not None]
    if strategy == "first_exhausted":
        return min(ends, default=None)
    return max(ends) if len(ends) == len(last_rows) else None


def require_served(mixture: Mixture, total_examples: int) -> None:
    """Raise `ConfigError` unless a run of so many examples has one of every component."""
    for name in mixture.names:
        first = mixture.index_of(name, 0)
        share, start = max((mixture.weights_at(at)[name], -at) for at in mixture.starts)
        stage = f" in stage {mixture.stage_at(-start)}" if len(mixture.starts) > 1 else ""
        needed = "never served" if first is None else f"first served as example {first + 1:,}"
        longer = "lengthen its stage" if first is None else f"train for {first + 1:,} examples"
        require(
            first is not None and first < total_examples,
            f"component {name!r} with {share:.3g} of the weight{stage} would be {needed}, in "
            f"a run of {total_examples:,} examples",
            allowed="weights above 0 that yield at least one example in the run",
            fix=f"raise the weight of {name!r}, {longer}, or set its weight to 0",
        )
