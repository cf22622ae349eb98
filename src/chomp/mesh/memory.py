"""What a state takes of each device, known before it is made, and whether devices have room for it.

Arrays are described by their shapes, dtypes and specs. Temporary arrays of a step are not counted:
only the compiled program knows them.
"""

import logging
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from chomp.errors import ConfigError, divisors
from chomp.mesh.device_mesh import MeshConfig, all_devices, create_mesh

# What to do about a state that is too large.
FIX_STATE = (
    "make the model smaller, cut it over more devices (mesh.data, mesh.model), or leave out the "
    "averaged weights (train.ema_beta=null)"
)

_NUMBER = re.compile(r"(?<![^/])\d+(?![^/])")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Tree = TypeVar("Tree")
AnyMesh = Mesh | AbstractMesh

log = logging.getLogger(__name__)


class PlacedArray(NamedTuple):
    """One array of a tree: its path, shape and dtype, and how a mesh cuts it."""

    path: str
    shape: tuple[int, ...]
    dtype: Any
    spec: PartitionSpec


@dataclass(frozen=True, kw_only=True)
class MemoryLine:
    """Arrays that are alike but for numbers in their paths: `blocks/*/attn/w_q`, 12 of them."""

    path: str
    count: int
    shape: tuple[int, ...]
    dtype: str
    spec: str
    bytes_per_device: int  # of all of them
    total_bytes: int  # on all devices, copies included


class DeviceMemory(NamedTuple):
    """Bytes that each device has, and how many of them are free now."""

    total: int
    free: int


def abstract_arrays(make: Callable[[], Tree]) -> Tree:
    """What `make()` would return, as shapes with dtypes and specs; nothing is computed.

    Traced on a mesh of one device, whatever mesh is set: on a larger one JAX would refuse sizes
    that do not divide before `require_divisible` can say which. `make` has to make its own random
    keys, since a key from outside is on the other mesh.
    """
    own = [device for device in all_devices() if device.process_index == jax.process_index()]
    with jax.set_mesh(create_mesh(MeshConfig(data=1), devices=own[:1])):
        return jax.eval_shape(make)


def require_fits_mesh(make: Callable[[], Any], mesh: AnyMesh) -> None:
    """Raise `ConfigError` unless the mesh can cut and hold everything `make()` would return.

    No array is made.
    """
    tree = abstract_arrays(make)
    require_divisible(tree, mesh)
    require_memory("the train state", bytes_per_device(tree, mesh), fix=FIX_STATE)


def require_divisible(tree: Any, mesh: AnyMesh) -> None:
    """Raise `ConfigError` unless the mesh can cut every array of `tree` as its spec says.

    Call it with `abstract_arrays`, before the arrays are made.
    """
    for array in placed_arrays(tree):
        for size, part in zip(array.shape, array.spec, strict=False):
            axes = _axes(part)
            pieces = math.prod(mesh.shape[axis] for axis in axes)
            if size % pieces == 0:
                continue
            sizes = ", ".join(f"mesh.{axis}={mesh.shape[axis]}" for axis in axes)
            below = size // pieces * pieces
            works = [below, below + pieces] if below else [pieces]
            # Not more pieces than the machine has devices.
            fewer = [each for each in divisors(size) if each <= math.prod(mesh.shape.values())]
            raise ConfigError(
                f"{array.path} of shape {list(array.shape)} on a mesh with {sizes}, which cuts "
                f"its size {size} into {pieces}",
                allowed=f"sizes that are multiples of {pieces}",
                fix=f"make the size {' or '.join(map(str, works))}, or set "
                f"{' x '.join(f'mesh.{axis}' for axis in axes)} to one of {fewer}",
            )


def placed_arrays(tree: Any) -> Iterator[PlacedArray]:
    """Every array of a tree, or the shape of one, with its path; one without a spec is whole."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        sharding = getattr(leaf, "sharding", None)
        spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        yield PlacedArray(name, tuple(leaf.shape), leaf.dtype, spec)


def memory_lines(tree: Any, mesh: AnyMesh) -> list[MemoryLine]:
    """The arrays of a tree (or shapes of arrays) on a mesh, the largest first."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for path, shape, dtype, spec in placed_arrays(tree):
        alike.setdefault((_NUMBER.sub("*", path), shape, dtype, spec), []).append(path)
    lines = []
    for (_, shape, dtype, spec), paths in alike.items():
        cuts = [_axes(part) for part in spec]
        pieces = math.prod(mesh.shape[axis] for axes in cuts for axis in axes)
        per_device = len(paths) * math.prod(shape) * dtype.itemsize // pieces
        # With a star in the places where the paths differ.
        parts = zip(*(path.split("/") for path in paths), strict=True)
        lines.append(
            MemoryLine(
                path="/".join(names[0] if len(set(names)) == 1 else "*" for names in parts),
                count=len(paths),
                shape=shape,
                dtype=str(dtype),
                # What cuts each axis, `-` where nothing does: `data, -, model`.
                spec=", ".join("+".join(axes) or "-" for axes in cuts) if any(cuts) else "whole",
                bytes_per_device=per_device,
                total_bytes=per_device * math.prod(mesh.shape.values()),
            )
        )
    return sorted(lines, key=lambda line: (-line.bytes_per_device, line.path))


def bytes_per_device(tree: Any, mesh: AnyMesh) -> int:
    """Bytes of a tree of arrays (or shapes of arrays) that each device of a mesh holds."""
    return sum(line.bytes_per_device for line in memory_lines(tree, mesh))


def memory_table(
    parts: Mapping[str, Any],
    mesh: AnyMesh,
    *,
    listed: Collection[str] | None = None,
    max_lines: int = 12,
) -> str:
    """Bytes per device of the named parts of a state, in at most 100 columns.

    Each part has its sum, and those `listed` (default: all) a line for each of their largest
    arrays; what is left of them is one line.
    """

    def row(name: str, lines: Sequence[MemoryLine], *cells: str) -> tuple[str, ...]:
        per_device = format_bytes(sum(line.bytes_per_device for line in lines))
        return (
            name,
            *(cells or ("", "", "")),
            per_device,
            format_bytes(sum(line.total_bytes for line in lines)),
        )

    devices = math.prod(mesh.shape.values())
    heading = "1 device" if devices == 1 else f"{devices} devices"
    rows: list[tuple[str, ...]] = [("array", "shape", "dtype", "spec", "per device", heading)]
    everything: list[MemoryLine] = []
    for name, tree in parts.items():
        lines = memory_lines(tree, mesh)
        everything += lines
        rows.append(row(name, lines))
        if listed is not None and name not in listed:
            continue
        for line in lines[:max_lines]:
            count = f" x{line.count}" if line.count > 1 else ""
            shape = " x ".join(map(str, line.shape)) or "scalar"
            rows.append(row(f"  {line.path}{count}", [line], shape, line.dtype, line.spec))
        if rest := lines[max_lines:]:
            rows.append(row(f"  {sum(line.count for line in rest)} more", rest))
    return aligned_columns([*rows, row("all", everything)], first_number=4, max_width=100)


def aligned_columns(
    rows: Sequence[Sequence[str]], *, first_number: int, max_width: int = 1 << 30
) -> str:
    """Lines of aligned columns, those from `first_number` on to the right.

    If they are wider than `max_width`, the first column loses the beginnings of its cells.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max_width - sum(widths[1:]) - 2 * (len(widths) - 1)
    widths[0] = min(widths[0], max(room, 20))
    lines = []
    for first, *others in rows:
        if len(first) > widths[0]:  # the end of a path says more than its beginning
            first = f"  …{first[len(first) - widths[0] + 3 :]}"
        cells = [
            f"{cell:{'>' if number >= first_number else '<'}{widths[number]}}"
            for number, cell in enumerate([first, *others])
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_bytes(number: int) -> str:
    """A number of bytes in the unit that fits: `1.50 GiB`."""
    power = min(max(number.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{number} B" if power == 0 else f"{number / 1024**power:.2f} {_UNITS[power]}"


def peak_memory_gb(devices: Iterable[Any] | None = None) -> float | None:
    """The most memory any of the devices has used so far, in GB of 1e9 bytes.

    `devices` are this process's unless others are given. None if they do not report it, as on CPU.
    The peak counts from the start of the process, and only what went through JAX's allocator.
    """
    asked = jax.local_devices() if devices is None else devices
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in asked]
    return max((peak / 1e9 for peak in peaks if peak is not None), default=None)


def device_memory(devices: Iterable[Any] | None = None) -> DeviceMemory | None:
    """The memory of the smallest device of this process; None if devices do not report it.

    On an accelerator, what JAX's allocator may take. CPU devices share the machine's memory, or
    that of the container (cgroup), equally.
    """
    asked = list(jax.local_devices() if devices is None else devices)
    if asked and all(device.platform == "cpu" for device in asked):
        total, free = machine_memory()
        return DeviceMemory(total // len(asked), free // len(asked))
    counted = [device.memory_stats() or {} for device in asked]
    known = [
        DeviceMemory(limit, limit - stats.get("bytes_in_use", 0))
        for stats in counted
        if (limit := stats.get("bytes_limit"))
    ]
    return min(known, key=lambda memory: memory.total, default=None)


def machine_memory() -> DeviceMemory:
    """The memory of this machine, or of the container where that has a lower limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    # Of the cgroups that this process is in, of version 1 and of version 2.
    files = [Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    with suppress(OSError):  # not Linux
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            own = Path("/sys/fs/cgroup") / line.rpartition(":")[2].lstrip("/")
            if line.startswith("0::"):
                files += [folder / "memory.max" for folder in (own, *own.parents)]
    for file in files:
        with suppress(OSError):
            text = file.read_text().strip()
            if text.isdigit():  # "max" is no limit
                limits.append(int(text))
    total = free = min(limits)
    with suppress(OSError):  # not Linux
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = min(total, int(line.split()[1]) * 1024)
    return DeviceMemory(total, free)


def require_memory(
    what: str,
    needed: int,
    *,
    fix: str,
    held: int = 0,
    devices: Iterable[Any] | None = None,
) -> None:
    """Raise `ConfigError` if `what` needs more bytes of each device than a device has.

    More than is free now is only a warning: other programs may end. `held` of the bytes are
    allocated already. Not checked if devices do not report their memory.
    """
    memory = device_memory(devices)
    if memory is None:
        return
    total = format_bytes(memory.total)
    if needed > memory.total:
        raise ConfigError(
            f"{what}, which needs {format_bytes(needed)} of each device, where a device has "
            f"{total}",
            allowed="what fits into the memory of a device",
            fix=f"{fix} (docs/references/hbm-optimization.md)",
        )
    if needed - held > memory.free:
        log.warning(
            "%s needs %s of each device, and only %s of its %s are free now",
            *(what, format_bytes(needed - held), format_bytes(memory.free), total),
        )


def _axes(part: Any) -> tuple[str, ...]:
    """The mesh axes that cut one axis of an array."""
    return () if part is None else part if isinstance(part, tuple) else (part,)
