"""Checkpoints on disk: their folders, their metadata, and which of them a path means.

    <folder>/step-N/metadata.json    step, run, config, data, receipt
    <folder>/step-N/state/           arrays, written by Orbax
    <folder>/step-N.writing/         a checkpoint that is not finished, or never was
    <folder>/step-N.removing/        one that is being deleted
    <folder>/step-N.damaged-A/       moved out of the way by attempt A, and kept
    <folder>/step-N.forked-A/        newer than the step that attempt A went on from, and kept

A folder gets its final name by one rename, when everything in it is on disk; so `step-N` is
complete or absent. The latest is found by looking, never stored. What a killed process left as
`.writing` or `.removing` is never read, and goes with the next save.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from chomp.errors import CheckpointError, ConfigError, StorageError
from chomp.storage import (
    exists,
    file_info,
    is_folder,
    is_local,
    join,
    json_text,
    list_folder,
    name_of,
    normalise,
    parent_of,
    read_json,
    remove_tree,
    rename_folder,
    write_json_atomic,
)
from chomp.tracking.run_files import CHECKPOINTS

# Goes up whenever an older reader would misunderstand what is written.
FORMAT = 2  # 1 had SHA-256 receipts, a list of files, and no record of shapes
METADATA = "metadata.json"
STATE = "state"
UNFINISHED = ".writing"
REMOVED = ".removing"
NAMES_SHOWN = 5  # of files or arrays, in a message
_OWN_HASH = "metadata_hash"
_PLACES = f"a run folder, its {CHECKPOINTS} folder, or one step-N"
_STEP_FOLDER = re.compile(r"step-(0|[1-9]\d*)")
_LEFTOVER = re.compile(_STEP_FOLDER.pattern + rf"({re.escape(UNFINISHED)}|{re.escape(REMOVED)})")
_ASIDE = re.compile(_STEP_FOLDER.pattern + r"\.(damaged|forked)-\d+(\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class CheckpointMetadata:
    """What a checkpoint says about itself; `step` counts completed optimizer steps.

    Its file is read strictly: an unknown field, a missing one or one of another type is an error,
    never a default. It holds a hash of itself, as receipts guard the arrays alone.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    step: int
    run_id: str
    attempt: int
    config_hash: str
    config: dict[str, Any]
    data_fingerprint: str
    data_offset: int  # examples consumed
    tokens_seen: int
    format: int = FORMAT
    skipped_steps: int = 0  # whose update was skipped, being not finite
    tokenizer_hash: str = ""
    template_hash: str = ""  # of the run folder's template/; "": saved before there was one
    stream_states: dict[str, Any] | None = None  # of components that are read as streams
    is_temporary: bool = False
    time: float = 0.0
    # The checkpoint this attempt went on from: path, run_id, attempt, step; or `initialize_from`.
    continues: dict[str, Any] | None = None
    mesh: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)  # versions, cores, devices
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)  # leaf -> shape, dtype
    receipt: dict[str, str] = field(default_factory=dict)  # leaf -> `chomp.checkpoint.checksums`
    next_batches: list[str] = field(default_factory=list)  # hashes; none where data is a stream
    state_files: dict[str, int] = field(default_factory=dict)  # name below state/ -> bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of all array files together."""
        return sum(self.state_files.values())


_ADAPTER = TypeAdapter(CheckpointMetadata)


@dataclass(frozen=True)
class StepFolder:
    """A complete checkpoint on disk."""

    path: str
    metadata: CheckpointMetadata


@dataclass(frozen=True)
class Unreadable:
    """Something with a checkpoint's name that cannot be read, and why."""

    path: str
    reason: str
    is_other_format: bool = False  # of another version of chomp, which may well read it

    def error(self) -> CheckpointError:
        """The error to raise where this checkpoint is needed."""
        return CheckpointError(
            f"checkpoint {self.path} cannot be read: {self.reason}",
            allowed="checkpoints saved by this version of chomp",
            fix=f"use the version that wrote it, or move {self.path} away to continue without it",
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointPlace:
    """What a path means: a folder of checkpoints, and the one of them that it names."""

    folder: str
    step: str | None = None  # the path of one step-N, where that was given
    run: str | None = None  # the run folder around it, where it lies in one


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is not as it was saved; `reason` says in a few words how."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"checkpoint {path} is damaged: {reason}",
            allowed="files as they were saved",
            fix="choose another checkpoint, or restore this one from a copy",
        )
        self.reason = reason


# ---- Names ---------------------------------------------------------------------------------------


def step_path(folder: str, step: int) -> str:
    """Where the checkpoint of `step` lies once it is complete."""
    return join(folder, f"step-{step}")


def step_of_name(name: str) -> int | None:
    """The step whose checkpoint has this name; None for every other name, `step-007` too."""
    match = _STEP_FOLDER.fullmatch(name)
    return None if match is None else int(match[1])


def state_path(path: str) -> str:
    """Where Orbax keeps the arrays of a checkpoint folder, as it takes paths: absolute."""
    inner = join(path, STATE)
    return os.path.abspath(inner) if is_local(inner) else inner


def run_around(folder: str) -> str | None:
    """The run folder that a folder of checkpoints lies in; None where it lies in none."""
    return parent_of(folder) if name_of(folder) == CHECKPOINTS else None


def moved_aside(folder: str) -> list[str]:
    """The folders that `move_aside` made in `folder`."""
    return [join(folder, name) for name in _names(folder, _ASIDE)]


def leftovers(folder: str) -> list[str]:
    """What lies in `folder` half written or half deleted."""
    return [join(folder, name) for name in _names(folder, _LEFTOVER)]


def is_gone(path: str) -> bool:
    """Whether nothing has a checkpoint's name any more, as when its run deleted it meanwhile."""
    return name_of(path) not in _names(parent_of(path), _STEP_FOLDER)


def place_of(path: str) -> CheckpointPlace:
    """What `path` means: a run folder, its checkpoints folder or one step-N; else `ConfigError`."""
    full = normalise(path)
    full = os.path.abspath(full) if is_local(full) else full
    name, around = name_of(full), parent_of(full)
    if not is_folder(full):
        near = ", ".join(_names(around, _STEP_FOLDER))
        fix = f"choose one of {near}" if near else "correct the path"
        raise ConfigError(f"{path} does not exist", allowed=_PLACES, fix=fix)
    if is_folder(join(full, CHECKPOINTS)):  # first: a run may be called step-3
        return CheckpointPlace(folder=join(full, CHECKPOINTS), run=full)
    if step_of_name(name) is not None:
        return CheckpointPlace(folder=around, step=full, run=run_around(around))
    aside = _ASIDE.fullmatch(name)
    if (other := aside or re.fullmatch(r"step-(\d+)", name)) is not None:  # such as step-007
        own = f"step-{int(other[1])}"
        what = "a checkpoint that was moved aside" if aside else "not the name of a checkpoint"
        raise ConfigError(
            f"{path} is {what}",
            allowed=f"step-N with a plain number, such as {own}",
            fix=f"move any {own} away, rename this folder to {own}, and give that path",
        )
    if name == CHECKPOINTS or any(_names(full, kind) for kind in (_STEP_FOLDER, _LEFTOVER, _ASIDE)):
        return CheckpointPlace(folder=full, run=run_around(full))
    raise ConfigError(
        f"{path} is a folder without checkpoints",
        allowed=_PLACES,
        fix="correct the path, or wait until the run has saved",
    )


def _names(folder: str, pattern: re.Pattern[str]) -> list[str]:
    names = list_folder(folder) if is_folder(folder) else []
    return [name for name in names if pattern.fullmatch(name)]


# ---- Reading -------------------------------------------------------------------------------------


def checkpoints_at(place: CheckpointPlace) -> list[StepFolder | Unreadable]:
    """The checkpoint that was named, or all at the place; readable or not, newest first.

    What a run deletes meanwhile is left out.
    """
    steps = [int(name.removeprefix("step-")) for name in _names(place.folder, _STEP_FOLDER)]
    paths = [step_path(place.folder, step) for step in sorted(steps)]
    found = [open_checkpoint(path) for path in paths if place.step in (None, path)]
    found = [item for item in found if isinstance(item, StepFolder) or not is_gone(item.path)]
    return found[::-1]


def require_checkpoints_at(place: CheckpointPlace) -> list[StepFolder | Unreadable]:
    """The same, and at least one: `CheckpointError` where there is nothing."""
    if found := checkpoints_at(place):
        return found
    raise CheckpointError(
        f"{place.step or place.folder} has no checkpoint",
        allowed="a folder with at least one step-N",
        fix="correct the path, or wait until the run has saved",
    )


def list_checkpoints(folder: str) -> list[StepFolder]:
    """The readable checkpoints in `folder`, oldest first."""
    found = reversed(checkpoints_at(CheckpointPlace(folder=folder)))
    return [item for item in found if isinstance(item, StepFolder)]


def latest_checkpoint(folder: str) -> StepFolder | None:
    """The readable checkpoint of the highest step; None where there is none."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def read_step_folder(path: str) -> StepFolder:
    """The checkpoint in a folder; it must be complete, of this version and under its own name."""
    found = open_checkpoint(path)
    if isinstance(found, Unreadable):
        raise found.error()
    return found


def open_checkpoint(path: str) -> StepFolder | Unreadable:
    """The checkpoint in a folder, or why it cannot be read."""
    location = join(path, METADATA)
    try:
        if not is_folder(path):
            return Unreadable(path, "it is no folder")
        if not exists(location):
            return Unreadable(path, f"it has no {METADATA}")
        value = read_json(location)
        if not isinstance(value, dict):
            return Unreadable(path, f"{METADATA}: it is no JSON object")
        own_hash = value.pop(_OWN_HASH, None)
        is_whole = own_hash == _hash_of(value)
        # A flipped byte may hit `format` too: where the hash agrees, somebody meant it.
        saved_format = value.get("format", 1)
        if saved_format != FORMAT and (is_whole or own_hash is None):
            reason = f"it has format {saved_format!r}, and this version of chomp reads {FORMAT}"
            return Unreadable(path, f"{METADATA}: {reason}", is_other_format=True)
        if not is_whole:
            reason = f"it is not as it was written: {_OWN_HASH} says otherwise"
            return Unreadable(path, f"{METADATA}: {reason}")
        # By way of text: pydantic's strict mode takes a mapping for a dataclass only from there.
        metadata = _ADAPTER.validate_json(json.dumps(value), strict=True)
    except StorageError as error:  # one bad neighbour must not hide the others
        return Unreadable(path, _reason(error))
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors())
        return Unreadable(path, f"{METADATA}: {'; '.join(wrong)}")
    except ValueError as error:
        return Unreadable(path, f"{METADATA}: {error}")
    # A copy under another step's name would pass for that step when it is to be saved.
    if name_of(path) != f"step-{metadata.step}":
        return Unreadable(path, f"it holds the checkpoint of step {metadata.step}")
    return StepFolder(path, metadata)


def problem_with_files(found: StepFolder) -> str | None:
    """What is wrong with the files of a checkpoint's arrays, by name and size; None if nothing."""
    try:
        wanted, there = found.metadata.state_files, state_file_sizes(found.path)
    except StorageError as error:  # they cannot even be looked at
        return f"state/ cannot be looked at: {_reason(error)}"
    missing, extra = sorted(wanted.keys() - there.keys()), sorted(there.keys() - wanted.keys())
    if missing or extra:
        return f"state/ lacks {some_of(missing)} and has {some_of(extra)} besides"
    for name, size in wanted.items():
        if there[name] != size:
            return f"state/{name} has {there[name]:,} bytes instead of {size:,}"
    return None


def state_file_sizes(path: str) -> dict[str, int]:
    """The files that hold a checkpoint's arrays, by their names below state/, with their bytes."""

    def below(folder: str, prefix: str) -> Iterator[tuple[str, int]]:
        for name in list_folder(folder):
            inner = join(folder, name)
            if is_folder(inner):
                yield from below(inner, f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", file_info(inner).size_bytes

    state = join(path, STATE)
    return dict(sorted(below(state, ""))) if is_folder(state) else {}


def some_of(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{', '.join(names[:NAMES_SHOWN]) or 'nothing'}{more}"


def _hash_of(fields: dict[str, Any]) -> str:
    text = json_text(fields, name=METADATA, indent=None, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _reason(error: StorageError) -> str:
    """What the filesystem or the parser said, without the advice that is for other callers."""
    cause = error.__cause__
    if isinstance(cause, RecursionError):
        return f"{METADATA} is nested too deep"
    if isinstance(cause, ValueError):
        return f"{METADATA} is not JSON: {cause}"
    return str(cause or error)


# ---- Writing -------------------------------------------------------------------------------------


def write_metadata(path: str, metadata: CheckpointMetadata) -> None:
    """Write or replace the metadata in a checkpoint folder."""
    write_json_atomic(join(path, METADATA), signed(asdict(metadata)))


def signed(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a metadata file with the hash of them all."""
    return {**fields, _OWN_HASH: _hash_of(fields)}


def move_aside(path: str, *, why: Literal["damaged", "forked"], attempt: int) -> str:
    """Take a checkpoint's name away and keep all it holds; gives the new path."""
    target = aside = f"{path}.{why}-{attempt}"
    number = 2
    while exists(target):
        target, number = f"{aside}.{number}", number + 1
    rename_folder(path, target)
    return target


def remove_checkpoint(path: str) -> None:
    """Delete a checkpoint; at no instant does a half-deleted one have a complete one's name."""
    removed = path + REMOVED
    if exists(removed):
        remove_tree(removed)
    rename_folder(path, removed)
    remove_tree(removed)
