"""Writing a checkpoint: into an unfinished folder, then one rename."""

import contextlib
import dataclasses
import shutil
import time
from typing import Any

import orbax.checkpoint as ocp

from chomp.checkpoint.layout import (
    UNFINISHED,
    CheckpointMetadata,
    files_of_state,
    read_step_folder,
    state_path,
    step_path,
    write_metadata,
)
from chomp.checkpoint.leaves import named_leaves, receipt_of, require_finite
from chomp.errors import StorageError, message
from chomp.storage import (
    exists,
    is_local,
    make_folder,
    parent_of,
    remove_tree,
    rename_folder,
)


def save_step_checkpoint(folder: str, state: Any, metadata: CheckpointMetadata) -> str:
    """Save `state` for good as step `metadata.step`; gives its folder.

    Refuses a state with NaN or infinity. A temporary checkpoint of that step is made permanent
    instead of being written again.
    """
    path = step_path(folder, metadata.step)
    if exists(path):
        saved = read_step_folder(path).metadata
        write_metadata(path, dataclasses.replace(saved, is_temporary=False))
        return path
    return _save(folder, state, dataclasses.replace(metadata, is_temporary=False))


def save_temporary_checkpoint(folder: str, state: Any, metadata: CheckpointMetadata) -> str:
    """Save `state` until a later checkpoint replaces it; gives its folder."""
    path = step_path(folder, metadata.step)
    if exists(path):
        return path
    return _save(folder, state, dataclasses.replace(metadata, is_temporary=True))


def _save(folder: str, state: Any, metadata: CheckpointMetadata) -> str:
    leaves = named_leaves(state)
    require_finite(leaves)  # first of all: before anything is written
    described = dataclasses.replace(metadata, receipt=receipt_of(leaves), time=time.time())
    path = step_path(folder, metadata.step)
    unfinished = path + UNFINISHED
    if exists(unfinished):
        remove_tree(unfinished)  # left by a process that was killed
    try:
        make_folder(unfinished)
        _require_space(path, leaves)
        with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(state_path(unfinished), args=ocp.args.StandardSave(leaves))
        files, num_bytes = files_of_state(unfinished)
        described = dataclasses.replace(described, state_files=files, state_bytes=num_bytes)
        write_metadata(unfinished, described)
        rename_folder(unfinished, path)
    except StorageError:
        raise  # has the path and the reason already
    except Exception as error:  # Orbax raises what its storage raised, of any type
        # Half a checkpoint should not fill the disk. Orbax's threads may still be writing into it;
        # what they leave is never read, and goes with the next save.
        with contextlib.suppress(StorageError):
            remove_tree(unfinished)
        raise StorageError(
            message(
                given=f"checkpoint {path} could not be written: {error}",
                allowed="a folder that can be written, with space for the state",
                fix="free space; earlier checkpoints are untouched and the same command continues",
            )
        ) from error
    return path


def _require_space(path: str, leaves: dict[str, Any]) -> None:
    """Raise `StorageError` if the state cannot fit; Orbax's threads fail late and noisily."""
    if not is_local(path):
        return
    needed = sum(leaf.nbytes for leaf in leaves.values())
    free = shutil.disk_usage(parent_of(path)).free
    if free < needed:
        raise StorageError(
            message(
                given=f"checkpoint {path} needs {needed:,} bytes of space, and {free:,} are free",
                allowed="a disk with space for the state",
                fix="free space; earlier checkpoints are untouched and the same command continues",
            )
        )
