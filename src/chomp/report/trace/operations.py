"""The operations of a trace, by device: on streams of an accelerator, on threads of a CPU.

Here is what differs between kinds of devices; everything above works on `Operation` alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from chomp.report.trace.busy_time import Span
from chomp.report.trace.kinds import CONTAINERS, Category, category_of
from chomp.report.trace.program import Instruction, Programs
from chomp.report.trace.space import Event, Line, Plane, Space

_DEVICE = re.compile(r"^/device:(?!CUSTOM)\w+:\d+")
_TPU_OPERATIONS = "XLA Ops"  # beside lines that tell of the same time as modules, steps, scopes
_STREAM = "Stream"
_END = "end: "
# What counts beside what: a copy or a collective that runs beside a computation costs no time, and
# a loop none while something in it runs.
_RANKS: dict[Category, int] = {"collectives": 1, "copies": 2}
_CONTAINER_RANK = 3

_Ends = dict[tuple[object, str], int]  # when the operation of this number and name was done


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
