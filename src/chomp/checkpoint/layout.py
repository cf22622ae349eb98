"""Where checkpoints lie and what each says about itself.

    <folder>/step-N/metadata.json    step, run, config, data, receipt
    <folder>/step-N/state/           arrays, written by Orbax
    <folder>/step-N.writing/         a checkpoint that is not finished, or never was
    <folder>/step-N.removing/        one that is being deleted

A folder gets its final name by one rename, when everything in it is on disk; so `step-N` is
complete or absent. `latest` is found by looking, never stored. What a killed process left under
the other two names is never read, and goes with the next save.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from chomp.errors import CheckpointError, message
from chomp.storage import (
    exists,
    folder_size_bytes,
    is_folder,
    is_local,
    join,
    list_folder,
    name_of,
    read_json,
    remove_tree,
    rename_folder,
    write_json_atomic,
)

METADATA = "metadata.json"
STATE = "state"
UNFINISHED = ".writing"
REMOVED = ".removing"
_STEP_FOLDER = re.compile(r"step-(0|[1-9]\d*)")
_LEFTOVER = re.compile(_STEP_FOLDER.pattern + rf"({re.escape(UNFINISHED)}|{re.escape(REMOVED)})")


@dataclass(frozen=True, kw_only=True)
class CheckpointMetadata:
    """What a checkpoint says about itself; `step` counts completed optimizer steps."""

    step: int
    run_id: str
    attempt: int
    config_hash: str
    config: dict[str, Any]
    data_fingerprint: str
    data_offset: int  # examples consumed
    tokens_seen: int
    skipped_steps: int = 0  # whose update was left out, being not finite
    stream_states: dict[str, Any] | None = None  # of components that are read as streams
    is_temporary: bool = False
    time: float = 0.0
    mesh: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)  # versions, cores, devices
    receipt: dict[str, str] = field(default_factory=dict)  # leaf path -> SHA-256
    state_files: list[str] = field(default_factory=list)  # below state/, as Orbax named them
    state_bytes: int = 0  # of all of them together


@dataclass(frozen=True)
class StepFolder:
    """A complete checkpoint on disk."""

    path: str
    metadata: CheckpointMetadata


def step_path(folder: str, step: int) -> str:
    """Where the checkpoint of `step` lies once it is complete."""
    return join(folder, f"step-{step}")


def state_path(path: str) -> str:
    """Where Orbax keeps the arrays of a checkpoint folder, as it takes paths: absolute."""
    inner = join(path, STATE)
    return os.path.abspath(inner) if is_local(inner) else inner


def list_checkpoints(folder: str) -> list[StepFolder]:
    """The complete checkpoints in `folder`, oldest first."""
    if not is_folder(folder):
        return []
    names = [name for name in list_folder(folder) if _STEP_FOLDER.fullmatch(name)]
    found = [read_step_folder(join(folder, name)) for name in names]
    return sorted(found, key=lambda item: item.metadata.step)


def latest_checkpoint(folder: str) -> StepFolder | None:
    """The complete checkpoint of the highest step; None where there is none."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def write_metadata(path: str, metadata: CheckpointMetadata) -> None:
    """Write or replace the metadata in a checkpoint folder."""
    write_json_atomic(join(path, METADATA), asdict(metadata))


def remove_checkpoint(path: str) -> None:
    """Delete a checkpoint; at no instant does a half-deleted one carry a complete one's name."""
    removed = path + REMOVED
    if exists(removed):
        remove_tree(removed)
    rename_folder(path, removed)
    remove_tree(removed)


def remove_leftovers(folder: str) -> None:
    """Delete what killed processes left half written or half deleted. Only a run's one writer may.

    Not while it saves: its own unfinished checkpoint has such a name too.
    """
    for name in list_folder(folder):
        if _LEFTOVER.fullmatch(name):
            remove_tree(join(folder, name))


def files_of_state(path: str) -> tuple[list[str], int]:
    """The files that hold a checkpoint's arrays, and how many bytes they have together."""
    state = join(path, STATE)
    if not is_folder(state):
        return [], 0
    return sorted(_files_below(state)), folder_size_bytes(state)


def read_step_folder(path: str) -> StepFolder:
    """The checkpoint in a folder; it must be complete, of this version and under its own name."""
    location = join(path, METADATA)
    if not exists(location):
        raise CheckpointError(
            message(
                given=f"checkpoint {path} without {METADATA}",
                allowed="folders as they were saved",
                fix=f"restore the file, or move {path} elsewhere to continue without it",
            )
        )
    try:
        found = StepFolder(path, CheckpointMetadata(**read_json(location)))
    except TypeError as error:
        raise CheckpointError(
            message(
                given=f"{location}: {error}",
                allowed="the fields this version of chomp writes",
                fix="use the version of chomp that wrote it, or start a new run",
            )
        ) from error
    # A copy under another step's name would pass for that step when it is to be saved.
    if name_of(path) != f"step-{found.metadata.step}":
        raise CheckpointError(
            message(
                given=f"{path} holds the checkpoint of step {found.metadata.step}",
                allowed="checkpoints in the folder they were saved to",
                fix=f"rename it to step-{found.metadata.step}, or move it elsewhere",
            )
        )
    return found


def _files_below(folder: str, prefix: str = "") -> Iterator[str]:
    for name in list_folder(folder):
        inner = join(folder, name)
        if is_folder(inner):
            yield from _files_below(inner, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}"
