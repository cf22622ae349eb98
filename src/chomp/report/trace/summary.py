"""A trace in numbers: where the time of the traced steps went, on the device and on the host.

Milliseconds are of one device (the mean, where there are several), over all traced steps. The
categories sum to `busy_ms`; with the gaps between operations that is `total_ms`, which every share
is a share of.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chomp.errors import StorageError
from chomp.report.trace.busy_time import PS_PER_MS, Timeline, timeline
from chomp.report.trace.kinds import CATEGORIES, Category
from chomp.report.trace.newest_file import newest_trace
from chomp.report.trace.notes import notes_about
from chomp.report.trace.operations import Device, Operation, devices_of
from chomp.report.trace.phases import Steps, steps_of
from chomp.report.trace.space import read_space
from chomp.storage import StrPath

_SHOWN_OPERATIONS, _SHOWN_GAPS = 30, 10  # in a page
_START = "the start"


@dataclass(frozen=True)
class Share:
    """A part of the time: of a category, a program or a phase of the host."""

    name: str
    ms: float
    share: float


@dataclass(frozen=True)
class OperationTime:
    """All runs of one operation; `count` is of all devices."""

    name: str
    category: Category
    ms: float
    share: float
    count: int
    place: str  # scopes and primitive in the program, where they are known


@dataclass(frozen=True)
class GapTime:
    """Idle time of the device right after one operation; `count` is of all devices."""

    after: str
    ms: float
    count: int
    longest_ms: float


@dataclass(frozen=True)
class TraceSummary:
    """What a trace says. Operations, gaps and programs are sorted, the longest first."""

    path: str
    steps: tuple[int, ...]  # their numbers; empty where the trace marks none
    device: str
    total_ms: float
    busy_ms: float
    categories: tuple[Share, ...]
    operations: tuple[OperationTime, ...]
    gaps: tuple[GapTime, ...]
    programs: tuple[Share, ...]
    phases: tuple[Share, ...]  # of the host, inside of steps
    notes: tuple[str, ...]  # what a reader must know before believing the rest

    @property
    def step_ms(self) -> float | None:
        """Wall-clock milliseconds per step."""
        return self.total_ms / len(self.steps) if self.steps else None

    def payload(self) -> dict[str, Any]:
        """The run page's `profile`."""
        return {
            "steps": len(self.steps),
            "device": self.device,
            "total_ms": self.total_ms,
            "busy_ms": self.busy_ms,
            "categories": [asdict(share) for share in self.categories],
            "operations": [asdict(row) for row in self.operations[:_SHOWN_OPERATIONS]],
            "gaps": [asdict(gap) for gap in self.gaps[:_SHOWN_GAPS]],
            "programs": [asdict(share) for share in self.programs],
            "phases": [asdict(share) for share in self.phases],
            "note": " ".join(self.notes) or None,
        }


def summary_of_run(run: StrPath, config: Mapping[str, Any] | None) -> TraceSummary:
    """The summary of the newest trace of a run, whose resolved config may say where it is."""
    file = newest_trace(run, config)
    return summary_of_trace(file.path, num_hosts=file.num_hosts)


def summary_of_trace(path: str, *, num_hosts: int = 1) -> TraceSummary:
    """The summary of one `.xplane.pb` file, of `num_hosts` that were written together."""
    space = read_space(path)
    steps = steps_of(space)
    start, end, devices = _window(path, devices_of(space), steps)
    times = [timeline([op.span for op in d.operations], start, end) for d in devices]
    scale = PS_PER_MS * len(devices)
    total_ms = (end - start) / PS_PER_MS
    operations = _operation_times(devices, times, scale, total_ms)
    gaps = _gap_times(devices, times, scale)
    categories = _shares(((row.category, row.ms) for row in operations), total_ms, every=CATEGORIES)
    busy_ms = sum(time.busy for time in times) / scale
    phases = {} if steps is None else {name: ps for name, ps in steps.phases.items() if ps}
    return TraceSummary(
        path=path,
        steps=() if steps is None else steps.numbers,
        device=_device_words(devices),
        total_ms=total_ms,
        busy_ms=busy_ms,
        categories=categories,
        operations=operations,
        gaps=gaps,
        programs=_shares(_program_times(devices, times, scale), total_ms),
        phases=_shares(((name, ps / PS_PER_MS) for name, ps in phases.items()), total_ms),
        notes=notes_about(
            space,
            devices,
            steps,
            total_ms=total_ms,
            starting_ms=sum(gap.ms for gap in gaps if gap.after == _START),
            unplaced=_unplaced_ms(operations) / busy_ms if busy_ms else 0.0,
            num_hosts=num_hosts,
        ),
    )


def _window(path: str, devices: list[Device], steps: Steps | None) -> tuple[int, int, list[Device]]:
    """From the first step to the end of the last one, on the host and on every device.

    With the devices' operations in that time: the profiler may have begun in the middle of an
    earlier step.
    """
    spans = [operation.span for device in devices for operation in device.operations]
    end = max((span.end for span in spans), default=0)
    start = min((span.start for span in spans), default=0) if steps is None else steps.start
    if start >= end:
        raise StorageError(
            f"{path} has no operation that ran on a device",
            allowed="the trace of steps that ran on a CPU, a GPU or a TPU",
            fix="trace again with train.profiler.num_steps=2 or more; a trace that was cut off can "
            "also look like this",
        )
    within = [
        Device(device.name, [op for op in device.operations if op.span.end > start])
        for device in devices
    ]
    return start, end if steps is None else max(end, steps.end), within


def _shares(
    times: Iterable[tuple[str, float]], total_ms: float, every: Iterable[str] = ()
) -> tuple[Share, ...]:
    """The sum for each name, longest first; those of `every` in their own order, even if 0."""
    sums: dict[str, float] = dict.fromkeys(every, 0.0)
    for name, ms in times:
        sums[name] = sums.get(name, 0.0) + ms
    named = sums.items() if every else sorted(sums.items(), key=lambda item: -item[1])
    return tuple(Share(name, ms, ms / total_ms) for name, ms in named)


def _operation_times(
    devices: list[Device], times: list[Timeline], scale: float, total_ms: float
) -> tuple[OperationTime, ...]:
    own: dict[tuple[str, Category, str], float] = defaultdict(float)
    count: Counter[tuple[str, Category, str]] = Counter()
    for operation, ps in _with_own(devices, times):
        key = (operation.name, operation.category, operation.place)
        own[key] += ps
        count[key] += 1
    rows = [
        OperationTime(name, category, ps / scale, ps / scale / total_ms, count[key], place)
        for key, ps in own.items()
        for name, category, place in [key]
    ]
    return tuple(sorted(rows, key=lambda row: -row.ms))


def _unplaced_ms(operations: Iterable[OperationTime]) -> float:
    """Of what could be attention or loss, and is not known to be."""
    return sum(
        row.ms for row in operations if row.category in ("matmul", "element-wise") and not row.place
    )


def _program_times(
    devices: list[Device], times: list[Timeline], scale: float
) -> Iterable[tuple[str, float]]:
    for operation, ps in _with_own(devices, times):
        yield operation.program or "copies outside of programs", ps / scale


def _with_own(devices: list[Device], times: list[Timeline]) -> Iterable[tuple[Operation, float]]:
    for device, time in zip(devices, times, strict=True):
        yield from zip(device.operations, time.own, strict=True)


def _gap_times(devices: list[Device], times: list[Timeline], scale: float) -> tuple[GapTime, ...]:
    lengths: dict[str, list[int]] = defaultdict(list)
    for device, time in zip(devices, times, strict=True):
        for gap in time.gaps:
            after = _START if gap.after is None else device.operations[gap.after].name
            lengths[after].append(gap.end - gap.start)
    rows = [
        GapTime(after, sum(found) / scale, len(found), max(found) / PS_PER_MS)
        for after, found in lengths.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.ms))


def _device_words(devices: list[Device]) -> str:
    names = ", ".join(device.name for device in devices)
    return names if len(devices) == 1 else f"{len(devices)} devices: {names}"
