"""The arrays of a checkpoint: their names in a state, and how they are read.

Orbax writes each leaf as a zarr array in one OCDBT database. TensorStore reads them, into numpy or
straight into their places on a mesh. Not through Orbax: it keeps no checksum, casts dtypes
silently, and after a damaged file it leaves work that goes on failing in its threads.
"""

import errno
import operator
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from math import prod
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from chomp.checkpoint.checksums import receipt_of
from chomp.checkpoint.format import (
    DamagedCheckpoint,
    StepFolder,
    problem_with_files,
    some_of,
    state_file_sizes,
    state_path,
)
from chomp.errors import CheckpointError, StorageError
from chomp.storage import is_local

# Templates keep weights in `params` and their average in `ema_params`, shaped alike. Everything
# else is the optimizer's and the run's own.
WEIGHTS = "params/"
AVERAGE = "ema_params/"
# Bytes that are read while others are looked at, or copied to a device. One array may be larger.
AHEAD_BYTES = 64 << 20
_MESH_AHEAD_BYTES = 256 << 20
_OPENING_CACHE_BYTES = 16 << 20  # of descriptions of arrays; without it opening takes 3x as long
_REASON_CHARACTERS = 200
_WHERE = re.compile(r'^(\w+): .*? in OCDBT database at [^"]*"[^"]*": ')
# A machine that is short of something says nothing about the files.
_SHORT_OF = {errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_SHORT_OF_WORDS = ("RESOURCE_EXHAUSTED", "Cannot allocate memory", "Too many open files")

T = TypeVar("T")
Targets = Mapping[str, jax.ShapeDtypeStruct]  # leaf -> shape, dtype and sharding
OnBytes = Callable[[int], None]


# ---- A state as named arrays ---------------------------------------------------------------------


def named_leaves(state: Any) -> dict[str, Any]:
    """Leaf path -> array. Typed random keys become their data, which Orbax and hashes can take."""
    leaves = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            is_abstract = isinstance(leaf, jax.ShapeDtypeStruct)
            data = jax.random.key_data
            leaf = jax.eval_shape(data, leaf) if is_abstract else data(leaf)
        leaves[_name(path)] = leaf
    return leaves


def with_leaves(abstract_state: Any, leaves: Mapping[str, Any]) -> Any:
    """The state of `abstract_state`'s shape whose leaves are `leaves`, random keys typed again."""

    def find(path: jax.tree_util.KeyPath[Any], leaf: Any) -> Any:
        value = leaves[_name(path)]
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return value
        # Of the same generator: another one would give other numbers. JAX tells the kind of an
        # array only, and `leaf` may be its shape: so it is asked in a trace.
        kinds: list[Any] = []
        jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), leaf)
        return jax.random.wrap_key_data(value, impl=kinds[0])

    return jax.tree_util.tree_map_with_path(find, abstract_state)


def targets_of(abstract_state: Any, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """The leaves to read, each with its sharding on `mesh`; replicated where it has none."""
    targets = {}
    for name, leaf in named_leaves(abstract_state).items():
        spec = leaf.sharding.spec if leaf.sharding is not None else PartitionSpec()
        sharding = NamedSharding(mesh, spec)
        targets[name] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return targets


def within(leaves: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The leaves below a field of the state."""
    return {name: leaf for name, leaf in leaves.items() if name.startswith(prefix)}


def without(leaves: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The leaves that are not below a field of the state."""
    return {name: leaf for name, leaf in leaves.items() if not name.startswith(prefix)}


def average_at(weights: Mapping[str, jax.Array], targets: Mapping[str, Any]) -> dict[str, Any]:
    """The average that starts at `weights`, for the leaves of `targets`: copies, in its dtype."""
    return {
        # A copy even where dtypes agree: a step that donates the state may not get a buffer twice.
        name: jnp.array(weights[name.replace(AVERAGE, WEIGHTS, 1)], dtype=leaf.dtype, copy=True)
        for name, leaf in within(targets, AVERAGE).items()
    }


# ---- Reading -------------------------------------------------------------------------------------


def read_arrays(found: StepFolder, targets: Targets) -> dict[str, jax.Array]:
    """The named arrays of a checkpoint, each in its target's sharding; others are not read.

    The targets must have passed `require_same_arrays`. Not checked against the receipt yet: that
    takes all processes. Raises `DamagedCheckpoint`, and `CheckpointError` where memory ran out.
    """
    if (problem := problem_with_files(found)) is not None:
        raise DamagedCheckpoint(found.path, problem)
    # Each process reads its own shards, and what several of its devices hold alike once.
    shards = {
        name: leaf.sharding.addressable_devices_indices_map(leaf.shape)
        for name, leaf in targets.items()
    }
    indices = {
        (name, str(index)): index for name, places in shards.items() for index in places.values()
    }
    parts = _read(found, [(name, index) for (name, _), index in indices.items()], _MESH_AHEAD_BYTES)
    on_devices: dict[str, list[jax.Array]] = {name: [] for name in targets}
    try:
        for (name, key), value in zip(indices, parts, strict=True):
            if isinstance(value, Exception):
                raise value
            for device, index in shards[name].items():
                if str(index) == key:
                    on_devices[name].append(jax.device_put(value, device))
        return {
            name: jax.make_array_from_single_device_arrays(
                leaf.shape, leaf.sharding, on_devices[name], dtype=leaf.dtype
            )
            for name, leaf in targets.items()
        }
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or is_caused_by(error, _SHORT_OF, _SHORT_OF_WORDS):
            raise CheckpointError(
                f"checkpoint {found.path} could not be read; it need not be damaged: {reason}",
                allowed="enough memory for the state, and enough open files for its parts",
                fix="free memory, raise `ulimit -n`, or restore on more devices",
            ) from error
        if not isinstance(error, ValueError | OSError):  # what TensorStore raises
            raise
        raise DamagedCheckpoint(found.path, reason) from error


def receipt_problem(found: StepFolder, leaves: Mapping[str, jax.Array]) -> str | None:
    """Which of the arrays that were read are not those that were saved; None if all are.

    Every process takes part, and all find the same.
    """
    saved = found.metadata.receipt
    changed = [name for name, digest in receipt_of(leaves).items() if saved.get(name) != digest]
    return f"{len(changed)} arrays differ from the receipt: {some_of(changed)}" if changed else None


def read_each(
    found: StepFolder, names: Collection[str] | None = None, *, ahead_bytes: int = AHEAD_BYTES
) -> Iterator[tuple[str, np.ndarray | str]]:
    """Names with arrays, each checked by shape, dtype and receipt; or what is wrong with it."""
    wanted = list(found.metadata.arrays if names is None else names)
    try:
        state_file_sizes(found.path)
    except StorageError as error:  # a pipe among the files, which TensorStore would wait for
        yield from ((name, f"cannot be read: {error}") for name in wanted)
        return
    values = _read(found, [(name, (...,)) for name in wanted], ahead_bytes)
    for name, value in zip(wanted, values, strict=True):
        if isinstance(value, _OtherKind):
            yield name, str(value).removeprefix(f"{name} ")
        elif isinstance(value, Exception):
            yield name, f"cannot be read: {short_reason(value, name)}"
        elif receipt_of({name: value})[name] != found.metadata.receipt.get(name):
            yield name, "differs from the receipt: bits have changed"
        else:
            yield name, value


def checked_arrays(
    found: StepFolder, names: Collection[str] | None = None, *, on_bytes: OnBytes | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """The named arrays (default: all); `CheckpointError` at the first that is not as saved."""
    for name, value in read_each(found, names):
        if isinstance(value, str):
            raise DamagedCheckpoint(found.path, f"{name}: {value}")
        yield name, value
        if on_bytes is not None:
            on_bytes(value.nbytes)


def problem_with_arrays(found: StepFolder) -> str | None:
    """The first array that could not be opened as described, without reading any; None if all can.

    Cheap: a thousand arrays take a twentieth of a second.
    """
    for name, opening in _open(found, found.metadata.arrays).items():
        try:
            _require_kind(found, name, opening.result())
        except _OtherKind as error:
            return str(error)
        except (ValueError, OSError) as error:
            return f"{name} cannot be opened: {short_reason(error, name)}"
    return None


def array_bytes(found: StepFolder, name: str) -> int:
    """Bytes of one array in memory, by the metadata."""
    shape, dtype = saved_kind(found, name)
    return prod(shape) * dtype.itemsize


def saved_kind(found: StepFolder, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype by the metadata, which may be damaged like any other file."""
    described = found.metadata.arrays[name]
    try:
        shape = tuple(operator.index(size) for size in described["shape"])
        return shape, np.dtype(described["dtype"])
    except (KeyError, TypeError) as error:
        raise DamagedCheckpoint(
            found.path, f"the metadata describes {name} as {described}"
        ) from error


def is_caused_by(
    error: BaseException | None, codes: Collection[int], words: Collection[str]
) -> bool:
    """Whether one of these error codes or texts is behind an error, however far."""
    while error is not None:
        if getattr(error, "errno", None) in codes or any(text in str(error) for text in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def short_reason(error: Exception, name: str | None = None) -> str:
    """The reason, without TensorStore's account of how it got there and of which array it is."""
    text = " ".join(str(error).split()).split(" [tensorstore_spec=")[0]
    text = _WHERE.sub(r"\1: ", text.replace(f'"{name}/', '"'))
    return text if len(text) <= _REASON_CHARACTERS else f"{text[:_REASON_CHARACTERS]}…"


# ---- Private helpers -----------------------------------------------------------------------------


class _OtherKind(ValueError):
    """An array whose files describe another shape or dtype than was saved."""


def _open(found: StepFolder, names: Collection[str]) -> dict[str, Any]:
    """A future of each array: a zarr array under the leaf's name in an OCDBT database."""
    folder = state_path(found.path)
    base: Any = {"driver": "file", "path": f"{folder}/"} if is_local(folder) else f"{folder}/"
    # What all of them share is read once.
    context = ts.Context({"cache_pool": {"total_bytes_limit": _OPENING_CACHE_BYTES}})
    return {
        name: ts.open(
            {
                "driver": "zarr",
                "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
                # Else a chunk that is gone would be read as zeros.
                "fill_missing_data_reads": False,
                "recheck_cached_data": "open",
            },
            open=True,
            read=True,
            context=context,
        )
        for name in names
    }


def _require_kind(found: StepFolder, name: str, array: Any) -> None:
    shape, dtype = saved_kind(found, name)
    if (tuple(array.shape), array.dtype.numpy_dtype) != (shape, dtype):
        raise _OtherKind(
            f"{name} is {array.dtype.numpy_dtype} {list(array.shape)}, saved was "
            f"{dtype} {list(shape)}"
        )


def _read(
    found: StepFolder, parts: Collection[tuple[str, tuple[Any, ...]]], ahead_bytes: int
) -> Iterator[np.ndarray | Exception]:
    """Parts of arrays by name and index, in order; or the error of one that cannot be read.

    While one is used, the next ones are read, as far as `ahead_bytes` of memory allow.
    """
    arrays = _open(found, dict.fromkeys(name for name, _ in parts))
    waiting = deque(parts)
    started: deque[tuple[Any, int]] = deque()  # a read and its bytes
    room = ahead_bytes
    while waiting or started:
        while waiting:
            name, index = waiting[0]
            try:
                array = arrays[name].result()
                _require_kind(found, name, array)
                part = array[index]
                num_bytes = part.size * part.dtype.numpy_dtype.itemsize
                if started and num_bytes > room:
                    break
                reading = part.read()
            except (ValueError, OSError) as error:  # TensorStore raises these two for all problems
                reading, num_bytes = error, 0
            waiting.popleft()
            started.append((reading, num_bytes))
            room -= num_bytes
        reading, num_bytes = started.popleft()
        room += num_bytes
        if not isinstance(reading, Exception):
            try:
                reading = np.asarray(reading.result())
            except (ValueError, OSError) as error:
                reading = error
        yield reading


def _name(path: jax.tree_util.KeyPath[Any]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
