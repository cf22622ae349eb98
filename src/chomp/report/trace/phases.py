"""The steps that a trace holds, and what the loop did in them on the host."""

from dataclasses import dataclass

from chomp.report.trace.busy_time import Span, timeline
from chomp.report.trace.space import Event, Space

# As the profiler hook marks them: a step, and in it what the loop's clock counts apart.
STEP = "train"
PHASES = ("loading", "hook", "eval", "checkpoint", "compile")


@dataclass(frozen=True)
class Steps:
    """The traced steps: their numbers, their times in picoseconds, and the host's phases.

    `phases` sum to the time inside of steps; "step" is what no other phase has: dispatching, and
    waiting for the device.
    """

    numbers: tuple[int, ...]
    start: int
    end: int
    phases: dict[str, float]


def steps_of(space: Space) -> Steps | None:
    """The steps of the trace; None where none is marked."""
    host = space.plane("/host:CPU")
    for line in [] if host is None else host.lines:
        marks = list(line.events((STEP, *PHASES)))
        if any(_is_step(mark) for mark in marks):
            return _steps(marks)
    return None


def _is_step(mark: Event) -> bool:
    return mark.name == STEP and "step_num" in mark.stats


def _steps(marks: list[Event]) -> Steps:
    steps = [mark for mark in marks if _is_step(mark)]
    known = [mark for mark in marks if mark.name != STEP or _is_step(mark)]
    spans = [Span(mark.start, mark.end, STEP) for mark in known]
    start, end = min(mark.start for mark in steps), max(mark.end for mark in steps)
    phases = dict.fromkeys(("step", *PHASES), 0.0)
    for mark, own in zip(known, timeline(spans, start, end).own, strict=True):
        phases["step" if mark.name == STEP else mark.name] += own
    return Steps(tuple(int(mark.stats["step_num"]) for mark in steps), start, end, phases)
