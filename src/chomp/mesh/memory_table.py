"""What a state takes of each device, as a table: told before it is made, or of what is there.

Arrays of the layers of a model are one line together. Temporary arrays of a step are not in it:
only the compiled program knows them.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chomp.mesh.abstract_arrays import AnyMesh, Placed, placed_arrays

_NUMBER = re.compile(r"(?<![^/])\d+(?![^/])")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WIDTH = 100


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


def memory_lines(tree: Any, mesh: AnyMesh) -> list[MemoryLine]:
    """The arrays of a tree (or shapes of arrays) on a mesh, the largest first."""
    alike: dict[tuple[Any, ...], list[Placed]] = {}
    for array in placed_arrays(tree):
        key = (_NUMBER.sub("*", array.path), array.shape, array.dtype, array.spec)
        alike.setdefault(key, []).append(array)
    lines = [_line(arrays, mesh) for arrays in alike.values()]
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
    lines = {name: memory_lines(tree, mesh) for name, tree in parts.items()}
    devices = math.prod(mesh.shape.values())
    rows: list[tuple[str, ...]] = [
        ("array", "shape", "dtype", "spec", "per device", _counted(devices))
    ]
    for name, found in lines.items():
        rows.append((name, "", "", "", *_sums(found)))
        if listed is None or name in listed:
            rows += map(_cells, found[:max_lines])
            if rest := found[max_lines:]:
                count = sum(line.count for line in rest)
                rows.append((f"  {count} more", "", "", "", *_sums(rest)))
    everything = [line for found in lines.values() for line in found]
    return _aligned([*rows, ("all", "", "", "", *_sums(everything))])


def told_bytes(number: int) -> str:
    """A number of bytes in the unit that fits: `1.50 GiB`."""
    power = min(max(number.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{number} B" if power == 0 else f"{number / 1024**power:.2f} {_UNITS[power]}"


def _counted(devices: int) -> str:
    return "1 device" if devices == 1 else f"{devices} devices"


def _line(arrays: Sequence[Placed], mesh: AnyMesh) -> MemoryLine:
    first = arrays[0]
    per_device = len(arrays) * first.num_bytes // first.pieces(mesh)
    return MemoryLine(
        path=_common_path([array.path for array in arrays]),
        count=len(arrays),
        shape=first.shape,
        dtype=str(first.dtype),
        spec=_told_spec(first),
        bytes_per_device=per_device,
        total_bytes=per_device * math.prod(mesh.shape.values()),
    )


def _common_path(paths: Sequence[str]) -> str:
    """The one path of all, with a star in the places where they differ."""
    parts = zip(*(path.split("/") for path in paths), strict=True)
    return "/".join(names[0] if len(set(names)) == 1 else "*" for names in parts)


def _told_spec(array: Placed) -> str:
    """What cuts each axis, `-` where nothing does: `data, -, model`."""
    if not any(array.spec):
        return "whole"
    return ", ".join(
        part if isinstance(part, str) else "+".join(part or "-") for part in array.spec
    )


def _sums(lines: Sequence[MemoryLine]) -> tuple[str, str]:
    return (
        told_bytes(sum(line.bytes_per_device for line in lines)),
        told_bytes(sum(line.total_bytes for line in lines)),
    )


def _cells(line: MemoryLine) -> tuple[str, ...]:
    count = f" x{line.count}" if line.count > 1 else ""
    shape = " x ".join(map(str, line.shape)) or "scalar"
    sums = told_bytes(line.bytes_per_device), told_bytes(line.total_bytes)
    return (f"  {line.path}{count}", shape, line.dtype, line.spec, *sums)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns of equal width, numbers to the right; the first gives way where it gets too wide."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], max(_WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1), 20))
    return "\n".join(
        "  ".join(
            f"{_shortened(cell, width):{'>' if number > 3 else '<'}{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _shortened(text: str, width: int) -> str:
    # The end of a path tells more than its beginning.
    return text if len(text) <= width else f"  …{text[len(text) - width + 3 :]}"
