"""Who had the time, where several things run at once, inside of each other or not at all.

Every instant of a device's time goes to what ran in it, in equal parts, and to nothing twice: the
parts sum to the time in which anything ran, and with the gaps to all of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

PS_PER_MS = 1e9  # a trace's times are picoseconds


class Span(NamedTuple):
    """From `start` up to `end`, in picoseconds, on one line: a stream, a thread.

    On a line, the span that began last is the one that runs: those around it wait. Between lines,
    only spans of the lowest `rank` that is there count.
    """

    start: int
    end: int
    line: object
    rank: int = 0


@dataclass(frozen=True)
class Gap:
    """A time in which nothing ran; `after` is the index of the span that ended last before it."""

    start: int
    end: int
    after: int | None  # None: nothing had run before


@dataclass(frozen=True)
class Timeline:
    """Of every span the picoseconds that were its own, and the gaps between spans, in order."""

    own: list[float]
    gaps: list[Gap]

    @property
    def busy(self) -> float:
        """The picoseconds in which anything ran."""
        return sum(self.own)


def timeline(spans: Sequence[Span], start: int, end: int) -> Timeline:
    """How the time from `start` to `end` went; what lies outside of it is cut off."""
    own, gaps = [0.0] * len(spans), []
    now, last = start, None
    active: dict[object, list[int]] = {}  # of each line with a span, in the order they began
    for time, ended, begun in _edges(spans, start, end):
        running = _running(spans, active)
        for index in running:
            own[index] += (time - now) / len(running)
        if not running and time > now:
            gaps.append(Gap(now, time, last))
        for index in ended:
            _leave(active, spans[index].line, index)
            last = index
        for index in begun:
            active.setdefault(spans[index].line, []).append(index)
        now = time
    if end > now:
        gaps.append(Gap(now, end, last))
    return Timeline(own, gaps)


def _edges(
    spans: Sequence[Span], start: int, end: int
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Each time at which something changes, with the spans that end there and those that begin."""
    edges = []
    for index, span in enumerate(spans):
        begin, stop = max(span.start, start), min(span.end, end)
        if begin < stop:
            # Of two that begin together, the longer one is around the other.
            edges += [(begin, 1, span.start, -span.end, index), (stop, 0, 0, 0, index)]
    for time, group in groupby(sorted(edges), key=itemgetter(0)):
        changes = list(group)
        ended = [edge[-1] for edge in changes if not edge[1]]
        yield time, ended, [edge[-1] for edge in changes if edge[1]]


def _running(spans: Sequence[Span], active: dict[object, list[int]]) -> list[int]:
    """The innermost span of every line, of the lowest rank among them."""
    innermost = [indexes[-1] for indexes in active.values()]
    lowest = min((spans[index].rank for index in innermost), default=0)
    return [index for index in innermost if spans[index].rank == lowest]


def _leave(active: dict[object, list[int]], line: object, index: int) -> None:
    active[line].remove(index)
    if not active[line]:
        del active[line]
