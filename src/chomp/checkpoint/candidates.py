"""Where a run looks for the state to go on from: its own folder, or a place it is told.

Only names and metadata are read here; nothing is moved.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from chomp.checkpoint.layout import (
    CHECKPOINTS,
    StepFolder,
    Unreadable,
    leftovers,
    moved_aside,
    unreadable_error,
)
from chomp.checkpoint.places import CheckpointPlace, found_at, place_of
from chomp.errors import CheckpointError, require
from chomp.storage import is_local, join, name_of, normalise, parent_of

# In `continues`, how a checkpoint's line began; every later attempt hands them on.
ASKED_FOR = "load_checkpoint_path"
WEIGHTS_FROM = "initialize_from"
WEIGHTS_CHOSEN = "initialize_weights"

_log = logging.getLogger(__name__)


@runtime_checkable
class LoadSettings(Protocol):
    """What a run is told about the state it begins with; a trainer config has these fields."""

    @property
    def load_checkpoint(self) -> bool | None:
        """None takes what is there, True must find a checkpoint, False must start fresh."""

    @property
    def load_checkpoint_path(self) -> str | None:
        """A place to go on from while the run has nothing newer that came from there.

        With `load_checkpoint=True` a step of the run itself is gone back to in any case.
        """

    @property
    def initialize_from(self) -> str | None:
        """A place whose weights a run without a checkpoint begins with."""

    @property
    def initialize_weights(self) -> Literal["current", "ema"]:
        """Which weights of that place: those of its last step, or their average."""

    @property
    def allow_changes(self) -> tuple[str, ...]:
        """Schedule fields that may differ from the checkpoint's."""

    @property
    def allow_fresh_start(self) -> bool:
        """Whether checkpoints that are all damaged may be put aside for a fresh start."""


@dataclass(frozen=True)
class Search:
    """What may be restored, and what restoring it means. Plain, so that processes can tell it."""

    places: list[str]  # step folders, readable or not, newest first
    is_own: bool = True  # in the run's own folder: what is damaged there may be moved aside
    is_fork: bool = False  # a step of its own that the run goes back to
    newer: list[str] = field(default_factory=list)  # which that leaves behind
    came_from: str | None = None  # the place its own began at, if that is not its own folder


def require_sound(settings: LoadSettings) -> None:
    """Raise `ConfigError` for settings of which one would silently be ignored."""
    path = settings.load_checkpoint_path
    require(
        path is None or settings.load_checkpoint is not False,
        f"trainer.load_checkpoint=false with load_checkpoint_path={path}",
        allowed="a path to load from, or a fresh start, not both",
        fix="remove one of the two",
    )
    require(
        settings.initialize_weights == "current" or settings.initialize_from is not None,
        f"train.initialize_weights={settings.initialize_weights} without train.initialize_from",
        allowed="a choice of weights where those of another run are loaded",
        fix="set train.initialize_from to a checkpoint, or remove train.initialize_weights",
    )


def search_for(folder: str, settings: LoadSettings) -> Search:
    """What a run with checkpoints in `folder` may go on from; no places: nothing, start fresh."""
    own = restorable(CheckpointPlace(folder=folder))
    asked = settings.load_checkpoint_path
    if settings.load_checkpoint is False and own:
        raise CheckpointError(
            f"trainer.load_checkpoint=false, but {own[0].path} exists",
            allowed="a fresh start in a folder without checkpoints",
            fix="set trainer.load_checkpoint=null to continue, or use another output folder",
        )
    if asked is None:
        search = Search(places_of(own))
    else:
        search = _search_at(asked, folder, own, must=settings.load_checkpoint is True)
    if not search.places and settings.load_checkpoint is True:
        raise CheckpointError(
            f"trainer.load_checkpoint=true, but {folder} has no complete checkpoint",
            allowed="a folder with at least one step-N",
            fix="correct the path, or set trainer.load_checkpoint=null to start from scratch",
        )
    if not search.places:
        _tell_what_is_passed_over(folder)
    return search


def search_at(place: str) -> Search:
    """What may be read at a place that belongs to some other run."""
    return Search(places_of(restorable(place_of(place))), is_own=False)


def restorable(place: CheckpointPlace) -> list[StepFolder | Unreadable]:
    """What is at a place, newest first; `CheckpointError` for one of another version of chomp."""
    found = found_at(place)
    for item in found:
        if isinstance(item, Unreadable) and item.is_other_format:
            raise unreadable_error(item)  # whole, as far as anyone knows: not to be passed over
    return found


def places_of(found: Iterable[StepFolder | Unreadable]) -> list[str]:
    """Paths of checkpoints in their order."""
    return [item.path for item in found]


def lineage(found: StepFolder, folder: str, settings: LoadSettings) -> dict[str, Any]:
    """What the checkpoints of an attempt that goes on from `found` say in `continues`."""
    begun = found.metadata.continues or {}
    handed_on = (ASKED_FOR, WEIGHTS_FROM, WEIGHTS_CHOSEN)
    kept = {key: begun[key] for key in handed_on if key in begun}
    if settings.load_checkpoint_path is not None:
        kept[ASKED_FOR] = _one_spelling(settings.load_checkpoint_path, folder)
    return described(found) | kept


def described(found: StepFolder) -> dict[str, Any]:
    """The one checkpoint that is meant, however often its run was tried."""
    metadata = found.metadata
    return {
        "path": found.path,
        "run_id": metadata.run_id,
        "attempt": metadata.attempt,
        "step": metadata.step,
    }


def _search_at(
    asked: str, folder: str, own: list[StepFolder | Unreadable], *, must: bool
) -> Search:
    """What `load_checkpoint_path` means, seen from a run that may have checkpoints of its own."""
    is_again = must and _is_same(parent_of(asked), folder)
    # Before the place is looked at, which may be gone by now.
    if own and not is_again and _is_continued(own, _one_spelling(asked, folder)):
        _log.warning(
            "load_checkpoint_path=%s: this run went on from there before, and continues from its "
            "own newest checkpoint, %s. To begin there once more, move the newer ones elsewhere",
            asked,
            own[0].path,
        )
        came_from = None if _is_inside(asked, folder) else asked
        return Search(places_of(own), came_from=came_from)
    place = place_of(asked)
    if _is_same(place.folder, folder):
        return _search_inside(asked, place, own)
    there = restorable(place)
    _require_free(asked, own)
    _require_any(asked, there)
    _log.warning("load_checkpoint_path: going on from %s, not from %s", there[0].path, folder)
    return Search(places_of(there), is_own=False)


def _search_inside(
    asked: str, place: CheckpointPlace, own: list[StepFolder | Unreadable]
) -> Search:
    """The run's own folder, or the step in it that the run goes back to."""
    if place.step is None:
        return Search(places_of(own))
    wanted = name_of(place.step)
    there = [item for item in own if name_of(item.path) == wanted]
    _require_any(asked, there)
    newer = own[: own.index(there[0])]
    return Search(places_of(there), is_fork=True, newer=places_of(newer))


def _is_continued(own: list[StepFolder | Unreadable], asked: str) -> bool:
    """Whether a run's newest checkpoint came from the place that is asked for.

    Where no metadata can be read nobody knows: then the run's own are looked at first.
    """
    readable = [item for item in own if isinstance(item, StepFolder)]
    return not readable or (readable[0].metadata.continues or {}).get(ASKED_FOR) == asked


def _require_free(asked: str, own: list[StepFolder | Unreadable]) -> None:
    if own:
        raise CheckpointError(
            f"load_checkpoint_path={asked}, but {own[0].path} exists and did not come from there",
            allowed="an output folder whose checkpoints came from that path, or one without any",
            fix="remove trainer.load_checkpoint_path to continue this run, or use another "
            "output folder",
        )


def _require_any(asked: str, there: list[StepFolder | Unreadable]) -> None:
    if not there:
        raise CheckpointError(
            f"load_checkpoint_path={asked} has no complete checkpoint",
            allowed="a step-N folder, a folder of those, or a run folder",
            fix="correct the path, or remove it to start from scratch",
        )


def _tell_what_is_passed_over(folder: str) -> None:
    """Say what lies in a folder without checkpoints, so that no fresh start is a surprise."""
    names = [name_of(path) for path in [*leftovers(folder), *moved_aside(folder)]]
    if names:
        _log.warning(
            "%s has no complete checkpoint, only %s: starting without", folder, ", ".join(names)
        )


def _one_spelling(asked: str, folder: str) -> str:
    """A place as `continues` names it: by its step where it is the run's own, which may move."""
    is_inside = _is_same(parent_of(asked), folder)
    return name_of(asked) if is_inside else _real(asked)


def _is_inside(asked: str, folder: str) -> bool:
    """Whether a place is the run's own: its folder of checkpoints, the one around, a step."""
    return any(_is_same(at, folder) for at in (asked, parent_of(asked), join(asked, CHECKPOINTS)))


def _is_same(one: str, other: str) -> bool:
    return _real(one) == _real(other)


def _real(place: str) -> str:
    return os.path.realpath(place) if is_local(place) else normalise(place)
