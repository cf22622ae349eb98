"""Writing a checkpoint: into an unfinished folder, then one rename.

In two halves. `start_save` returns when the state may be changed or donated; `finish_save` waits
until Orbax has written it, and makes it a checkpoint. Every process writes its own shards; process
0 alone makes folders, writes metadata and renames, and all of them succeed or fail together.
"""

import contextlib
import ctypes
import dataclasses
import errno
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from chomp.checkpoint.arrays import is_caused_by, named_leaves, problem_with_arrays
from chomp.checkpoint.checksums import checked_receipt
from chomp.checkpoint.format import (
    UNFINISHED,
    CheckpointMetadata,
    StepFolder,
    read_step_folder,
    run_around,
    state_file_sizes,
    state_path,
    step_path,
    write_metadata,
)
from chomp.errors import ChompError, StorageError, private_names
from chomp.mesh.distributed import broadcast, is_first, raise_together
from chomp.storage import (
    exists,
    is_local,
    make_folder,
    parent_of,
    remove_tree,
    rename_folder,
    sync_tree,
)
from chomp.storage.files import require_inside

_TIMEOUT_S = 600
# Longer than Orbax's own barriers take to give up, so that their error is the one that is told.
_FINISH_TIMEOUT_S = 900.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def writer_for(leaves: dict[str, Any], *, max_staged_bytes: int | None) -> Any:
    """Orbax's `AsyncCheckpointer` for one save of `leaves`, to be closed by the caller.

    Its `save` returns when the arrays are on the host: safe to donate. With `max_staged_bytes`
    they are copied there a part at a time, and only what has been written is safe.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    handler = ocp.BasePyTreeCheckpointHandler(
        # Weights are noise in most of their bits: compressed they take a twelfth less of the disk,
        # and a second copy of the state in memory until the save is done (November 2026).
        use_compression=False,
        **({} if max_staged_bytes is None else _bounds(leaves, max_staged_bytes)),
    )
    return ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(handler_impl=handler),
        async_options=ocp.options.AsyncOptions(
            timeout_secs=_TIMEOUT_S,
            # In the background a folder that cannot be made is an error only after that time.
            create_directories_asynchronously=False,
        ),
    )


def give_memory_back() -> None:
    """Return memory that a save freed to the system, where the C library keeps it (glibc).

    Otherwise its holes pile up from save to save, to several times the state. Takes milliseconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _bounds(leaves: dict[str, Any], max_staged_bytes: int) -> dict[str, Any]:
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    # Orbax refuses to write an array that alone is as large as the bound.
    largest = 1 + max((leaf.nbytes for leaf in leaves.values()), default=0)
    with private_names("orbax-checkpoint"):
        from orbax.checkpoint._src.serialization import types  # noqa: PLC0415 (no public name)

        late = types.TransferPriority.ASYNCHRONOUS_DEPRIORITIZED

        class CopiedLate(types.DefaultSerializationStatusCallback):  # type: ignore[misc]
            """Tells Orbax to copy arrays to the host as others are done, not all at the start."""

            def key_priority(self, _: Any) -> types.TransferPriority:
                return late

    arrays = ocp.type_handlers.ArrayHandler(callback=CopiedLate())
    return {
        "save_concurrent_bytes": max(largest, max_staged_bytes),
        "save_device_host_concurrent_bytes": max_staged_bytes,
        "type_handler_registry": ocp.type_handlers.create_type_handler_registry(
            (jax.Array, arrays)
        ),
    }


@dataclass(frozen=True)
class UnfinishedSave:
    """A checkpoint whose arrays are being written."""

    path: str
    metadata: CheckpointMetadata
    num_bytes: int  # of all arrays
    writer: Any  # of `writer_for`


def save_step_checkpoint(folder: str, state: Any, metadata: CheckpointMetadata) -> str:
    """Save `state` for good as step `metadata.step`; gives its folder, which is complete then.

    Refuses a state with NaN or infinity. A temporary checkpoint of that step is made permanent
    instead of being written again.
    """
    if is_saved(folder, metadata.step):
        return promote(folder, metadata.step)
    metadata = dataclasses.replace(metadata, is_temporary=False)
    return finish_save(start_save(folder, state, metadata))


def save_temporary_checkpoint(folder: str, state: Any, metadata: CheckpointMetadata) -> str:
    """Save `state` until a later checkpoint replaces it; gives its folder, complete then."""
    if is_saved(folder, metadata.step):
        return step_path(folder, metadata.step)
    metadata = dataclasses.replace(metadata, is_temporary=True)
    return finish_save(start_save(folder, state, metadata))


def is_saved(folder: str, step: int) -> bool:
    """Whether the checkpoint of `step` is there, as process 0 sees it."""
    path = step_path(folder, step)
    return bool(broadcast("checkpoint is there", is_first() and exists(path)))


def promote(folder: str, step: int) -> str:
    """Make the temporary checkpoint of `step` permanent; gives its folder."""
    path = step_path(folder, step)
    with raise_together("promotion of a checkpoint"):
        if is_first():
            _require_inside(path)
            saved = read_step_folder(path).metadata
            if saved.is_temporary:
                write_metadata(path, dataclasses.replace(saved, is_temporary=False))
    return path


def start_save(
    folder: str, state: Any, metadata: CheckpointMetadata, *, max_staged_bytes: int | None = None
) -> UnfinishedSave:
    """Start writing `state`. When this returns, the state may be changed or donated.

    Refuses a state with NaN or infinity before anything is written. A state larger than
    `max_staged_bytes` is written before this returns, that many bytes at a time.
    """
    leaves = named_leaves(state)
    receipt = checked_receipt(leaves)
    metadata = dataclasses.replace(
        metadata,
        receipt=receipt,
        arrays={
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
            for name, leaf in leaves.items()
        },
        time=time.time(),
    )
    num_bytes = sum(leaf.nbytes for leaf in leaves.values())
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    path = step_path(folder, metadata.step)
    unfinished = path + UNFINISHED
    with raise_together("start of a checkpoint"):
        if is_first():
            _require_inside(path)
            if exists(unfinished):
                remove_tree(unfinished)  # left by a process that was killed
            make_folder(unfinished)
            require_space(path, num_bytes)  # Orbax's threads fail late and noisily
    # A writer with a bound copies after its `save` has returned. So the bound goes to it only
    # where it is needed, and there the save is waited for.
    distinct = {  # what this process's devices hold alike is copied once
        (name, str(shard.index)): shard.data.nbytes
        for name, leaf in leaves.items()
        for shard in leaf.addressable_shards
    }
    is_in_parts = max_staged_bytes is not None and sum(distinct.values()) > max_staged_bytes
    try:
        writer = writer_for(leaves, max_staged_bytes=max_staged_bytes if is_in_parts else None)
        writer.save(state_path(unfinished), args=ocp.args.PyTreeSave(leaves))
        if is_in_parts:
            writer.wait_until_finished()
    except Exception as error:
        raise _not_written(path, error) from error
    return UnfinishedSave(path, metadata, num_bytes, writer)


def finish_save(
    save: UnfinishedSave, next_batches: Callable[[], Sequence[str]] | None = None
) -> str:
    """Wait until the arrays are on disk, and give the checkpoint its name; that is its folder.

    `next_batches`, if given, is asked by process 0 for what the metadata has under that name.
    """
    with raise_together("end of a checkpoint", timeout_s=_FINISH_TIMEOUT_S):
        try:
            save.writer.close()  # waits, and raises what went wrong in Orbax's threads
            if is_first():
                unfinished = save.path + UNFINISHED
                sizes = state_file_sizes(unfinished)
                metadata = dataclasses.replace(save.metadata, state_files=sizes)
                if next_batches is not None:
                    metadata = dataclasses.replace(metadata, next_batches=list(next_batches()))
                write_metadata(unfinished, metadata)
                # Orbax has returned without an error and without a manifest before: where nothing
                # of what it wrote is found again, it warns and goes on.
                problem = problem_with_arrays(StepFolder(unfinished, metadata))
                if problem is not None:
                    raise OSError(f"what was written cannot be read back: {problem}")
                if is_local(unfinished):
                    sync_tree(unfinished)  # TensorStore has synced its own files, Orbax has not
                rename_folder(unfinished, save.path)
        except Exception as error:
            raise _not_written(save.path, error) from error
    return save.path


def require_space(path: str, num_bytes: int) -> int | None:
    """Bytes that are free on the disk of `path`, which need not be there; None for a remote one.

    Raises `StorageError` if a checkpoint of that many bytes does not fit.
    """
    if not is_local(path):
        return None
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        folder = parent_of(folder)
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise StorageError(
            f"checkpoint {path} needs {num_bytes:,} bytes of space, and {free:,} are free",
            allowed="enough free space for the state",
            fix="free space; earlier checkpoints are untouched and the same command continues",
        )
    return free


def _require_inside(path: str) -> None:
    """Raise `StorageError` if a link leads a checkpoint out of its run, or of its own folder."""
    folder = parent_of(path)
    require_inside(path, run_around(folder) or folder)


def _not_written(path: str, error: Exception) -> ChompError:
    """The error to raise for a save that failed, after what it wrote has been taken away."""
    # Half a checkpoint should not fill the disk. Orbax's threads may still be writing into it;
    # what they leave is never read, and goes with the next save.
    with contextlib.suppress(ChompError):
        if is_first():
            remove_tree(path + UNFINISHED)
    if isinstance(error, ChompError):
        return error  # has the path and the reason already
    # TensorStore's errors have only the words.
    is_disk_full = is_caused_by(error, _NO_SPACE, [os.strerror(code) for code in _NO_SPACE])
    remedy = "free space" if is_disk_full else "see the cause"
    return StorageError(
        f"checkpoint {path} could not be written: {error}",
        allowed="a writable folder with space for the state",
        fix=f"{remedy}; earlier checkpoints are untouched and the same command continues",
    )
