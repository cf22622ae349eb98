"""The operations of a trace, by device: their category, who had the time, and their steps.

On streams of an accelerator, on threads of a CPU: here is what differs between kinds of devices.
Every instant of a device's time goes to what ran in it, in equal parts, and to nothing twice.
Everything in the scope `attention` or `loss` is attention or loss, products included: chomp's
kernels name their scopes (`jax.named_scope`), and a model's own code can do the same. Operations
without a program are sorted by the name of their kernel.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple, get_args

from chomp.report.trace.space import Event, Instruction, Line, Plane, Programs, Space

PS_PER_MS = 1e9  # a trace's times are picoseconds
Category = Literal["matmul", "attention", "loss", "element-wise", "collectives", "copies", "other"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
# Operations that only hold others. They count where nothing inside of them runs.
CONTAINERS = ("while", "call", "conditional")
_SCOPES: tuple[Category, ...] = ("attention", "loss")
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
_Ends = dict[tuple[object, str], int]  # when the operation of this number and name was done
# As the profiler hook marks them: a step, and in it what the loop's clock counts apart.
STEP = "train"
PHASES = ("loading", "hook", "eval", "checkpoint", "compile")


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


# Not of a jitted function that happens to be called so: that may be the whole program.
_SCOPE = {name: re.compile(rf"(?:^|/|(?<!jit)\(){name}(?:[/)]|$)") for name in _SCOPES}


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
    for category in _SCOPES:
        if _SCOPE[category].search(scope):
            return category
    words = " ".join([name, *(instruction.targets if instruction else ())])
    if _ATTENTION.search(words):
        return "attention"
    if _is_product(words, instruction):
        return "matmul"
    return _plain_category(name, instruction)


def _is_product(words: str, instruction: Instruction | None) -> bool:
    opcodes = instruction.opcodes if instruction else frozenset()
    return bool(opcodes & {"dot", "convolution", "ragged-dot"} or _PRODUCT.search(words))


def _plain_category(name: str, instruction: Instruction | None) -> Category:
    if instruction is None:
        if _COPY_NAME.match(name):
            return "copies"
        return "element-wise" if "fusion" in name or name.startswith("wrapped_") else "other"
    if _OTHER_OPCODE.fullmatch(instruction.opcode):
        return "other"
    computing = instruction.opcodes - {"fusion", "parameter", "tuple", "constant"}
    is_copy = all(_COPY_OPCODE.fullmatch(opcode) for opcode in computing)
    return "copies" if computing and is_copy else "element-wise"


class Operation(NamedTuple):
    """One run of one operation."""

    name: str
    category: Category
    program: str  # of the compiled program: jit_train_step
    place: str  # named scopes and primitive in the program; "" where it is not known
    is_in_graph: bool  # a kernel of a CUDA graph, which is not told apart by its instruction
    span: Span


@dataclass(frozen=True)
class Device:
    """A device, and what ran on it."""

    name: str
    operations: list[Operation]


def devices_of(space: Space) -> list[Device]:
    """Every device of the trace that anything ran on; CPUs only where there is nothing else."""
    metadata, host = space.plane("/host:metadata"), space.plane("/host:CPU")
    programs = Programs({}) if metadata is None else Programs.of_plane(metadata.message)
    accelerators = [
        Device(_device_name(plane), list(_accelerator_operations(plane, programs)))
        for plane in space.planes
        if _DEVICE.match(plane.name)
    ]
    found = [device for device in accelerators if device.operations]
    return found or ([] if host is None else _cpus(host, programs))


def _device_name(plane: Plane) -> str:
    number = plane.name.rpartition(":")[2]
    kind = plane.stats.get("gpu_device_name") or plane.stats.get("device_type_string")
    return f"{kind} {number}" if kind else plane.name.removeprefix("/device:")


def _accelerator_operations(plane: Plane, programs: Programs) -> Iterator[Operation]:
    lines = plane.lines
    chosen = [line for line in lines if line.name == _TPU_OPERATIONS] or [
        line for line in lines if line.name.startswith(_STREAM)
    ]
    for line in chosen:
        for event in line.events():
            yield _kernel(event, line, programs)


def _kernel(event: Event, line: Line, programs: Programs) -> Operation:
    program_id, name = int(event.stats.get("program_id", 0)), str(event.stats.get("hlo_op", ""))
    program = str(event.stats.get("hlo_module", ""))
    scope = str(event.stats.get("name") or event.stats.get("tf_op", ""))
    is_in_graph = bool(event.stats.get("cuda_graph_id"))
    if is_in_graph:  # `name` and `scope` are the graph's, the event's name is the kernel's
        instruction = programs.kernel(program_id, program, event.name)
    else:
        instruction = programs.instruction(program_id, program, name or event.name)
    return _operation(event, line.name, instruction, scope=scope, is_in_graph=is_in_graph)


def _cpus(host: Plane, programs: Programs) -> list[Device]:
    """The devices whose operations ran on threads of the host."""
    # By number: threads may have the same name.
    events = [(n, event) for n, line in enumerate(host.lines) for event in line.events()]
    ends: _Ends = {
        (event.stats.get("_c"), event.name.removeprefix(_END)): event.start
        for _, event in events
        if event.name.startswith(_END)
    }
    devices: dict[int, Device] = {}
    for line, event in events:
        if "hlo_op" in event.stats:
            number = int(event.stats.get("device_ordinal", 0))
            device = devices.setdefault(number, Device(f"CPU {number}", []))
            device.operations.append(_cpu_operation(event, line, ends, programs))
    return [devices[number] for number in sorted(devices)]


def _cpu_operation(event: Event, line: int, ends: _Ends, programs: Programs) -> Operation:
    """An operation up to its end, which for a product may come long after its thread went on.

    Part of that it may have waited for other threads: which of their work is whose, no trace says.
    """
    program_id, name = int(event.stats.get("program_id", 0)), str(event.stats["hlo_op"])
    program = str(event.stats.get("hlo_module", ""))
    instruction = programs.instruction(program_id, program, name)
    end = ends.get((event.stats.get("_p"), event.name), event.end)
    if end <= event.end:
        return _operation(event, line, instruction)
    # It runs on other threads beside what its own does next, so it is on no line with anything.
    apart = (line, event.stats.get("_p"))
    return _operation(replace(event, end=end), apart, instruction)


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
    return Operation(
        name=_short(event.name),
        category=category,
        program=str(event.stats.get("hlo_module", "")),
        place="" if instruction is None else instruction.place,
        is_in_graph=is_in_graph,
        span=Span(event.start, event.end, line, rank),
    )


def _short(kernel: str) -> str:
    """A kernel's name without the types that C++ puts around it."""
    return kernel.removeprefix("void ").partition("(")[0].partition("<")[0] or kernel


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
