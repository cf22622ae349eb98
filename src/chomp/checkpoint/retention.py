"""Which checkpoints a run keeps for good, and which go when a newer one is complete.

By what is on disk now, never by memory: a checkpoint's metadata is read again right before it is
deleted. What is damaged or moved aside is never touched. All in the folder is the run's own, also
what it saved under an earlier name.
"""

import logging
from dataclasses import dataclass

from chomp.checkpoint.layout import (
    StepFolder,
    list_checkpoints,
    problem_with_files,
    read_step_folder,
    remove_checkpoint,
    remove_leftovers,
)
from chomp.config import Config, setting
from chomp.errors import CheckpointError, StorageError, require

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KeepPolicy(Config):
    """Checkpoints of every so many steps are kept for good, up to and with step `until`."""

    every: int = setting(ge=1, lt=2**31)
    until: int | None = setting(default=None, ge=1, lt=2**31)  # null: to the end of the run


def require_ordered(policies: tuple[KeepPolicy, ...]) -> None:
    """Raise `ConfigError` unless each policy ends later than the one before it."""
    ends = [policy.until for policy in policies]
    bounds = [end for end in ends if end is not None]
    is_ordered = bounds == sorted(set(bounds)) and None not in ends[:-1]
    require(
        is_ordered,
        f"checkpoint.keep with until={ends}",
        allowed="increasing ends; the last may be null",
        fix="sort the policies by until, one for each value",
    )


def is_kept(policies: tuple[KeepPolicy, ...], step: int) -> bool:
    """Whether the checkpoint of `step` is permanent: the first policy that reaches it says."""
    for policy in policies:
        if policy.until is None or step <= policy.until:
            return step % policy.every == 0
    return False


def superseded(folder: str, *, keep_temporary: int) -> list[StepFolder]:
    """The temporary checkpoints in `folder` that are not among its newest `keep_temporary`.

    None while the newest checkpoint is not whole: an older one may be needed yet.
    """
    found = list_checkpoints(folder)
    if not found or problem_with_files(found[-1]) is not None:
        return []
    return [item for item in found[:-keep_temporary] if item.metadata.is_temporary]


def outnumbered(folder: str, *, keep_permanent: int) -> list[StepFolder]:
    """The permanent checkpoints in `folder` that are not among its newest `keep_permanent`.

    None while the newest checkpoint is not whole.
    """
    found = list_checkpoints(folder)
    if not found or problem_with_files(found[-1]) is not None:
        return []
    return [item for item in found if not item.metadata.is_temporary][:-keep_permanent]


def remove_if_temporary(item: StepFolder) -> bool:
    """Whether the checkpoint is temporary and whole at this moment, and therefore deleted now."""
    return _removed(item, is_temporary=True)


def _removed(item: StepFolder, *, is_temporary: bool) -> bool:
    try:
        now = read_step_folder(item.path)
    except CheckpointError:  # gone, or harmed: not ours to judge
        return False
    if now.metadata.is_temporary != is_temporary or problem_with_files(now) is not None:
        return False
    remove_checkpoint(item.path)
    return True


def clean_up(folder: str, *, keep_temporary: int, keep_permanent: int | None = None) -> None:
    """Delete superseded checkpoints and what killed processes left. Only a run's one writer may.

    Not while it saves. What cannot be deleted is logged and tried again after the next save: it
    costs space, and should not cost the run.
    """
    try:
        for item in superseded(folder, keep_temporary=keep_temporary):
            remove_if_temporary(item)
        if keep_permanent is not None:
            for item in outnumbered(folder, keep_permanent=keep_permanent):
                _removed(item, is_temporary=False)
        remove_leftovers(folder)
    except StorageError as error:
        log.warning("an old checkpoint could not be deleted: %s", error)
