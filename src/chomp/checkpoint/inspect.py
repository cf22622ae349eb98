"""Checkpoints looked at from outside: is one as it was saved, and what differs between two.

Arrays whose receipts agree are equal and are not read. Others are read on both sides, checked
against their receipts, and compared element by element: a difference reported here is one between
two states that were saved, never a damaged file.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from etils import epath  # type: ignore[import-untyped]  # the paths that Orbax's handlers take
from jaxtyping import Shaped

from chomp.checkpoint.arrays import (
    OnBytes,
    array_bytes,
    checked_arrays,
    read_each,
    saved_kind,
    short_reason,
)
from chomp.checkpoint.format import NAMES_SHOWN, StepFolder, problem_with_files, state_path
from chomp.storage import join, read_json

# Axes: N elements of an array.

Kind = Literal["only before", "only after", "other kind", "other values", "equal"]

# Elements compared at once; in float64 the two sides and their difference take 24 MiB.
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ArrayDifference:
    """How one array differs. The numbers are there for "other values" and "equal" only."""

    name: str
    kind: Kind
    before: str = ""  # dtype and shape
    after: str = ""
    is_float: bool = False
    num_elements: int = 0
    num_different: int = 0  # by their bits: 0.0 and -0.0 are different
    max_abs: float = 0.0  # largest difference of one element
    relative: float = 0.0  # Euclidean length of the difference over that of `before`


def problems_of(found: StepFolder, *, on_bytes: OnBytes | None = None) -> list[str]:
    """Everything that is not as it was saved: files, then arrays by name. Reads all of it."""
    metadata = found.metadata
    problems = [] if (files := problem_with_files(found)) is None else [files]
    for name in sorted(metadata.receipt.keys() ^ metadata.arrays.keys()):
        problems.append(f"{name}: the metadata has only its hash or only its shape")
    damaged: dict[str, str] = {}
    for name, value in read_each(found, [n for n in metadata.arrays if n in metadata.receipt]):
        if isinstance(value, str):
            damaged[name] = value
        if on_bytes is not None:
            on_bytes(array_bytes(found, name))
    reasons = set(damaged.values())
    if len(damaged) == len(metadata.arrays) > 1 and len(reasons) == 1:
        problems.append(f"all {len(damaged)} arrays: {reasons.pop()}")  # what they share is damaged
    else:
        problems += [f"{name}: {problem}" for name, problem in damaged.items()]
    # Orbax last, and only if all is well so far: it fails badly.
    return problems or _problems_of_orbax(found)


def array_differences(
    before: StepFolder, after: StepFolder, *, on_bytes: OnBytes | None = None
) -> list[ArrayDifference]:
    """Every array of both, those first that differ most.

    What only one side has comes first, then weights and moments by their relative difference, then
    counters and keys, whose numbers say little, then what is equal. `on_bytes` hears of `before`.
    """
    items = {item.name: item for item in _described(before, after)}
    names = [name for name, item in items.items() if item.kind == "other values"]
    sides = checked_arrays(before, names, on_bytes=on_bytes), checked_arrays(after, names)
    for (name, old), (_, new) in zip(*sides, strict=True):
        items[name] = _measured(items[name], old, new)

    def rank(item: ArrayDifference) -> tuple[int, float, str]:
        if item.kind == "other values":
            return 1 if item.is_float else 2, -item.relative, item.name
        return 3 if item.kind == "equal" else 0, 0.0, item.name

    return sorted(items.values(), key=rank)


def bytes_to_compare(before: StepFolder, after: StepFolder) -> int:
    """Bytes that `array_differences` has to read of `before`."""
    items = _described(before, after)
    return sum(array_bytes(before, item.name) for item in items if item.kind == "other values")


def _problems_of_orbax(found: StepFolder) -> list[str]:
    """What is wrong with Orbax's own description of the arrays; chomp itself does not need it."""
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    wanted = {name: _kind(*saved_kind(found, name)) for name in found.metadata.arrays}
    handler = ocp.PyTreeCheckpointHandler()
    try:
        # By our own eyes first: for a name that is not there Orbax leaves work that fails later.
        tree = read_json(join(state_path(found.path), "_METADATA"))["tree_metadata"].values()
        names = {entry["key_metadata"][0]["key"] for entry in tree}
        if names != wanted.keys():
            return [f"Orbax describes other arrays: {sorted(names ^ wanted.keys())[:NAMES_SHOWN]}"]
        described = handler.metadata(epath.Path(state_path(found.path)))
        saved = {name: _kind(item.shape, item.dtype) for name, item in described.items()}
    except Exception as error:  # of any type, and of none that says what is wrong
        reason = f"{type(error).__name__}: {short_reason(error)}"
        return [f"Orbax cannot read its own description of the arrays: {reason}"]
    finally:
        handler.close()
    return [
        f"{name}: Orbax describes it as {saved[name]}, saved was {kind}"
        for name, kind in wanted.items()
        if saved[name] != kind
    ]


def _kind(shape: Iterable[int], dtype: Any) -> str:
    return f"{np.dtype(dtype)} {list(shape)}"


def _described(before: StepFolder, after: StepFolder) -> Iterator[ArrayDifference]:
    """What the metadata alone tells of each array."""
    old, new = before.metadata, after.metadata
    for name in dict.fromkeys([*old.arrays, *new.arrays]):
        # By `get`: reading such an array tells better what is wrong with its description.
        texts = [
            "" if array is None else f"{array.get('dtype')} {array.get('shape')}"
            for array in (old.arrays.get(name), new.arrays.get(name))
        ]
        kind: Kind = "other values"
        if name not in new.arrays:
            kind = "only before"
        elif name not in old.arrays:
            kind = "only after"
        elif texts[0] != texts[1]:
            kind = "other kind"
        elif name in old.receipt and old.receipt[name] == new.receipt.get(name):
            kind = "equal"
        yield ArrayDifference(name=name, kind=kind, before=texts[0], after=texts[1])


def _measured(
    item: ArrayDifference, before: Shaped[np.ndarray, "..."], after: Shaped[np.ndarray, "..."]
) -> ArrayDifference:
    old, new = before.reshape(-1), after.reshape(-1)
    different, largest, squares, scale = 0, 0.0, 0.0, 0.0
    for first in range(0, old.size, _BLOCK):
        a, b = old[first : first + _BLOCK], new[first : first + _BLOCK]
        bits = f"u{a.dtype.itemsize}"
        different += int(np.count_nonzero(a.view(bits) != b.view(bits)))
        wide = a.astype(np.float64)
        gap = wide - b.astype(np.float64)
        largest = max(largest, float(np.abs(gap).max()))
        squares, scale = squares + float(gap @ gap), scale + float(wide @ wide)
    # From zeros anything is an infinite change, except to zeros of the other sign.
    relative = (squares / scale) ** 0.5 if scale else float("inf") if squares else 0.0
    return replace(
        item,
        # Not by numpy's own kinds: bfloat16 is none of them.
        is_float="float" in before.dtype.name,
        num_elements=old.size,
        num_different=different,
        max_abs=largest,
        relative=relative,
    )
