"""The newest of several checkpoints that is whole, read by all processes or by none.

Process 0 looks and decides, every process reads its part and reports, and all of them pass over a
checkpoint together. Being passed over deletes and moves nothing.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax

from chomp.checkpoint.candidates import Search
from chomp.checkpoint.layout import (
    DamagedCheckpoint,
    StepFolder,
    is_gone,
    opened,
    problem_with_files,
)
from chomp.checkpoint.read_on_mesh import read_arrays, receipt_problem
from chomp.errors import CheckpointError
from chomp.mesh.distributed import all_gather, broadcast, is_first, raise_together

Targets = Mapping[str, jax.ShapeDtypeStruct]

# For others to read their part: a large state from a slow disk takes a while.
_READ_TIMEOUT_S = 3600.0
# A run that saves deletes one checkpoint at a time, and minutes pass until the next.
_LOOKS = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Whole:
    """A checkpoint and those of its arrays that were wanted, proven by its receipt."""

    found: StepFolder
    leaves: dict[str, jax.Array]


@dataclass(frozen=True)
class Outcome:
    """What a search gave: the newest that is whole, and why each one before it is not."""

    search: Search
    whole: Whole | None
    skipped: dict[str, str]  # newest first


class _Gone(CheckpointError):
    """A checkpoint was deleted after it had been listed, as a run does that saves meanwhile."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was deleted before it was read, as others were before it",
            allowed="a folder whose checkpoints are not deleted",
            fix="give a step-N that the run keeps, or wait until the run has ended",
        )


def newest_whole(
    name: str,
    search_for: Callable[[], Search],
    *,
    check: Callable[[StepFolder], None],
    targets: Callable[[StepFolder], Targets],
) -> Outcome:
    """The newest whole checkpoint of those that `search_for` finds in process 0.

    `check` raises for a checkpoint that is whole and not to be used: then no older one is tried.
    Where one was deleted meanwhile there may be a newer one: it is searched again, a few times.
    """
    for look in range(1, _LOOKS + 1):
        search = Search(**first_decides(name, lambda: asdict(search_for())))
        try:
            return _searched(search, check=check, targets=targets)
        except _Gone as gone:
            if look == _LOOKS:
                raise
            _log.warning("looking again: %s", gone)
    raise AssertionError("the last look returns or raises")


def first_decides(name: str, decide: Callable[[], Any]) -> Any:
    """What process 0 decides (plain, as JSON has it), in all of them; or its error, in all."""
    with raise_together(name):
        decided = decide() if is_first() else None
    return broadcast(f"{name}, as told", decided)


def _searched(
    search: Search,
    *,
    check: Callable[[StepFolder], None],
    targets: Callable[[StepFolder], Targets],
) -> Outcome:
    skipped: dict[str, str] = {}
    for path in search.places:
        outcome = _tried(path, check=check, targets=targets)
        if isinstance(outcome, Whole):
            return Outcome(search, outcome, skipped)
        # All or none raise it: the reason is known to all, and process 0 looks.
        if first_decides("look for a checkpoint that was listed", partial(is_gone, path)):
            raise _Gone(path)
        skipped[path] = outcome
        _log.warning("%s is damaged and passed over: %s", path, outcome)
    return Outcome(search, None, skipped)


def _tried(
    path: str,
    *,
    check: Callable[[StepFolder], None],
    targets: Callable[[StepFolder], Targets],
) -> Whole | str:
    """The checkpoint at `path`, or why it is not whole."""
    reason = first_decides("look at a checkpoint", lambda: _problem(path, check))
    if reason is not None:
        return str(reason)
    with raise_together("read a checkpoint", timeout_s=_READ_TIMEOUT_S):
        outcome = _read(path, targets)
    reason = _anyones(outcome if isinstance(outcome, str) else None)
    if reason is not None:
        return reason
    assert isinstance(outcome, Whole), "as this process has just told"
    # All compute the same hashes, but each compares them with the metadata that it has read.
    reason = _anyones(receipt_problem(outcome.found, outcome.leaves))
    return outcome if reason is None else reason


def _problem(path: str, check: Callable[[StepFolder], None]) -> str | None:
    found = opened(path)
    if not isinstance(found, StepFolder):
        return found.reason
    problem = problem_with_files(found)
    if problem is None:
        check(found)
    return problem


def _read(path: str, targets: Callable[[StepFolder], Targets]) -> Whole | str:
    # The reason alone is kept: an exception would keep the arrays of its frames in memory.
    try:
        found = opened(path)
        if not isinstance(found, StepFolder):
            return found.reason
        return Whole(found, read_arrays(found, targets(found)))
    except DamagedCheckpoint as error:
        return error.reason


def _anyones(reason: str | None) -> str | None:
    """The reasons of all processes that have one, as one text."""
    told = all_gather("what reading a checkpoint gave", reason)
    if len(told) == 1:
        return reason
    bad = [f"process {index}: {text}" for index, text in enumerate(told) if text is not None]
    return "; ".join(bad) or None
