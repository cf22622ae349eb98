"""Where checkpoints lie, and which of them can be read.

    <folder>/step-N/metadata.json    step, run, config, data, receipt
    <folder>/step-N/state/           arrays, written by Orbax
    <folder>/step-N.writing/         a checkpoint that is not finished, or never was
    <folder>/step-N.removing/        one that is being deleted
    <folder>/step-N.damaged-A/       moved out of the way by attempt A, and kept
    <folder>/step-N.forked-A/        newer than the step that attempt A went on from, and kept

A folder gets its final name by one rename, when everything in it is on disk; so `step-N` is
complete or absent. `latest` is found by looking, never stored. What a killed process left as
`.writing` or `.removing` is never read, and goes with the next save.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from chomp.checkpoint.metadata import (
    CheckpointMetadata,
    OtherFormat,
    metadata_from_json,
    metadata_to_json,
)
from chomp.errors import CheckpointError, StorageError
from chomp.storage import (
    exists,
    file_info,
    is_folder,
    is_local,
    join,
    list_folder,
    name_of,
    parent_of,
    read_json,
    remove_tree,
    rename_folder,
    write_json_atomic,
)
from chomp.tracking.run_files import CHECKPOINTS as CHECKPOINTS

METADATA = "metadata.json"
STATE = "state"
UNFINISHED = ".writing"
REMOVED = ".removing"
_STEP_FOLDER = re.compile(r"step-(0|[1-9]\d*)")
_LEFTOVER = re.compile(_STEP_FOLDER.pattern + rf"({re.escape(UNFINISHED)}|{re.escape(REMOVED)})")
_ASIDE = re.compile(_STEP_FOLDER.pattern + r"\.(damaged|forked)-\d+(\.\d+)?")
_NAMES_TOLD = 5


@dataclass(frozen=True)
class StepFolder:
    """A complete checkpoint on disk."""

    path: str
    metadata: CheckpointMetadata


@dataclass(frozen=True)
class Unreadable:
    """Something under a checkpoint's name that is none, and why."""

    path: str
    reason: str
    is_other_format: bool = False  # of another version of chomp, which may well read it


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is not as it was saved; `reason` says in a few words how."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"checkpoint {path} is damaged: {reason}",
            allowed="files as they were saved",
            fix="choose another checkpoint, or restore this one from a copy",
        )
        self.reason = reason


def step_path(folder: str, step: int) -> str:
    """Where the checkpoint of `step` lies once it is complete."""
    return join(folder, f"step-{step}")


def step_of_name(name: str) -> int | None:
    """The step whose checkpoint has this name; None for every other name, `step-007` too."""
    match = _STEP_FOLDER.fullmatch(name)
    return None if match is None else int(match[1])


def name_before(name: str) -> str | None:
    """The name that a folder had until `move_aside`; None for other names."""
    match = _ASIDE.fullmatch(name)
    return None if match is None else f"step-{match[1]}"


def state_path(path: str) -> str:
    """Where Orbax keeps the arrays of a checkpoint folder, as it takes paths: absolute."""
    inner = join(path, STATE)
    return os.path.abspath(inner) if is_local(inner) else inner


def look(folder: str) -> tuple[list[StepFolder], list[Unreadable]]:
    """What lies in `folder` under checkpoints' names: the readable and the others, oldest first.

    What a run deletes meanwhile is in neither list.
    """
    names = sorted(_names(folder, _STEP_FOLDER), key=lambda name: step_of_name(name) or 0)
    found = [opened(join(folder, name)) for name in names]
    found = [item for item in found if isinstance(item, StepFolder) or not is_gone(item.path)]
    return (
        [item for item in found if isinstance(item, StepFolder)],
        [item for item in found if isinstance(item, Unreadable)],
    )


def list_checkpoints(folder: str) -> list[StepFolder]:
    """The readable checkpoints in `folder`, oldest first."""
    return look(folder)[0]


def latest_checkpoint(folder: str) -> StepFolder | None:
    """The readable checkpoint of the highest step; None where there is none."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def read_step_folder(path: str) -> StepFolder:
    """The checkpoint in a folder; it must be complete, of this version and under its own name."""
    found = opened(path)
    if isinstance(found, StepFolder):
        return found
    raise unreadable_error(found)


def opened(path: str) -> StepFolder | Unreadable:
    """The checkpoint in a folder, or why it cannot be read."""
    location = join(path, METADATA)
    try:
        if not is_folder(path):
            return Unreadable(path, "it is no folder")
        if not exists(location):
            return Unreadable(path, f"it has no {METADATA}")
        metadata = metadata_from_json(read_json(location))
    except StorageError as error:  # one bad neighbour must not hide the others
        return Unreadable(path, _reason(error))
    except ValueError as error:
        return Unreadable(path, f"{METADATA}: {error}", isinstance(error, OtherFormat))
    # A copy under another step's name would pass for that step when it is to be saved.
    if name_of(path) != f"step-{metadata.step}":
        return Unreadable(path, f"it holds the checkpoint of step {metadata.step}")
    return StepFolder(path, metadata)


def is_gone(path: str) -> bool:
    """Whether nothing has a checkpoint's name any more, as when its run deleted it meanwhile."""
    return name_of(path) not in _names(parent_of(path), _STEP_FOLDER)


def unreadable_error(found: Unreadable) -> CheckpointError:
    """The error for a checkpoint that is needed and cannot be read."""
    return CheckpointError(
        f"checkpoint {found.path} cannot be read: {found.reason}",
        allowed="checkpoints saved by this version of chomp",
        fix=f"use the version that wrote it, or move {found.path} away to continue without it",
    )


def problem_with_files(found: StepFolder) -> str | None:
    """What is wrong with the files of a checkpoint's arrays, by name and size; None if nothing."""
    try:
        wanted, there = found.metadata.state_files, state_file_sizes(found.path)
    except StorageError as error:  # they cannot even be looked at
        return f"state/ cannot be looked at: {_reason(error)}"
    missing, extra = sorted(wanted.keys() - there.keys()), sorted(there.keys() - wanted.keys())
    if missing or extra:
        return f"state/ lacks {_some(missing)} and has {_some(extra)} besides"
    for name, size in wanted.items():
        if there[name] != size:
            return f"state/{name} has {there[name]:,} bytes instead of {size:,}"
    return None


def state_file_sizes(path: str) -> dict[str, int]:
    """The files that hold a checkpoint's arrays, by their names below state/, with their bytes."""
    state = join(path, STATE)
    if not is_folder(state):
        return {}
    return {name: file_info(join(state, name)).size_bytes for name in sorted(_files_below(state))}


def write_metadata(path: str, metadata: CheckpointMetadata) -> None:
    """Write or replace the metadata in a checkpoint folder."""
    write_json_atomic(join(path, METADATA), metadata_to_json(metadata))


def move_aside(path: str, *, why: Literal["damaged", "forked"], attempt: int) -> str:
    """Take a checkpoint's name away and keep all it holds; gives the new path."""
    target = aside = f"{path}.{why}-{attempt}"
    number = 2
    while exists(target):
        target, number = f"{aside}.{number}", number + 1
    rename_folder(path, target)
    return target


def moved_aside(folder: str) -> list[str]:
    """The folders that `move_aside` made in `folder`."""
    return [join(folder, name) for name in _names(folder, _ASIDE)]


def leftovers(folder: str) -> list[str]:
    """What lies in `folder` half written or half deleted."""
    return [join(folder, name) for name in _names(folder, _LEFTOVER)]


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
    for path in leftovers(folder):
        remove_tree(path)


def _names(folder: str, pattern: re.Pattern[str]) -> list[str]:
    if not is_folder(folder):
        return []
    return [name for name in list_folder(folder) if pattern.fullmatch(name)]


def _reason(error: StorageError) -> str:
    """What the filesystem or the parser said, without the advice that is for other callers."""
    cause = error.__cause__
    if isinstance(cause, RecursionError):
        return f"{METADATA} is nested too deep"
    if isinstance(cause, ValueError):
        return f"{METADATA} is not JSON: {cause}"
    return str(cause or error)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    return f"{', '.join(names[:_NAMES_TOLD]) or 'nothing'}{more}"


def _files_below(folder: str, prefix: str = "") -> Iterator[str]:
    for name in list_folder(folder):
        inner = join(folder, name)
        if is_folder(inner):
            yield from _files_below(inner, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}"
