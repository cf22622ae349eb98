"""The arrays of a checkpoint by name, without the template that made them.

For looking at checkpoints: verify, compare, export. Arrays come as numpy, in order, a bounded
number of bytes ahead, each compared with the receipt. A run restores through `restore` instead,
which reads into the places of its mesh. Read with TensorStore and not with Orbax: a restore of
Orbax's that meets a damaged file fails as a whole, and goes on failing in its threads.
"""

import operator
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tensorstore as ts
from etils import epath  # type: ignore[import-untyped]  # the paths that Orbax's handlers take

from chomp.checkpoint.layout import (
    DamagedCheckpoint,
    StepFolder,
    problem_with_files,
    state_file_sizes,
    state_path,
)
from chomp.checkpoint.receipt import receipt_of
from chomp.errors import StorageError
from chomp.storage import is_local, join, read_json

# Bytes of arrays that are read while another one is looked at. One array may be larger alone.
AHEAD_BYTES = 64 << 20
_OPENING_CACHE_BYTES = 16 << 20  # of descriptions of arrays
_REASON_CHARACTERS = 200
_NAMES_TOLD = 5
_WHERE = re.compile(r'^(\w+): .*? in OCDBT database at [^"]*"[^"]*": ')

OnBytes = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class ReadArray:
    """One array as it was saved, or why it is not to be had."""

    name: str
    value: np.ndarray | None = None
    problem: str | None = None


def array_bytes(found: StepFolder, name: str) -> int:
    """Bytes of one array in memory, by the metadata."""
    shape, dtype = _saved_kind(found, name)
    return prod(shape) * dtype.itemsize


def read_each(
    found: StepFolder, names: Collection[str] | None = None, *, ahead_bytes: int = AHEAD_BYTES
) -> Iterator[ReadArray]:
    """The named arrays (default: all), each checked against shape, dtype and receipt."""
    wanted = found.metadata.arrays if names is None else names
    try:
        state_file_sizes(found.path)
    except StorageError as error:  # a pipe among the files, which TensorStore would wait for
        yield from (ReadArray(name=name, problem=f"cannot be read: {error}") for name in wanted)
        return
    waiting = deque(wanted)
    started: deque[tuple[str, Any]] = deque()
    room = ahead_bytes
    while waiting or started:
        while waiting and (not started or array_bytes(found, waiting[0]) <= room):
            name = waiting.popleft()
            started.append((name, _started(found, name)))
            room -= array_bytes(found, name)
        name, reading = started.popleft()
        room += array_bytes(found, name)
        yield _finished(found, name, reading)


def checked_arrays(
    found: StepFolder, names: Collection[str] | None = None, *, on_bytes: OnBytes | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """The named arrays (default: all); `CheckpointError` at the first that is not as saved."""
    for item in read_each(found, names):
        if item.value is None:
            raise DamagedCheckpoint(found.path, f"{item.name}: {item.problem}")
        yield item.name, item.value
        if on_bytes is not None:
            on_bytes(item.value.nbytes)


def problems_of(found: StepFolder, *, on_bytes: OnBytes | None = None) -> list[str]:
    """Everything that is not as it was saved: files, then arrays by name. Reads all of it."""
    metadata = found.metadata
    problems = [] if (files := problem_with_files(found)) is None else [files]
    for name in sorted(metadata.receipt.keys() ^ metadata.arrays.keys()):
        problems.append(f"{name}: the metadata has only its hash or only its shape")
    told: dict[str, str] = {}
    for item in read_each(found, [name for name in metadata.arrays if name in metadata.receipt]):
        if item.problem is not None:
            told[item.name] = item.problem
        if on_bytes is not None:
            on_bytes(array_bytes(found, item.name))
    if len(told) == len(metadata.arrays) > 1 and len(reasons := set(told.values())) == 1:
        problems.append(f"all {len(told)} arrays: {reasons.pop()}")  # what they share is damaged
    else:
        problems += [f"{name}: {problem}" for name, problem in told.items()]
    # Orbax last, and only if all is well so far: it fails badly.
    return problems or _problems_of_orbax(found)


def problem_with_arrays(found: StepFolder) -> str | None:
    """The first array that could not be opened as described, without reading any; None if all can.

    Cheap: a thousand arrays take a twentieth of a second.
    """
    # What all of them share is read once: without a cache it takes three times as long.
    context = ts.Context({"cache_pool": {"total_bytes_limit": _OPENING_CACHE_BYTES}})
    opening = {
        name: ts.open(_spec(found, name), open=True, read=True, context=context)
        for name in found.metadata.arrays
    }
    for name, array in opening.items():
        try:
            kind = _kind(array.result().shape, array.result().dtype.numpy_dtype)
        except (ValueError, OSError) as error:
            return f"{name} cannot be opened: {_short(error, name)}"
        if kind != (wanted := _kind(*_saved_kind(found, name))):
            return f"{name} is {kind}, saved was {wanted}"
    return None


def _problems_of_orbax(found: StepFolder) -> list[str]:
    """What is wrong with Orbax's own description of the arrays, which a restore needs."""
    wanted = {name: _kind(*_saved_kind(found, name)) for name in found.metadata.arrays}
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    handler = ocp.PyTreeCheckpointHandler()
    try:
        # By our own eyes first: for a name that is not there Orbax leaves work that fails later.
        tree = read_json(join(state_path(found.path), "_METADATA"))["tree_metadata"].values()
        names = {entry["key_metadata"][0]["key"] for entry in tree}
        if names != wanted.keys():
            return [f"Orbax describes other arrays: {sorted(names ^ wanted.keys())[:_NAMES_TOLD]}"]
        described = handler.metadata(epath.Path(state_path(found.path)))
        saved = {name: _kind(item.shape, item.dtype) for name, item in described.items()}
    except Exception as error:  # of any type, and of none that says what is wrong
        reason = f"{type(error).__name__}: {_short(error)}"
        return [f"Orbax cannot read its own description of the arrays: {reason}"]
    finally:
        handler.close()
    return [
        f"{name}: Orbax describes it as {saved[name]}, saved was {kind}"
        for name, kind in wanted.items()
        if saved[name] != kind
    ]


def _started(found: StepFolder, name: str) -> Any:
    """A promise of the array, or the exception that came at once."""
    try:
        return ts.open(_spec(found, name), open=True, read=True).result().read()
    except (ValueError, OSError) as error:
        return error


def _finished(found: StepFolder, name: str, reading: Any) -> ReadArray:
    try:
        if isinstance(reading, Exception):
            raise reading
        value = np.asarray(reading.result())
    except (ValueError, OSError) as error:  # TensorStore raises these two for whatever is wrong
        return ReadArray(name=name, problem=f"cannot be read: {_short(error, name)}")
    wanted = _kind(*_saved_kind(found, name))
    if (kind := _kind(value.shape, value.dtype)) != wanted:
        return ReadArray(name=name, problem=f"is {kind}, saved was {wanted}")
    if receipt_of({name: value})[name] != found.metadata.receipt.get(name):
        return ReadArray(name=name, problem="differs from the receipt: bits have changed")
    return ReadArray(name=name, value=value)


def _spec(found: StepFolder, name: str) -> dict[str, Any]:
    """Where Orbax has put a leaf: a zarr array under the leaf's name in an OCDBT database."""
    folder = state_path(found.path)
    base: Any = {"driver": "file", "path": f"{folder}/"} if is_local(folder) else f"{folder}/"
    return {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
        # Else a chunk that is gone would be read as zeros.
        "fill_missing_data_reads": False,
        "recheck_cached_data": "open",
    }


def _saved_kind(found: StepFolder, name: str) -> tuple[list[int], np.dtype[Any]]:
    """Shape and dtype by the metadata, which may be harmed as any other file."""
    described = found.metadata.arrays[name]
    try:
        return [operator.index(size) for size in described["shape"]], np.dtype(described["dtype"])
    except (KeyError, TypeError) as error:
        raise DamagedCheckpoint(
            found.path, f"the metadata describes {name} as {described}"
        ) from error


def _kind(shape: Iterable[int], dtype: Any) -> str:
    return f"{np.dtype(dtype)} {list(shape)}"


def _short(error: Exception, name: str | None = None) -> str:
    """The reason, without TensorStore's account of how it got there and of which array it is."""
    text = " ".join(str(error).split()).split(" [tensorstore_spec=")[0]
    text = _WHERE.sub(r"\1: ", text.replace(f'"{name}/', '"'))
    return text if len(text) <= _REASON_CHARACTERS else f"{text[:_REASON_CHARACTERS]}…"
