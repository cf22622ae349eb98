"""Which checkpoint is meant by a path: a run folder, its checkpoints folder, or one step-N.

Looking only: nothing is chosen by content here beyond "newest", and nothing is ever moved.
"""

import os
import re
from dataclasses import dataclass

from chomp.checkpoint.layout import (
    CHECKPOINTS,
    StepFolder,
    Unreadable,
    leftovers,
    look,
    moved_aside,
    name_before,
    step_of_name,
)
from chomp.errors import CheckpointError, ConfigError
from chomp.storage import (
    is_folder,
    is_local,
    join,
    list_folder,
    name_of,
    normalise,
    parent_of,
)

_LIKE_A_STEP = re.compile(r"step-\d+")  # also `step-007`, which is none


@dataclass(frozen=True, kw_only=True)
class CheckpointPlace:
    """Where checkpoints are looked for: the folder of all of them, and the one that was named."""

    folder: str
    step: str | None = None  # the path of one step-N, where that was given
    run: str | None = None  # the run folder around it, where it lies in one


def place_of(path: str) -> CheckpointPlace:
    """What `path` means; `ConfigError` where it is no place of checkpoints."""
    full = normalise(path)
    full = os.path.abspath(full) if is_local(full) else full
    _require_folder(path, full)
    if is_folder(join(full, CHECKPOINTS)):  # first: a run may be called step-3
        return CheckpointPlace(folder=join(full, CHECKPOINTS), run=full)
    _require_own_name(path, name_of(full))
    if step_of_name(name_of(full)) is not None:
        folder = parent_of(full)
        return CheckpointPlace(folder=folder, step=full, run=run_around(folder))
    if name_of(full) == CHECKPOINTS or _holds_checkpoints(full):
        return CheckpointPlace(folder=full, run=run_around(full))
    raise ConfigError(
        f"{path} is a folder without checkpoints",
        allowed=f"a run folder, its {CHECKPOINTS} folder, or one step-N",
        fix="correct the path, or wait until the run has saved",
    )


def found_at(place: CheckpointPlace) -> list[StepFolder | Unreadable]:
    """The checkpoint that was named, or all at the place; readable or not, newest first."""
    readable, others = look(place.folder)
    found: list[StepFolder | Unreadable] = [*readable, *others]
    found.sort(key=lambda item: step_of_name(name_of(item.path)) or 0, reverse=True)
    return [item for item in found if place.step in (None, item.path)]


def some_at(place: CheckpointPlace) -> list[StepFolder | Unreadable]:
    """The same, and at least one: `CheckpointError` where there is nothing."""
    if found := found_at(place):
        return found
    raise CheckpointError(
        f"{place.step or place.folder} has no checkpoint",
        allowed="a folder with at least one step-N",
        fix="correct the path, or wait until the run has saved",
    )


def run_around(folder: str) -> str | None:
    """The run folder that a folder of checkpoints lies in; None where it lies in none."""
    return parent_of(folder) if name_of(folder) == CHECKPOINTS else None


def _holds_checkpoints(folder: str) -> bool:
    has_steps = any(step_of_name(name) is not None for name in list_folder(folder))
    return has_steps or bool(leftovers(folder) or moved_aside(folder))


def _require_folder(path: str, full: str) -> None:
    if is_folder(full):
        return
    around = parent_of(full)
    names = list_folder(around) if is_folder(around) else []
    near = [name for name in names if step_of_name(name) is not None]
    raise ConfigError(
        f"{path} does not exist",
        allowed="a run folder, its checkpoints folder, or one step-N",
        fix=f"choose one of {', '.join(near)}" if near else "correct the path",
    )


def _require_own_name(path: str, name: str) -> None:
    """Raise `ConfigError` for a folder that would be a checkpoint under another name."""
    if (before := name_before(name)) is not None:
        raise ConfigError(
            f"{path} is a checkpoint that was moved aside",
            allowed=f"the checkpoint under its own name, {before}",
            fix=f"move any {before} away, rename this folder to {before}, and give that path",
        )
    if _LIKE_A_STEP.fullmatch(name) and step_of_name(name) is None:
        own = f"step-{int(name.removeprefix('step-'))}"
        raise ConfigError(
            f"{path} is not the name of a checkpoint",
            allowed=f"step-N with a plain number, such as {own}",
            fix=f"use {own}; rename this folder if it holds that step",
        )
