"""The state a run begins with: which checkpoint, and why; its weights alone; or a fresh start.

Process 0 looks and decides, every process reads its part and reports, and all of them go on with
one checkpoint, or pass over it, together. A checkpoint is checked before its arrays are read and
proven by its receipt after. One that is damaged is passed over for an older one; one of another run
is an error at once. What exists and cannot be restored is never silently replaced by a fresh start.
Folders are moved aside last, when nothing can fail any more: a restore that fails changes nothing.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import jax
from jax.sharding import Mesh

from chomp.checkpoint.arrays import (
    AVERAGE,
    WEIGHTS,
    Targets,
    average_at,
    named_leaves,
    read_arrays,
    receipt_problem,
    targets_of,
    with_leaves,
    within,
    without,
)
from chomp.checkpoint.compatibility import (
    allowed_changes,
    require_same_arrays,
    require_same_run,
    warn_unless_exact,
)
from chomp.checkpoint.format import (
    CHECKPOINTS,
    CheckpointMetadata,
    CheckpointPlace,
    DamagedCheckpoint,
    StepFolder,
    Unreadable,
    checkpoints_at,
    is_gone,
    leftovers,
    move_aside,
    moved_aside,
    open_checkpoint,
    place_of,
    problem_with_files,
)
from chomp.config import config_difference
from chomp.errors import CheckpointError, require
from chomp.mesh.distributed import all_gather, broadcast, is_first, raise_together
from chomp.storage import is_local, join, name_of, normalise, parent_of

# In `continues`, how a checkpoint's line began; every later attempt hands them on.
ASKED_FOR = "load_checkpoint_path"
WEIGHTS_FROM = "initialize_from"
WEIGHTS_CHOSEN = "initialize_weights"

# For others to read their part: a large state from a slow disk takes a while.
_READ_TIMEOUT_S = 3600.0
# A run that saves deletes one checkpoint at a time, and minutes pass until the next.
_LOOKS = 3

State = TypeVar("State")
WeightsName = Literal["params", "ema"]
_FIELDS: dict[WeightsName, str] = {"params": WEIGHTS, "ema": AVERAGE}
_Check = Callable[[StepFolder], None]
_TargetsOf = Callable[[StepFolder], Targets]
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
class LoadOptions:
    """`LoadSettings` as plain values, for callers without a trainer config."""

    load_checkpoint: bool | None = None
    load_checkpoint_path: str | None = None
    initialize_from: str | None = None
    initialize_weights: Literal["current", "ema"] = "current"
    allow_changes: tuple[str, ...] = ()
    allow_fresh_start: bool = False


@dataclass(frozen=True)
class Resume(Generic[State]):
    """The state a run begins with, which checkpoint it is of, and why that one."""

    state: State
    found: StepFolder | None  # the checkpoint it goes on from; None: step 0
    continues: dict[str, Any] | None  # the same for the metadata of its checkpoints
    reason: str  # in a few words, for the log
    skipped: Mapping[str, str] = field(default_factory=dict)  # damaged ones, newest first, and why


@dataclass(frozen=True)
class LoadedWeights:
    """A checkpoint and those of its weights that were asked for and are there."""

    found: StepFolder
    models: dict[WeightsName, Any]  # each a tree like the state's `params`


# ---- The state of a run --------------------------------------------------------------------------


def restore_latest_or_initialize(
    folder: str,
    initialize: Callable[[], State],
    *,
    about: CheckpointMetadata,
    mesh: Mesh,
    settings: LoadSettings,
    config: Any = None,
    data_offset_at: Callable[[int], int] | None = None,
    past_fingerprint: Callable[[CheckpointMetadata], str] | None = None,
    proof: Callable[[StepFolder], None] | None = None,
) -> Resume[State]:
    """The newest whole state in `folder`, or where `settings` point, or else a fresh one.

    `about` is the run as it is now and `config` its typed config, whose marks decide what may
    differ (without it, nothing may). `data_offset_at` gives the examples before a step by the
    present batch sizes; `past_fingerprint` that of the present data by the mixture a checkpoint was
    saved with, as stages may have changed since. `proof` raises for a state that was restored and
    may not be gone on from. Every process calls this, and all get the same or raise.
    """
    require(
        settings.load_checkpoint_path is None or settings.load_checkpoint is not False,
        f"trainer.load_checkpoint=false with load_checkpoint_path={settings.load_checkpoint_path}",
        allowed="a path to load from, or a fresh start, not both",
        fix="remove one of the two",
    )
    require(
        settings.initialize_weights == "current" or settings.initialize_from is not None,
        f"train.initialize_weights={settings.initialize_weights} without train.initialize_from",
        allowed="a choice of weights where those of another run are loaded",
        fix="set train.initialize_from to a checkpoint, or remove train.initialize_weights",
    )
    allowed = allowed_changes(config, settings.allow_changes)
    abstract = jax.eval_shape(initialize)
    targets = targets_of(abstract, mesh)

    def check(found: StepFolder) -> None:
        now = about
        # Without a typed config nobody knows which fields matter, so their hash has to say it.
        if config is None and about.config_hash == found.metadata.config_hash:
            now = replace(about, config=found.metadata.config)
        if past_fingerprint is not None:
            now = replace(now, data_fingerprint=past_fingerprint(found.metadata))
        marked = about.config if config is None else config
        require_same_run(found, now, config=marked, allowed=allowed, data_offset_at=data_offset_at)
        # The same arrays, but for an average that is kept only then or only now.
        saved, wanted = found.metadata.arrays, readable(found)
        is_left_out = not within(targets, AVERAGE)
        require_same_arrays(found.path, without(saved, AVERAGE) if is_left_out else saved, wanted)
        if is_left_out and within(saved, AVERAGE):
            _log.warning("the averaged weights of %s are left out", found.path)
        if len(wanted) < len(targets):
            _log.warning(
                "%s has no averaged weights: the average starts at its weights", found.path
            )

    def readable(found: StepFolder) -> Targets:
        has_average = bool(within(found.metadata.arrays, AVERAGE))
        return targets if has_average else without(targets, AVERAGE)

    find = partial(_find_newest, "find checkpoints", check=check, targets=readable)
    search, newest, skipped = find(lambda: search_for(folder, settings))
    own_damaged = list(skipped) if search.is_own else []
    if newest is None and search.came_from is not None and settings.allow_fresh_start:
        # A start from where the run began is less lost than a start from nothing.
        came_from = search.came_from
        _log.warning(
            "No checkpoint of this run could be restored; starting again from %s:%s",
            came_from,
            _listed(skipped),
        )
        _, newest, others = find(lambda: _search_elsewhere(came_from))
        skipped |= others
    if newest is None:
        if search.paths:
            _require_fresh_start_allowed(search, skipped, settings)
        fresh = _fresh(initialize, settings, about=about, mesh=mesh, skipped=skipped)
        _put_aside(own_damaged, "damaged", about.attempt)
        return fresh
    found, leaves = newest
    if proof is not None:
        with raise_together("proof of a checkpoint"):
            proof(found)
    unread = {name: leaf for name, leaf in targets.items() if name not in leaves}
    state: State = with_leaves(abstract, leaves | average_at(leaves, unread))
    warn_unless_exact(found, about)
    # A save would take these names for checkpoints that are done.
    _put_aside(own_damaged, "damaged", about.attempt)
    if search.newer:
        names = ", ".join(search.newer)
        _log.warning("going back to %s: what is newer is moved aside: %s", found.path, names)
    _put_aside(search.newer, "forked", about.attempt)
    reason = search.reason + (f"; {len(skipped)} damaged ones are passed over" if skipped else "")
    begun = found.metadata.continues or {}
    handed_on = (ASKED_FOR, WEIGHTS_FROM, WEIGHTS_CHOSEN)
    continues = described(found) | {key: begun[key] for key in handed_on if key in begun}
    if settings.load_checkpoint_path is not None:
        continues[ASKED_FOR] = _recorded_spelling(settings.load_checkpoint_path, folder)
    return Resume(state, found, continues, reason, skipped)


def restore_checkpoint(found: StepFolder, abstract_state: State, *, mesh: Mesh) -> State:
    """The state of one checkpoint, each array read straight into its place on the mesh.

    `abstract_state` is the state's `jax.eval_shape`; its shardings are those of the result.
    """
    targets = targets_of(abstract_state, mesh)
    require_same_arrays(found.path, found.metadata.arrays, targets)
    leaves = read_arrays(found, targets)
    reason = receipt_problem(found, leaves)
    if reason is not None:
        raise DamagedCheckpoint(found.path, reason)
    state: State = with_leaves(abstract_state, leaves)
    return state


def described(found: StepFolder) -> dict[str, Any]:
    """The one checkpoint that is meant, however often its run was tried."""
    metadata = found.metadata
    return {
        "path": found.path,
        "run_id": metadata.run_id,
        "attempt": metadata.attempt,
        "step": metadata.step,
    }


# ---- Weights alone -------------------------------------------------------------------------------


def all_weights(found: StepFolder) -> tuple[WeightsName, ...]:
    """The weights of a checkpoint, and their average where it has one.

    Whatever the run's config says of averages by now: the checkpoint knows what was saved.
    """
    return ("params", "ema") if within(found.metadata.arrays, AVERAGE) else ("params",)


def best_weights(found: StepFolder) -> tuple[WeightsName, ...]:
    """The averaged weights of a checkpoint, or the weights themselves where there is no average."""
    return all_weights(found)[-1:]


def these_weights(found: StepFolder, names: Sequence[WeightsName]) -> Sequence[WeightsName]:
    """Those that are named; `ConfigError` for an average that the checkpoint does not have."""
    there = all_weights(found)
    require(
        all(name in there for name in names),
        f"{found.path} has no averaged weights (ema)",
        allowed="a checkpoint of a run with train.ema_beta set",
        fix="use the current weights (params), or choose a checkpoint with averaged weights",
    )
    return names


def load_weights(
    place: str,
    abstract_params: Any,
    *,
    mesh: Mesh,
    choose: Callable[[StepFolder], Sequence[WeightsName]] = all_weights,
    model: Mapping[str, Any] | None = None,
) -> LoadedWeights:
    """The weights of the newest whole checkpoint at `place`, proven by its receipt.

    `abstract_params` is the `jax.eval_shape` of a state's `params`; its shardings are those of the
    result. `choose` says which weights of a checkpoint to read, and raises for one that is not to
    be used, before any array is read. `model` is the present model's config: an error about other
    shapes names the fields that differ. A damaged checkpoint is passed over for an older one, with
    a warning, unless it is the one that `place` names. Every process calls this, and all get the
    same or raise.
    """
    leaves = targets_of(abstract_params, mesh)
    _, newest, skipped = _find_newest(
        "find weights",
        lambda: _search_elsewhere(place),
        check=lambda found: _require_same_weights(found, choose(found), leaves, model),
        # By checkpoint: an older one that is fallen back to may have no average yet.
        targets=lambda found: _weights_targets(found, choose(found), leaves),
    )
    if newest is None:
        raise _no_weights(place, skipped)
    found, arrays = newest
    models = {
        # An average is a tree of the same shape, so the weights' own serves for both.
        name: with_leaves(abstract_params, {n.removeprefix(prefix): x for n, x in own.items()})
        for name, prefix in _FIELDS.items()
        if (own := within(arrays, prefix))
    }
    return LoadedWeights(found, models)


def require_weights(
    place: str, name: WeightsName, abstract_params: Any, *, model: Mapping[str, Any]
) -> None:
    """Raise what a start with these weights would, as far as metadata tells, without a device."""
    readable = (open_checkpoint(path) for path in _search_elsewhere(place).paths)
    found = next((item for item in readable if isinstance(item, StepFolder)), None)
    if found is None:
        raise _no_weights(place, {})
    names = these_weights(found, (name,))
    _require_same_weights(found, names, named_leaves(abstract_params), model)


# ---- Which checkpoint ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """What may be restored, and what restoring it means. Plain, so that process 0 can send it."""

    paths: list[str]  # step folders, readable or not, newest first
    reason: str = "the newest of this run"
    is_own: bool = True  # in the run's own folder: what is damaged there may be moved aside
    newer: list[str] = field(default_factory=list)  # of the run, which going back leaves behind
    came_from: str | None = None  # the place its own began at, if that is not its own folder


def search_for(folder: str, settings: LoadSettings) -> Search:
    """What a run with checkpoints in `folder` may go on from; no paths: nothing, start fresh."""
    own = _restorable(CheckpointPlace(folder=folder))
    asked, must_load = settings.load_checkpoint_path, settings.load_checkpoint is True
    if settings.load_checkpoint is False and own:
        raise CheckpointError(
            f"trainer.load_checkpoint=false, but {own[0].path} exists",
            allowed="a fresh start in a folder without checkpoints",
            fix="set trainer.load_checkpoint=null to continue, or use another output folder",
        )
    if asked is not None:
        search = _search_asked(asked, folder, own, must_load=must_load)
    else:
        search = Search(_paths(own))
    if not search.paths and must_load:
        raise CheckpointError(
            f"trainer.load_checkpoint=true, but {folder} has no complete checkpoint",
            allowed="a folder with at least one step-N",
            fix="correct the path, or set trainer.load_checkpoint=null to start from scratch",
        )
    passed_over = [name_of(path) for path in [*leftovers(folder), *moved_aside(folder)]]
    if not search.paths and passed_over:  # so that no fresh start is a surprise
        _log.warning(
            "%s has no complete checkpoint, only %s: starting without",
            folder,
            ", ".join(passed_over),
        )
    return search


def _search_asked(
    asked: str, folder: str, own: list[StepFolder | Unreadable], *, must_load: bool
) -> Search:
    """What `load_checkpoint_path` means, seen from a run that may have checkpoints of its own."""
    is_step_of_own = _is_same(parent_of(asked), folder)
    # Where no metadata can be read nobody knows where the own came from: they are tried first.
    readable = [item for item in own if isinstance(item, StepFolder)]
    newest_came_from = (readable[0].metadata.continues or {}).get(ASKED_FOR) if readable else None
    came_from_there = not readable or newest_came_from == _recorded_spelling(asked, folder)
    # Before the place is looked at, which may be gone by now.
    if own and came_from_there and not (must_load and is_step_of_own):
        _log.warning(
            "load_checkpoint_path=%s: this run went on from there before, and continues from its "
            "own newest checkpoint, %s. To begin there once more, move the newer ones elsewhere",
            asked,
            own[0].path,
        )
        is_inside = is_step_of_own or any(
            _is_same(at, folder) for at in (asked, join(asked, CHECKPOINTS))
        )
        return Search(_paths(own), came_from=None if is_inside else asked)
    place = place_of(asked)
    if _is_same(place.folder, folder):
        if place.step is None:
            return Search(_paths(own))
        there = [item for item in own if name_of(item.path) == name_of(place.step or "")]
        _require_any(asked, there)
        newer = own[: own.index(there[0])]
        return Search(_paths(there), reason="load_checkpoint_path", newer=_paths(newer))
    there = _restorable(place)
    if own:
        raise CheckpointError(
            f"load_checkpoint_path={asked}, but {own[0].path} exists and did not come from there",
            allowed="an output folder whose checkpoints came from that path, or one without any",
            fix="remove trainer.load_checkpoint_path to continue this run, or use another "
            "output folder",
        )
    _require_any(asked, there)
    _log.warning("load_checkpoint_path: going on from %s, not from %s", there[0].path, folder)
    return Search(_paths(there), reason="load_checkpoint_path", is_own=False)


def _search_elsewhere(place: str) -> Search:
    """What may be read at a place that belongs to some other run."""
    return Search(
        _paths(_restorable(place_of(place))), reason=f"the newest at {place}", is_own=False
    )


def _restorable(place: CheckpointPlace) -> list[StepFolder | Unreadable]:
    """What is at a place, newest first; `CheckpointError` for one of another version of chomp."""
    found = checkpoints_at(place)
    for item in found:
        if isinstance(item, Unreadable) and item.is_other_format:
            raise item.error()  # whole, as far as anyone knows: not to be passed over
    return found


def _find_newest(
    name: str, search_for: Callable[[], Search], *, check: _Check, targets: _TargetsOf
) -> tuple[Search, tuple[StepFolder, dict[str, jax.Array]] | None, dict[str, str]]:
    """The newest whole checkpoint of those that `search_for` finds in process 0, and its arrays.

    With it, newest first, why those before it are not whole: they are passed over. `check` raises
    for a checkpoint that is whole and not to be used: then no older one is tried. Where one was
    deleted meanwhile there may be a newer one: it is searched again, a few times.
    """
    for looks_left in reversed(range(_LOOKS)):
        search = Search(**_decide_first(name, lambda: asdict(search_for())))
        skipped: dict[str, str] = {}
        gone = None
        for path in search.paths:
            outcome = _read_whole(path, check=check, targets=targets)
            if not isinstance(outcome, str):
                return search, outcome, skipped
            # All or none: the reason is known to all, and process 0 looks.
            if _decide_first("look for a checkpoint that was listed", partial(is_gone, path)):
                gone = path
                break
            skipped[path] = outcome
            _log.warning("%s is damaged and passed over: %s", path, outcome)
        if gone is None:
            return search, None, skipped
        deleted = CheckpointError(
            f"{gone} was deleted before it was read, as others were before it",
            allowed="a folder whose checkpoints are not deleted",
            fix="give a step-N that the run keeps, or wait until the run has ended",
        )
        if not looks_left:
            raise deleted
        _log.warning("looking again: %s", deleted)
    raise AssertionError("the last look returns or raises")


def _read_whole(
    path: str, *, check: _Check, targets: _TargetsOf
) -> tuple[StepFolder, dict[str, jax.Array]] | str:
    """The checkpoint at `path` with its arrays, or why it is not whole; the same everywhere."""

    def problem() -> str | None:
        found = open_checkpoint(path)
        if isinstance(found, Unreadable):
            return found.reason
        reason = problem_with_files(found)
        if reason is None:
            check(found)
        return reason

    def read() -> tuple[StepFolder, dict[str, jax.Array]] | str:
        # The reason alone is kept: an exception would keep the arrays of its frames in memory.
        try:
            found = open_checkpoint(path)
            if isinstance(found, Unreadable):
                return found.reason
            return found, read_arrays(found, targets(found))
        except DamagedCheckpoint as error:
            return error.reason

    reason = _decide_first("look at a checkpoint", problem)
    if reason is not None:
        return str(reason)
    with raise_together("read a checkpoint", timeout_s=_READ_TIMEOUT_S):
        outcome = read()
    reason = _anyones_reason(outcome if isinstance(outcome, str) else None)
    if reason is not None:
        return reason
    assert not isinstance(outcome, str), "its reason was gathered"
    # All compute the same hashes, but each compares them with the metadata that it has read.
    reason = _anyones_reason(receipt_problem(*outcome))
    return outcome if reason is None else reason


def _anyones_reason(reason: str | None) -> str | None:
    """The reasons of all processes that have one, as one text."""
    reasons = all_gather("what reading a checkpoint gave", reason)
    if len(reasons) == 1:
        return reason
    bad = [f"process {index}: {text}" for index, text in enumerate(reasons) if text is not None]
    return "; ".join(bad) or None


def _decide_first(name: str, decide: Callable[[], Any]) -> Any:
    """What process 0 decides (plain, as JSON has it), in all of them; or its error, in all."""
    with raise_together(name):
        decision = decide() if is_first() else None
    return broadcast(f"{name}, as decided", decision)


# ---- Private helpers -----------------------------------------------------------------------------


def _require_fresh_start_allowed(
    search: Search, skipped: Mapping[str, str], settings: LoadSettings
) -> None:
    """Refuse a fresh start beside damaged checkpoints, unless it is allowed; then log it."""
    path = settings.load_checkpoint_path
    # Who names a place to go on from does not want random weights, whatever else is allowed.
    if settings.allow_fresh_start and settings.load_checkpoint is not True and path is None:
        _log.warning("No checkpoint could be restored; starting at step 0:%s", _listed(skipped))
        return
    fix = "restore one from a copy"
    if path is None or (search.came_from is not None and not settings.allow_fresh_start):
        instead = "begin anew" if path is None else f"go on from {path}"
        fix += f", or set trainer.allow_fresh_start=true to move them aside and {instead}"
    raise CheckpointError(
        f"no checkpoint can be restored:{_listed(skipped)}",
        allowed="at least one undamaged checkpoint",
        fix=fix,
    )


def _fresh(
    initialize: Callable[[], State],
    settings: LoadSettings,
    *,
    about: CheckpointMetadata,
    mesh: Mesh,
    skipped: Mapping[str, str],
) -> Resume[State]:
    """A state of step 0, with the weights of `initialize_from` where that is set.

    That place may belong to any run; only names, shapes and dtypes of the weights have to agree.
    Step, optimizer and random key are fresh, and an average starts at the loaded weights. An
    optimizer that keeps weights in its state would keep the fresh ones.
    """
    if settings.initialize_from is None:
        # Not under one jit: XLA would compile the same random program for every weight of a shape,
        # which at 124M took longer than compiling the training step did (H200, November 2026).
        return Resume(initialize(), None, None, "no checkpoint", skipped)
    chosen = settings.initialize_weights
    name: WeightsName = "ema" if chosen == "ema" else "params"
    abstract = jax.eval_shape(initialize)
    targets = targets_of(abstract, mesh)
    # Made before anything is read, and at once without its weights: never two copies of those.
    fresh = without(without(named_leaves(initialize()), WEIGHTS), AVERAGE)
    loaded = load_weights(
        settings.initialize_from,
        {n.removeprefix(WEIGHTS): leaf for n, leaf in within(targets, WEIGHTS).items()},
        mesh=mesh,
        choose=partial(these_weights, names=(name,)),
        model=about.config.get("model"),
    )
    # An average is float32, whatever the weights are.
    weights = {
        WEIGHTS + key: array.astype(targets[WEIGHTS + key].dtype)
        for key, array in loaded.models.pop(name).items()
    }
    found = loaded.found
    if found.metadata.tokenizer_hash != about.tokenizer_hash:
        # Not refused: the layers between embedding and head may be what somebody wants.
        _log.warning(
            "%s was trained with ANOTHER TOKENIZER (%s there, %s here): its embedding and its head "
            "mean other tokens",
            found.path,
            found.metadata.tokenizer_hash or "unknown",
            about.tokenizer_hash or "unknown",
        )
    state = with_leaves(abstract, fresh | weights | average_at(weights, targets))
    _log.warning("%s weights from %s; step and optimizer are fresh", chosen, found.path)
    continues = described(found) | {WEIGHTS_FROM: found.path, WEIGHTS_CHOSEN: chosen}
    return Resume(state, None, continues, f"{chosen} weights of {found.path}", skipped)


def _require_same_weights(
    found: StepFolder,
    names: Sequence[WeightsName],
    leaves: Targets,
    model: Mapping[str, Any] | None,
) -> None:
    targets = _weights_targets(found, names, leaves)
    fix = "choose a checkpoint of this model"
    if model is not None:
        differing = config_difference(found.metadata.config.get("model", {}), model)
        fields = ", ".join(f"model.{item.path}={item.before}" for item in differing)
        fix = f"set {fields}, as its run had, or {fix}" if fields else fix
    # Field by field: what the optimizer keeps is no business of a reader of weights.
    for prefix in [_FIELDS[name] for name in names]:
        require_same_arrays(
            found.path,
            within(found.metadata.arrays, prefix),
            within(targets, prefix),
            allowed="weights of the names, shapes and dtypes that the model has now",
            fix=fix,
        )


def _weights_targets(
    found: StepFolder, names: Sequence[WeightsName], leaves: Targets
) -> dict[str, jax.ShapeDtypeStruct]:
    """What to read of a checkpoint, by the names that its arrays have."""
    saved = found.metadata.arrays
    targets = {}
    for prefix in [_FIELDS[name] for name in names]:
        for name, leaf in leaves.items():
            targets[prefix + name] = leaf
            if prefix == AVERAGE and prefix + name in saved:
                # As it was saved: an average is float32 beside bfloat16 weights.
                dtype = saved[prefix + name]["dtype"]
                targets[prefix + name] = jax.ShapeDtypeStruct(
                    leaf.shape, dtype, sharding=leaf.sharding
                )
    return targets


def _no_weights(place: str, skipped: Mapping[str, str]) -> CheckpointError:
    return CheckpointError(
        f"{place} has no undamaged checkpoint{_listed(skipped)}",
        allowed="a run folder, its checkpoints folder or a step-N, with an undamaged checkpoint",
        fix="correct the path, or restore a damaged one from a copy",
    )


def _put_aside(paths: Sequence[str], why: Literal["damaged", "forked"], attempt: int) -> None:
    """Move checkpoints aside, given newest first, by process 0."""

    def move() -> None:
        # The oldest first: whoever is killed between two of them leaves the newest in its place.
        for path in reversed(paths):
            _log.warning("moved aside, and kept: %s", move_aside(path, why=why, attempt=attempt))

    _decide_first(f"put {why} checkpoints aside", move)


def _require_any(asked: str, there: list[StepFolder | Unreadable]) -> None:
    if not there:
        raise CheckpointError(
            f"load_checkpoint_path={asked} has no complete checkpoint",
            allowed="a step-N folder, a folder of those, or a run folder",
            fix="correct the path, or remove it to start from scratch",
        )


def _recorded_spelling(asked: str, folder: str) -> str:
    """A place as `continues` names it: by its step where it is the run's own, which may move."""
    return name_of(asked) if _is_same(parent_of(asked), folder) else _real(asked)


def _is_same(one: str, other: str) -> bool:
    return _real(one) == _real(other)


def _real(place: str) -> str:
    return os.path.realpath(place) if is_local(place) else normalise(place)


def _paths(found: Sequence[StepFolder | Unreadable]) -> list[str]:
    return [item.path for item in found]


def _listed(skipped: Mapping[str, str]) -> str:
    return "".join(f"\n  {path}: {reason}" for path, reason in skipped.items())
