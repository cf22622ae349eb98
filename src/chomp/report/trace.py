"""A trace in numbers: where the time of the traced steps went, with notes, and as tables.

Every instant of a device's time goes to what ran in it, in equal parts, and to nothing twice.
Milliseconds are of one device (the mean, where there are several), over all traced steps. The
categories sum to `busy_ms`; with the gaps between operations that is `total_ms`, which every share
is a share of. Notes say what a trace cannot show, or only in part.

Everything in the scope `attention` or `loss` is attention or loss, products included: chomp's
kernels name their scopes (`jax.named_scope`), and a model's own code can do the same. Operations
without a program are sorted by the name of their kernel.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple, get_args

from rich.table import Table

from chomp.errors import StorageError
from chomp.report.trace_file import Event, Instruction, Plane, Programs, Space, read_space
from chomp.storage import StrPath, is_folder, join, list_folder, name_of, parent_of
from chomp.tracking.run_files import PROFILER, section_in

PS_PER_MS = 1e9  # a trace's times are picoseconds
Category = Literal["matmul", "attention", "loss", "element-wise", "collectives", "copies", "other"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
# Operations that only hold others. They count where nothing inside of them runs.
CONTAINERS = ("while", "call", "conditional")
# Not of a jitted function that happens to be called so: that may be the whole program.
_SCOPES: dict[Category, re.Pattern[str]] = {
    name: re.compile(rf"(?:^|/|(?<!jit)\(){name}(?:[/)]|$)") for name in ("attention", "loss")
}
_COLLECTIVE = re.compile(
    r"all-reduce|all-gather|all-to-all|reduce-scatter|collective-|^send|^recv|ncclDev|nccl_"
)
_HOST_COPY = re.compile(r"^Mem(?:cpy|set)")  # what CUDA calls its own
# cuDNN's are several kernels: what it calls a fusion prepares and finishes the one in the middle.
_ATTENTION = re.compile(r"fmha|sdpa|flash|splash_mha|cudnn::fusion", re.IGNORECASE)
_PRODUCT = re.compile(
    r"gemm|cublas|cutlass|nvjet|xmma|matmul|\bdot\b|^dot|convolution|ragged-dot", re.IGNORECASE
)
_COPY_OPCODE = re.compile(
    r"bitcast|concatenate|copy|copy-done|copy-start|dynamic-slice|dynamic-update-slice|pad|reshape"
    r"|reverse|slice|transpose"
)
_COPY_NAME = re.compile(r"copy|memcpy|memset|transpose|bitcast", re.IGNORECASE)
_OTHER_OPCODE = re.compile(
    r"after-all|cholesky|custom-call|fft|infeed|outfeed|rng|rng-bit-generator|sort|triangular-solve"
)
_DEVICE = re.compile(r"^/device:(?!CUSTOM)\w+:\d+")
_TPU_OPERATIONS = "XLA Ops"  # beside lines that tell of the same time as modules, steps, scopes
_STREAM = "Stream"
_END = "end: "
# What counts beside what: a copy or a collective that runs beside a computation costs no time, and
# a loop none while something in it runs.
_RANKS: dict[Category, int] = {"collectives": 1, "copies": 2}
_CONTAINER_RANK = 3
# As the profiler hook marks them: a step, and in it what the loop's clock counts apart.
STEP = "train"
PHASES = ("loading", "hook", "eval", "checkpoint", "compile")


_LAST_PLANE = "Task Environment"  # which the profiler adds when everything else is there
# Of the traced time, and of the busy time: less than that changes no conclusion.
_NOTEWORTHY_INTERRUPTIONS = 0.1
_NOTEWORTHY_STARTING = 0.01
_NOTEWORTHY_UNPLACED = 0.01
_SHOWN_OPERATIONS, _SHOWN_GAPS = 30, 10  # in a page
_START = "the start"
_LONGEST_NAME = 72  # up to where kernels' names differ; the page has the whole of it


# --- Who had the time -----------------------------------------------------------------------------


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
    edges = []
    for index, span in enumerate(spans):
        begin, stop = max(span.start, start), min(span.end, end)
        if begin < stop:
            # Of two that begin together, the longer one is around the other.
            edges += [(begin, 1, span.start, -span.end, index), (stop, 0, 0, 0, index)]
    own, gaps = [0.0] * len(spans), []
    now, last = start, None
    active: dict[object, list[int]] = {}  # of each line with a span, in the order they began
    for time, changes in groupby(sorted(edges), key=itemgetter(0)):
        # The innermost span of every line, of the lowest rank among them.
        innermost = [indexes[-1] for indexes in active.values()]
        lowest = min((spans[index].rank for index in innermost), default=0)
        running = [index for index in innermost if spans[index].rank == lowest]
        for index in running:
            own[index] += (time - now) / len(running)
        if not running and time > now:
            gaps.append(Gap(now, time, last))
        for _, is_begun, *_, index in changes:  # those that end come first
            line = spans[index].line
            if is_begun:
                active.setdefault(line, []).append(index)
                continue
            active[line].remove(index)
            if not active[line]:
                del active[line]
            last = index
        now = time
    if end > now:
        gaps.append(Gap(now, end, last))
    return Timeline(own, gaps)


# --- Operations -----------------------------------------------------------------------------------


class Operation(NamedTuple):
    """One run of one operation."""

    name: str
    category: Category
    program: str  # of the compiled program: jit_train_step
    place: str  # named scopes and primitive in the program; "" where it is not known
    is_in_graph: bool  # a kernel of a CUDA graph, which is not told apart by its instruction
    span: Span


def category_of(name: str, instruction: Instruction | None, scope: str = "") -> Category:
    """What the operation that ran under `name` spends its time on.

    `scope` counts where the instruction has none; an unknown operation is `other`.
    """
    scope = instruction.scope if instruction and instruction.scope else scope
    opcode = instruction.opcode if instruction else ""
    if _COLLECTIVE.search(opcode) or _COLLECTIVE.search(name):
        # One device by itself hands its numbers on: a program for many that ran on one.
        return "copies" if instruction and instruction.is_alone else "collectives"
    if _HOST_COPY.match(name):
        return "copies"
    if opcode in CONTAINERS:
        return "other"
    for category, pattern in _SCOPES.items():
        if pattern.search(scope):
            return category
    words = " ".join([name, *(instruction.targets if instruction else ())])
    if _ATTENTION.search(words):
        return "attention"
    opcodes = instruction.opcodes if instruction else frozenset()
    if opcodes & {"dot", "convolution", "ragged-dot"} or _PRODUCT.search(words):
        return "matmul"
    if instruction is None:
        if _COPY_NAME.match(name):
            return "copies"
        return "element-wise" if "fusion" in name or name.startswith("wrapped_") else "other"
    if _OTHER_OPCODE.fullmatch(opcode):
        return "other"
    computing = opcodes - {"fusion", "parameter", "tuple", "constant"}
    is_copy = all(_COPY_OPCODE.fullmatch(each) for each in computing)
    return "copies" if computing and is_copy else "element-wise"


def operations_of(space: Space) -> dict[str, list[Operation]]:
    """What ran on each device of the trace, by its name; on CPUs only if there is nothing else."""
    found = {}
    for plane in space.planes:
        if _DEVICE.match(plane.name):
            kind = plane.stats.get("gpu_device_name") or plane.stats.get("device_type_string")
            number = plane.name.rpartition(":")[2]
            name = f"{kind} {number}" if kind else plane.name.removeprefix("/device:")
            if operations := list(_accelerator_operations(plane, space.programs)):
                found[name] = operations
    host = space.plane("/host:CPU")
    return found or ({} if host is None else _cpu_operations(host, space.programs))


def _accelerator_operations(plane: Plane, programs: Programs) -> Iterator[Operation]:
    chosen = [line for line in plane.lines if line.name == _TPU_OPERATIONS]
    for line in chosen or [line for line in plane.lines if line.name.startswith(_STREAM)]:
        for event in plane.events(line):
            stats = event.stats
            program_id, program = int(stats.get("program_id", 0)), str(stats.get("hlo_module", ""))
            is_in_graph = bool(stats.get("cuda_graph_id"))
            if is_in_graph:  # `hlo_op` and the scope are the graph's, the event's name the kernel's
                instruction = programs.kernel(program_id, program, event.name)
            else:
                name = str(stats.get("hlo_op", "")) or event.name
                instruction = programs.instruction(program_id, program, name)
            scope = str(stats.get("name") or stats.get("tf_op", ""))
            yield _operation(event, line.name, instruction, scope=scope, is_in_graph=is_in_graph)


def _cpu_operations(host: Plane, programs: Programs) -> dict[str, list[Operation]]:
    """The operations that ran on threads of the host, by device.

    A product may end long after its thread went on. Part of that it may have waited for other
    threads: which of their work is whose, no trace says.
    """
    # By number: threads may have the same name.
    events = [(n, event) for n, line in enumerate(host.lines) for event in host.events(line)]
    ends = {  # when the operation of this number and name was done
        (event.stats.get("_c"), event.name.removeprefix(_END)): event.start
        for _, event in events
        if event.name.startswith(_END)
    }
    devices: dict[int, list[Operation]] = {}
    for number, event in events:
        stats = event.stats
        if "hlo_op" not in stats:
            continue
        program_id, program = int(stats.get("program_id", 0)), str(stats.get("hlo_module", ""))
        instruction = programs.instruction(program_id, program, str(stats["hlo_op"]))
        end = ends.get((stats.get("_p"), event.name), event.end)
        line: object = number
        if end > event.end:
            # It runs on other threads beside what its own does next: on no line with anything.
            event, line = replace(event, end=end), (number, stats.get("_p"))
        ordinal = int(stats.get("device_ordinal", 0))
        devices.setdefault(ordinal, []).append(_operation(event, line, instruction))
    return {f"CPU {ordinal}": devices[ordinal] for ordinal in sorted(devices)}


def _operation(
    event: Event,
    line: object,
    instruction: Instruction | None,
    *,
    scope: str = "",
    is_in_graph: bool = False,
) -> Operation:
    category = category_of(event.name, instruction, scope)
    is_container = instruction is not None and instruction.opcode in CONTAINERS
    rank = _CONTAINER_RANK if is_container else _RANKS.get(category, 0)
    # A kernel's name without the types that C++ puts around it.
    short = event.name.removeprefix("void ").partition("(")[0].partition("<")[0]
    return Operation(
        name=short or event.name,
        category=category,
        program=str(event.stats.get("hlo_module", "")),
        place="" if instruction is None else instruction.place,
        is_in_graph=is_in_graph,
        span=Span(event.start, event.end, line, rank),
    )


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
    if host is None:
        return None
    for line in host.lines:
        marks = [
            mark
            for mark in host.events(line, (STEP, *PHASES))
            if mark.name != STEP or "step_num" in mark.stats
        ]
        steps = [mark for mark in marks if mark.name == STEP]
        if not steps:
            continue
        start, end = min(mark.start for mark in steps), max(mark.end for mark in steps)
        spans = [Span(mark.start, mark.end, STEP) for mark in marks]
        phases = dict.fromkeys(("step", *PHASES), 0.0)
        for mark, own in zip(marks, timeline(spans, start, end).own, strict=True):
            phases["step" if mark.name == STEP else mark.name] += own
        return Steps(tuple(int(mark.stats["step_num"]) for mark in steps), start, end, phases)
    return None


# --- The summary ----------------------------------------------------------------------------------


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
        shown = asdict(self)
        del shown["path"], shown["notes"]
        return shown | {
            "steps": len(self.steps),
            "operations": shown["operations"][:_SHOWN_OPERATIONS],
            "gaps": shown["gaps"][:_SHOWN_GAPS],
            "note": " ".join(self.notes) or None,
        }


def newest_trace(run: StrPath, config: Mapping[str, Any] | None) -> list[str]:
    """The files of a run's newest trace, one for each host; the resolved config may say where."""
    places = trace_places(run, config)
    found = []
    for moments in (join(place, "plugins", "profile") for place in places):
        # JAX makes a folder for each moment.
        names = list_folder(moments) if is_folder(moments) else []
        for folder in (join(moments, name) for name in names):
            inside = list_folder(folder) if is_folder(folder) else []
            found += [join(folder, name) for name in inside if name.endswith(".xplane.pb")]
    if not found:
        raise StorageError(
            f"{run} has no trace (no *.xplane.pb below {' or '.join(places)})",
            allowed="the folder of a run that finished tracing some of its steps",
            fix="train with -o train.profiler.enabled=true, and train.profiler.start_step a step "
            "that has not run yet",
        )
    # Named after the moment: 2026_11_16_08_45_36.
    moment = max(name_of(parent_of(path)) for path in found)
    return sorted(path for path in found if name_of(parent_of(path)) == moment)


def trace_places(run: StrPath, config: Mapping[str, Any] | None) -> list[str]:
    """The folders a run's traces may be in: its own, and the one its config says."""
    trainer = section_in(config, "trainer") or section_in(config, "train")
    log_dir, run_id = trainer.get("log_dir"), (config or {}).get("run_id")
    own = join(run, PROFILER)
    # A config may be damaged: what is no text is no place.
    is_told = all(isinstance(part, str) and part for part in (log_dir, run_id))
    return [own, join(str(log_dir), str(run_id), PROFILER)] if is_told else [own]


def summary_of_run(run: StrPath, config: Mapping[str, Any] | None) -> TraceSummary:
    """The summary of the newest trace of a run, of its first host."""
    path, *other_hosts = newest_trace(run, config)
    space = read_space(path)
    steps, devices = steps_of(space), operations_of(space)
    spans = [operation.span for operations in devices.values() for operation in operations]
    # From the first step to the end of the last one, on the host and on every device.
    end = max((span.end for span in spans), default=0)
    start = min((span.start for span in spans), default=0) if steps is None else steps.start
    if start >= end:
        raise StorageError(
            f"{path} has no operation that ran on a device",
            allowed="the trace of steps that ran on a CPU, a GPU or a TPU",
            fix="trace again with train.profiler.num_steps=2 or more; a trace that was cut off can "
            "also look like this",
        )
    end = end if steps is None else max(end, steps.end)
    scale, total_ms = PS_PER_MS * len(devices), (end - start) / PS_PER_MS
    busy_ms = 0.0
    by_operation: dict[tuple[str, Category, str], list[float]] = {}
    by_program: dict[str, float] = {}
    by_gap: dict[str, list[float]] = {}
    for operations in devices.values():
        # The profiler may have begun in the middle of an earlier step.
        operations = [operation for operation in operations if operation.span.end > start]
        time = timeline([operation.span for operation in operations], start, end)
        busy_ms += time.busy / scale
        for operation, ps in zip(operations, time.own, strict=True):
            key = (operation.name, operation.category, operation.place)
            by_operation.setdefault(key, []).append(ps / scale)
            program = operation.program or "copies outside of programs"
            by_program[program] = by_program.get(program, 0.0) + ps / scale
        for gap in time.gaps:
            after = _START if gap.after is None else operations[gap.after].name
            by_gap.setdefault(after, []).append((gap.end - gap.start) / PS_PER_MS)
    rows = [
        OperationTime(name, category, sum(each), sum(each) / total_ms, len(each), place)
        for (name, category, place), each in by_operation.items()
    ]
    gaps = [
        GapTime(after, sum(each) / len(devices), len(each), max(each))
        for after, each in by_gap.items()
    ]
    sums = dict.fromkeys(CATEGORIES, 0.0)
    for row in rows:
        sums[row.category] += row.ms
    phases = {} if steps is None else {n: ps / PS_PER_MS for n, ps in steps.phases.items() if ps}

    def shares(times: Mapping[Any, float], *, is_sorted: bool = True) -> tuple[Share, ...]:
        named = sorted(times.items(), key=lambda item: -item[1]) if is_sorted else times.items()
        return tuple(Share(name, ms, ms / total_ms) for name, ms in named)

    names = ", ".join(devices)
    has_graphs = any(each.is_in_graph for operations in devices.values() for each in operations)
    summary = TraceSummary(
        path=path,
        steps=() if steps is None else steps.numbers,
        device=names if len(devices) == 1 else f"{len(devices)} devices: {names}",
        total_ms=total_ms,
        busy_ms=busy_ms,
        categories=shares(sums, is_sorted=False),
        operations=tuple(sorted(rows, key=lambda row: -row.ms)),
        gaps=tuple(sorted(gaps, key=lambda row: -row.ms)),
        programs=shares(by_program),
        phases=shares(phases),
        notes=(),
    )
    notes = _notes(summary, space, num_hosts=1 + len(other_hosts), has_graphs=has_graphs)
    return replace(summary, notes=tuple(notes))


def _notes(
    summary: TraceSummary, space: Space, *, num_hosts: int, has_graphs: bool
) -> Iterator[str]:
    """Every reservation about a trace, the gravest first."""
    yield from (f"The profiler itself says: {complaint}" for complaint in space.complaints)
    if space.plane(_LAST_PLANE) is None:
        yield "The file has no last part: it may have been cut off while being written."
    if not summary.steps:
        yield (
            "No step is marked, so the time is that from the first operation to the last, and "
            "nothing is known of the host."
        )
    if num_hosts > 1:
        yield f"This is the first of {num_hosts} hosts; each has a trace of its own."
    of_phases = {row.name: row.share for row in summary.phases}
    found = {name: of_phases.get(name, 0.0) for name in ("eval", "checkpoint", "compile")}
    if sum(found.values()) >= _NOTEWORTHY_INTERRUPTIONS:
        told = ", ".join(f"{name} {share:.0%}" for name, share in found.items() if share > 0)
        yield (
            f"The traced steps were interrupted ({told} of the time): for the step alone, trace "
            "others with train.profiler.start_step and num_steps."
        )
    starting_ms = sum(gap.ms for gap in summary.gaps if gap.after == _START)
    share = starting_ms / summary.total_ms
    if summary.steps and share >= _NOTEWORTHY_STARTING:
        yield (
            f"{starting_ms:.2f} ms of the idle time ({share:.1%} of all) are before the first "
            "operation: the profiler was starting, or the host was preparing the first step. With "
            "more train.profiler.num_steps that is a smaller part."
        )
    # What could be attention or loss, and is not known to be. CUDA graphs run kernels whose
    # instruction is not recorded; compilers lose names.
    unplaced = sum(
        row.ms
        for row in summary.operations
        if row.category in ("matmul", "element-wise") and not row.place
    )
    is_unplaced = summary.busy_ms and unplaced / summary.busy_ms >= _NOTEWORTHY_UNPLACED
    if is_unplaced and has_graphs:
        yield (
            "Kernels in CUDA graphs do not say which operation of the program they are: they are "
            "sorted by their names, and what attention and loss do outside of kernels of their own "
            "counts as matmul, element-wise or copies. A run with "
            "XLA_FLAGS=--xla_gpu_enable_command_buffer= has no graphs."
        )
    elif is_unplaced:
        yield (
            f"{unplaced / summary.busy_ms:.0%} of the busy time is of operations whose place in "
            "the program is not in the trace: they are sorted by what they do, those of attention "
            "and loss as well. Programs loaded from a compilation cache may come without their "
            "places; a run with JAX_ENABLE_COMPILATION_CACHE=false compiles its own."
        )
    seen = {row.category for row in summary.operations}
    if missing := [category for category in _SCOPES if category not in seen]:
        scopes = " and ".join(f"`{category}`" for category in missing)
        yield (
            f"{' and '.join(missing).capitalize()} cannot be told apart: no operation is in a "
            f"scope {scopes}, so products count as matmul and the rest as element-wise."
        )


# --- Tables ---------------------------------------------------------------------------------------


def headline(summary: TraceSummary) -> str:
    """One line: the device, the steps, and how long one took."""
    busy = f"busy {summary.busy_ms / summary.total_ms:.1%} of the time"
    if summary.step_ms is None:
        return f"{summary.device}: {summary.total_ms:.2f} ms, {busy}"
    first, last = summary.steps[0], summary.steps[-1]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{summary.device}: {steps}, {summary.step_ms:.2f} ms a step, {busy}"


def summary_tables(summary: TraceSummary, *, num_operations: int = 20) -> list[Table]:
    """Where the time went, the host's phases, the longest operations and the longest gaps."""

    def per_step(ms: float) -> str:
        return f"{ms / len(summary.steps):.3f}" if summary.steps else "-"

    def cut(text: str) -> str:
        return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"

    def table(first: str, *numbers: str) -> Table:
        made = Table(first)
        for name in numbers:
            made.add_column(name, justify="right")
        return made

    idle_ms = summary.total_ms - summary.busy_ms
    idle = Share("gaps (idle)", idle_ms, idle_ms / summary.total_ms)
    tables = []
    for title, rows in (
        ("device", [*(row for row in summary.categories if row.ms), idle]),
        ("program", summary.programs if len(summary.programs) > 1 else ()),
        ("host", summary.phases),
    ):
        if rows:
            tables.append(shares := table(title, "ms a step", "share"))
            for row in rows:
                shares.add_row(row.name, per_step(row.ms), f"{row.share:.1%}")
    longest = summary.operations[:num_operations]
    tables.append(operations := table("operation", "ms a step", "share", "ms", "runs"))
    operations.add_column("category")
    has_places = any(row.place for row in longest)  # in CUDA graphs nobody knows
    if has_places:
        operations.add_column("where in the program")
    for each in longest:
        times = per_step(each.ms), f"{each.share:.1%}", f"{each.ms:.3f}", f"{each.count:,}"
        place = [cut(each.place)] if has_places else []
        operations.add_row(cut(each.name), *times, each.category, *place)
    tables.append(gaps := table("idle after", "ms a step", "ms", "times", "longest ms"))
    for gap in summary.gaps[:5]:
        cells = per_step(gap.ms), f"{gap.ms:.3f}", f"{gap.count:,}", f"{gap.longest_ms:.3f}"
        gaps.add_row(cut(gap.after), *cells)
    return tables
