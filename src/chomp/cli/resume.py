"""`chomp train --resume`: where a run goes on, settled before anything of it is started.

Without it a run continues what its folder holds. `none` insists on a folder without checkpoints,
`latest` on one that has some. A number goes back to the checkpoint of that step, once: the run
moves newer ones aside after it has restored, and keeps them. The same command then continues.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from chomp.errors import CheckpointError, LaunchError, message, require

if TYPE_CHECKING:  # for annotations alone
    from chomp.executor import PlannedStep

Resume = Literal["none", "latest"] | int

_STEPS_TOLD = 8


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What is to be done so that a run goes on where it was told to."""

    told: str | None = None  # for whoever asked
    overrides: Sequence[str] = ()  # of the run's config
    is_reopened: bool = False  # it is done, and is to go back


def resume_wish(text: str | None) -> Resume | None:
    """What `--resume` says; None: continue what is there."""
    require(
        text is None or text in ("none", "latest") or (text.isascii() and text.isdecimal()),
        given=f"--resume {text}",
        allowed="none (a fresh start), latest (a checkpoint must be there), or the number of a "
        "step that has one, 0 or more",
        fix="write one of these, or leave it out to continue what there is",
    )
    if text is None or not text.isdecimal():
        return text  # type: ignore[return-value]  # one of the two words, as was just required
    return int(text)


def beginning(run: PlannedStep, wish: Resume) -> Beginning:
    """How a planned run goes on as is wished; raises `CheckpointError` where it cannot."""
    from chomp.checkpoint.layout import CHECKPOINTS, latest_checkpoint
    from chomp.storage import join

    folder = join(run.path, CHECKPOINTS)
    # What is forced is moved aside first, with its checkpoints.
    steps = [] if run.is_forced else checkpoint_steps(run.path)
    if wish == "none":
        _require_fresh(run, folder, steps)
        return Beginning(told="--resume none: a fresh start")
    require(
        not run.is_forced,
        given=f"--resume {wish} with --force",
        allowed="one of them: --force moves the checkpoints aside and starts over",
        fix="leave one out",
    )
    if wish == "latest":
        newest = latest_checkpoint(folder)
        if newest is None:
            raise _not_there(wish, folder, steps)
        return Beginning(told=f"--resume latest: from step {newest.metadata.step}")
    if not steps:
        raise _not_there(wish, folder, steps)
    assert isinstance(wish, int), "one of the words was dealt with"
    return _back_to(run, folder, wish, steps)


def reopen(run: PlannedStep) -> None:
    """Let a run that is done be run again, in its folder as it is."""
    from chomp.executor.status import LOCK, read_status, write_status
    from chomp.storage import FileLock, join

    lock = FileLock.try_acquire(join(run.path, LOCK))
    if lock is None:
        raise _held(run)
    with lock:
        status = read_status(run.path)
        if status is not None and status.state == "SUCCESS":
            # As one that was stopped: whatever happens next, the same command continues it.
            again = replace(status, state="INTERRUPTED", error="it is to go back (--resume)")
            write_status(run.path, again)


def _back_to(run: PlannedStep, folder: str, step: int, steps: list[int]) -> Beginning:
    newest = _came_from(folder, step)
    # The same command, which has gone back before; with another config it goes back once more.
    is_again = newest is not None and _is_same_config(run) and not _goes_back_always(run)
    if is_again and run.action == "skip":
        return Beginning(
            told=f"--resume {step}: the run has gone on from step-{step} and is done. To go back "
            "once more, add -o train.load_checkpoint=true"
        )
    # Once a run has gone on, the step itself may have been cleaned up.
    if step not in steps and not is_again:
        raise _not_there(step, folder, steps)
    if run.action == "wait":
        raise _held(run)
    place = _place_of(folder, step)
    overrides = [f"trainer.load_checkpoint_path={place}"]
    if is_again:
        told = f"--resume {step}: continues the line begun at step-{step}: from step-{newest}"
        return Beginning(told=told, overrides=tuple(overrides))
    later = [each for each in steps if each > step]
    if not later and run.action == "skip":
        return Beginning()  # it is done, and said to be
    if newest is not None:
        overrides.append("trainer.load_checkpoint=true")  # else the run would continue its line
    told = f"--resume {step}: from {place}"
    if later:
        told += f". Newer ones are moved aside and kept: {_listed(later)}"
    is_done = run.found is not None and run.found.state == "SUCCESS"
    return Beginning(
        told=told, overrides=tuple(overrides), is_reopened=is_done and run.action == "skip"
    )


def _is_same_config(run: PlannedStep) -> bool:
    return run.found is not None and run.found.identity == run.identity.hash


def _place_of(folder: str, step: int) -> str:
    from chomp.checkpoint.layout import step_path
    from chomp.storage import is_local

    place = step_path(folder, step)
    return os.path.abspath(place) if is_local(place) else place


def checkpoint_steps(run: str) -> list[int]:
    """The steps of a run folder with a checkpoint, complete or not."""
    from chomp.checkpoint.layout import CHECKPOINTS, step_of_name
    from chomp.storage import is_folder, join, list_folder

    folder = join(run, CHECKPOINTS)
    names = list_folder(folder) if is_folder(folder) else []
    return sorted(step for step in map(step_of_name, names) if step is not None)


def _came_from(folder: str, step: int) -> int | None:
    """The newest step, if it is of a line that was told to go on from that step; else None."""
    from chomp.checkpoint.candidates import ASKED_FOR
    from chomp.checkpoint.layout import latest_checkpoint

    newest = latest_checkpoint(folder)
    if newest is None:
        return None
    begun = newest.metadata.continues or {}
    return newest.metadata.step if begun.get(ASKED_FOR) == f"step-{step}" else None


def _goes_back_always(run: PlannedStep) -> bool:
    """Whether the config itself says that a step is gone back to however often it was before."""
    trainer = getattr(run.config, "trainer", None)
    return getattr(trainer, "load_checkpoint", None) is True


def _require_fresh(run: PlannedStep, folder: str, steps: list[int]) -> None:
    if steps:
        from chomp.launch.telling import force_flag

        raise CheckpointError(
            message(
                given=f"--resume none, but {folder} has {_listed(steps)}",
                allowed="a fresh start in a folder without checkpoints",
                fix=f"leave out --resume to continue, choose another --run-dir, or pass "
                f"{force_flag(run)}, which moves the earlier run aside",
            )
        )


def _not_there(wish: Resume, folder: str, steps: list[int]) -> CheckpointError:
    known = _listed(steps) if steps else "no checkpoint"
    others = "one of those" if steps else "latest or a step only where the run has saved"
    if wish == "latest" and steps:
        known, others = f"only incomplete checkpoints ({known})", "a complete checkpoint"
    return CheckpointError(
        message(
            given=f"--resume {wish}, but {folder} has {known}",
            allowed=others,
            fix="correct it or --run-dir, or leave out --resume",
        )
    )


def _held(run: PlannedStep) -> LaunchError:
    from chomp.executor.status import LOCK
    from chomp.storage import join, lock_holder

    holder = lock_holder(join(run.path, LOCK))
    stop = f" (kill {holder.pid} on {holder.host})" if holder else ""
    return LaunchError(
        f"--resume with {run.path}, which is held by {holder or 'another process'}",
        allowed="a run that no process is training",
        fix=f"wait for that process, or stop it{stop}; the same command then continues",
    )


def _listed(steps: list[int]) -> str:
    told = [f"step-{step}" for step in steps]
    if len(told) > _STEPS_TOLD:
        told = [*told[: _STEPS_TOLD // 2], "...", *told[-_STEPS_TOLD // 2 :]]
    return ", ".join(told)
