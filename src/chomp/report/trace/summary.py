"""A trace in numbers: where the time of the traced steps went, with notes, and as tables.

Milliseconds are of one device (the mean, where there are several), over all traced steps. The
categories sum to `busy_ms`; with the gaps between operations that is `total_ms`, which every share
is a share of. Notes say what a trace cannot show, or only in part.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from chomp.errors import StorageError
from chomp.report.trace.operations import (
    CATEGORIES,
    PS_PER_MS,
    Category,
    Device,
    Operation,
    Steps,
    Timeline,
    devices_of,
    steps_of,
    timeline,
)
from chomp.report.trace.space import Space, read_space
from chomp.storage import StrPath, is_folder, join, list_folder, name_of, parent_of
from chomp.tracking.run_files import PROFILER, section_in

_LAST_PLANE = "Task Environment"  # which the profiler adds when everything else is there
# Of the traced time, and of the busy time: less than that changes no conclusion.
_NOTEWORTHY_INTERRUPTIONS = 0.1
_NOTEWORTHY_STARTING = 0.01
_NOTEWORTHY_UNPLACED = 0.01
_SCOPED: tuple[Category, ...] = ("attention", "loss")
_SHOWN_OPERATIONS, _SHOWN_GAPS = 30, 10  # in a page
_START = "the start"
_LONGEST_NAME = 72  # up to where kernels' names differ; the page has the whole of it


@dataclass(frozen=True)
class TraceFile:
    """The file that is read, and how many there are of the same moment, one for each host."""

    path: str
    num_hosts: int


def newest_trace(run: StrPath, config: Mapping[str, Any] | None) -> TraceFile:
    """The newest trace of the run with this resolved config, of its first host."""
    places = trace_places(run, config)
    found = [path for place in places for path in _traces_below(place)]
    if not found:
        raise StorageError(
            f"{run} has no trace (no *.xplane.pb below {' or '.join(places)})",
            allowed="the folder of a run that finished tracing some of its steps",
            fix="train with -o train.profiler.enabled=true, and train.profiler.start_step a step "
            "that has not run yet",
        )
    # Named after the moment: 2026_11_16_08_45_36.
    moment = max(name_of(parent_of(path)) for path in found)
    hosts = sorted(path for path in found if name_of(parent_of(path)) == moment)
    return TraceFile(hosts[0], len(hosts))


def trace_places(run: StrPath, config: Mapping[str, Any] | None) -> list[str]:
    """The folders a run's traces may be in: its own, and the one its config says."""
    trainer = section_in(config, "trainer") or section_in(config, "train")
    log_dir, run_id = trainer.get("log_dir"), (config or {}).get("run_id")
    own = join(run, PROFILER)
    # A config may be damaged: what is no text is no place.
    is_told = all(isinstance(part, str) and part for part in (log_dir, run_id))
    return [own, join(str(log_dir), str(run_id), PROFILER)] if is_told else [own]


def _traces_below(place: str) -> list[str]:
    """Every trace below a profiler's folder; JAX makes a folder for each moment."""
    moments = join(place, "plugins", "profile")
    if not is_folder(moments):
        return []
    folders = [join(moments, name) for name in list_folder(moments)]
    return [
        join(folder, name)
        for folder in folders
        if is_folder(folder)
        for name in list_folder(folder)
        if name.endswith(".xplane.pb")
    ]


def notes_about(
    space: Space,
    devices: list[Device],
    steps: Steps | None,
    *,
    total_ms: float,
    starting_ms: float,
    unplaced: float,
    num_hosts: int,
) -> tuple[str, ...]:
    """Every reservation about a trace, the gravest first.

    `starting_ms` is how long the device was idle before its first operation, and `unplaced`
    the share of the busy time of computations whose place in the program is unknown.
    """
    notes = [f"The profiler itself says: {complaint}" for complaint in space.complaints]
    if space.plane(_LAST_PLANE) is None:
        notes.append("The file has no last part: it may have been cut off while being written.")
    if steps is None:
        notes.append(
            "No step is marked, so the time is that from the first operation to the last, and "
            "nothing is known of the host."
        )
    if num_hosts > 1:
        notes.append(f"This is the first of {num_hosts} hosts; each has a trace of its own.")
    if steps is not None:
        notes += _interruptions(steps, total_ms) + _starting(starting_ms, total_ms)
    return (*notes, *_without_place(devices, unplaced), *_scopes_without_time(devices))


def _interruptions(steps: Steps, total_ms: float) -> list[str]:
    found = {
        name: steps.phases[name] / PS_PER_MS / total_ms
        for name in ("eval", "checkpoint", "compile")
    }
    if sum(found.values()) < _NOTEWORTHY_INTERRUPTIONS:
        return []
    told = ", ".join(f"{name} {share:.0%}" for name, share in found.items() if share > 0)
    return [
        f"The traced steps were interrupted ({told} of the time): for the step alone, trace others "
        "with train.profiler.start_step and num_steps."
    ]


def _starting(starting_ms: float, total_ms: float) -> list[str]:
    share = starting_ms / total_ms
    if share < _NOTEWORTHY_STARTING:
        return []
    return [
        f"{starting_ms:.2f} ms of the idle time ({share:.1%} of all) are before the first "
        "operation: the profiler was starting, or the host was preparing the first step. With more "
        "train.profiler.num_steps that is a smaller part."
    ]


def _without_place(devices: list[Device], unplaced: float) -> list[str]:
    """CUDA graphs run kernels whose instruction is not recorded; compilers lose names."""
    if unplaced < _NOTEWORTHY_UNPLACED:
        return []
    if not any(operation.is_in_graph for device in devices for operation in device.operations):
        return [
            f"{unplaced:.0%} of the busy time is of operations whose place in the program is not "
            "in the trace: they are sorted by what they do, those of attention and loss as well. "
            "Programs loaded from a compilation cache may come without their places; a run with "
            "JAX_ENABLE_COMPILATION_CACHE=false compiles its own."
        ]
    return [
        "Kernels in CUDA graphs do not say which operation of the program they are: they are "
        "sorted by their names, and what attention and loss do outside of kernels of their own "
        "counts as matmul, element-wise or copies. A run with "
        "XLA_FLAGS=--xla_gpu_enable_command_buffer= has no graphs."
    ]


def _scopes_without_time(devices: list[Device]) -> list[str]:
    seen = {operation.category for device in devices for operation in device.operations}
    missing = [category for category in _SCOPED if category not in seen]
    if not missing:
        return []
    scopes = " and ".join(f"`{category}`" for category in missing)
    told = " and ".join(missing)
    return [
        f"{told.capitalize()} cannot be told apart: no operation is in a scope {scopes}, so "
        "products count as matmul and the rest as element-wise."
    ]


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


def summary_tables(summary: TraceSummary, *, num_operations: int = 20) -> list[Table]:
    """Where the time went, the host's phases, the longest operations and the longest gaps."""
    tables = [_categories(summary)]
    if len(summary.programs) > 1:
        tables.append(_share_rows(summary, "program", summary.programs))
    if summary.phases:
        tables.append(_share_rows(summary, "host", summary.phases))
    return [*tables, _operations(summary, num_operations), _gaps(summary)]


def headline(summary: TraceSummary) -> str:
    """One line: the device, the steps, and how long one took."""
    busy = f"busy {summary.busy_ms / summary.total_ms:.1%} of the time"
    if summary.step_ms is None:
        return f"{summary.device}: {summary.total_ms:.2f} ms, {busy}"
    first, last = summary.steps[0], summary.steps[-1]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{summary.device}: {steps}, {summary.step_ms:.2f} ms a step, {busy}"


def _categories(summary: TraceSummary) -> Table:
    idle_ms = summary.total_ms - summary.busy_ms
    idle = Share("gaps (idle)", idle_ms, idle_ms / summary.total_ms)
    return _share_rows(summary, "device", [*(row for row in summary.categories if row.ms), idle])


def _share_rows(
    summary: TraceSummary, title: str, rows: "list[Share] | tuple[Share, ...]"
) -> Table:
    table = _table(title, "ms a step", "share")
    for row in rows:
        table.add_row(row.name, _per_step(summary, row.ms), f"{row.share:.1%}")
    return table


def _operations(summary: TraceSummary, limit: int) -> Table:
    table = _table("operation", "ms a step", "share", "ms", "runs")
    table.add_column("category")
    shown = summary.operations[:limit]
    has_places = any(row.place for row in shown)  # in CUDA graphs nobody knows
    if has_places:
        table.add_column("where in the program")
    for row in shown:
        table.add_row(
            _cut(row.name),
            _per_step(summary, row.ms),
            f"{row.share:.1%}",
            f"{row.ms:.3f}",
            f"{row.count:,}",
            row.category,
            *([_cut(row.place)] if has_places else []),
        )
    return table


def _gaps(summary: TraceSummary, limit: int = 5) -> Table:
    table = _table("idle after", "ms a step", "ms", "times", "longest ms")
    for row in summary.gaps[:limit]:
        table.add_row(
            _cut(row.after),
            _per_step(summary, row.ms),
            f"{row.ms:.3f}",
            f"{row.count:,}",
            f"{row.longest_ms:.3f}",
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _per_step(summary: TraceSummary, ms: float) -> str:
    return f"{ms / len(summary.steps):.3f}" if summary.steps else "-"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"
