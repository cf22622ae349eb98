"""What a trace cannot tell, or tells only in part, in words for whoever reads its summary."""

from chomp.report.trace.busy_time import PS_PER_MS
from chomp.report.trace.kinds import Category
from chomp.report.trace.operations import Device
from chomp.report.trace.phases import Steps
from chomp.report.trace.space import Space

_LAST_PLANE = "Task Environment"  # which the profiler adds when everything else is there
# Of the traced time, and of the busy time: less than that changes no conclusion.
_NOTEWORTHY_INTERRUPTIONS = 0.1
_NOTEWORTHY_STARTING = 0.01
_NOTEWORTHY_UNPLACED = 0.01
_SCOPED: tuple[Category, ...] = ("attention", "loss")


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
