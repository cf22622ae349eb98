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
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

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
    require_checkpoints_at,
)
from chomp.config import config_difference
from chomp.errors import CheckpointError, require
from chomp.mesh.distributed import all_gather, broadcast, is_first, raise_together
from chomp.storage import is_local, join, name_of, normalise, parent_of
from chomp.tracking.run_files import CHECKPOINTS

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
_PREFIXES: dict[WeightsName, str] = {"params": WEIGHTS, "ema": AVERAGE}
Found = StepFolder | Unreadable
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What a run is told about the state it begins with; a trainer config has these fields."""

    # None takes what is there, True must find a checkpoint, False must start fresh.
    load_checkpoint: bool | None = None
    # A place to go on from while the run has nothing newer that came from there. With
    # `load_checkpoint=True` a step of the run itself is gone back to in any case.
    load_checkpoint_path: str | None = None
    # A place whose weights, or their average, a run without a checkpoint begins with.
    initialize_from: str | None = None
    initialize_weights: Literal["current", "ema"] = "current"
    allow_changes: tuple[str, ...] = ()  # schedule fields that may differ from the checkpoint's
    allow_fresh_start: bool = False  # damaged checkpoints may be put aside for a fresh start

    def __post_init__(self) -> None:
        path, weights = self.load_checkpoint_path, self.initialize_weights
        require(
            path is None or self.load_checkpoint is not False,
            f"trainer.load_checkpoint=false with load_checkpoint_path={path}",
            allowed="a path to load from, or a fresh start, not both",
            fix="remove one of the two",
        )
        require(
            weights == "current" or self.initialize_from is not None,
            f"train.initialize_weights={weights} without train.initialize_from",
            allowed="a choice of weights where those of another run are loaded",
            fix="set train.initialize_from to a checkpoint, or remove train.initialize_weights",
        )

    @classmethod
    def of(cls, trainer: Any) -> "LoadOptions":
        """The options that a trainer config has."""
        return cls(**{option.name: getattr(trainer, option.name) for option in fields(cls)})


@dataclass(frozen=True)
class Resume(Generic[State]):
    """The state a run begins with, which checkpoint it is of, and why that one."""

    state: State
    found: StepFolder | None  # the checkpoint it goes on from; None: step 0
    continues: dict[str, Any] | None  # the same for the metadata of its checkpoints
    reason: str  # in a few words, for the log


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
    config: Any,
    mesh: Mesh,
    options: LoadOptions,
    data_offset_at: Callable[[int], int] | None = None,
    past_fingerprint: Callable[[CheckpointMetadata], str] | None = None,
    proof: Callable[[StepFolder], None] | None = None,
) -> Resume[State]:
    """The newest whole state in `folder`, or where `options` point, or else a fresh one.

    `about` is the run as it is now and `config` its typed config, whose marks decide what may
    differ. `data_offset_at` gives the examples before a step by the present batch sizes;
    `past_fingerprint` that of the present data by the mixture a checkpoint was saved with, as
    stages may have changed since. `proof` raises for a state that was restored and may not be gone
    on from. Every process calls this, and all get the same or raise.
    """
    allowed = allowed_changes(config, options.allow_changes)
    abstract = jax.eval_shape(initialize)
    targets = targets_of(abstract, mesh)

    def readable(found: StepFolder) -> Targets:
        has_average = bool(within(found.metadata.arrays, AVERAGE))
        return targets if has_average else without(targets, AVERAGE)

    def check(found: StepFolder) -> None:
        saved, now = found.metadata, about
        if past_fingerprint is not None:
            now = replace(about, data_fingerprint=past_fingerprint(saved))
        require_same_run(found, now, config=config, allowed=allowed, data_offset_at=data_offset_at)
        # The same arrays, but for an average that is kept only then or only now.
        is_left_out = within(saved.arrays, AVERAGE) and not within(targets, AVERAGE)
        arrays = without(saved.arrays, AVERAGE) if is_left_out else saved.arrays
        require_same_arrays(found.path, arrays, readable(found))
        if is_left_out:
            _log.warning("the averaged weights of %s are left out", found.path)
        if len(readable(found)) < len(targets):
            _log.warning("%s has no averaged weights: they start at its weights", found.path)

    find = partial(_find_newest, "find checkpoints", check=check, targets=readable)
    search, newest, skipped = find(lambda: search_for(folder, options))
    own_damaged = list(skipped) if search.is_own else []
    path = options.load_checkpoint_path
    if newest is None and search.came_from is not None and options.allow_fresh_start:
        # A start from where the run began is less lost than a start from nothing.
        came_from, text = search.came_from, "No checkpoint of this run could be restored;"
        _log.warning("%s starting again from %s:%s", text, came_from, _listed(skipped))
        _, newest, others = find(lambda: _search_elsewhere(came_from))
        skipped |= others
    if newest is None:
        if search.paths:
            # Who names a place to go on from does not want random weights, whatever is allowed.
            if path is not None or options.load_checkpoint is True or not options.allow_fresh_start:
                fix = "restore one from a copy"
                if path is None or (search.came_from and not options.allow_fresh_start):
                    instead = "begin anew" if path is None else f"go on from {path}"
                    fix += (
                        f", or set trainer.allow_fresh_start=true to move them aside and {instead}"
                    )
                raise CheckpointError(
                    f"no checkpoint can be restored:{_listed(skipped)}",
                    allowed="at least one undamaged checkpoint",
                    fix=fix,
                )
            text = "No checkpoint could be restored; starting at step 0:%s"
            _log.warning(text, _listed(skipped))
        fresh = _fresh(initialize, options, about=about, mesh=mesh)
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
    if path is not None:
        continues[ASKED_FOR] = _recorded_spelling(path, folder)
    return Resume(state, found, continues, reason)


def _fresh(
    initialize: Callable[[], State],
    options: LoadOptions,
    *,
    about: CheckpointMetadata,
    mesh: Mesh,
) -> Resume[State]:
    """A state of step 0, with the weights of `initialize_from` where that is set.

    That place may belong to any run; only names, shapes and dtypes of the weights have to agree.
    Step, optimizer and random key are fresh, and an average starts at the loaded weights. An
    optimizer that keeps weights in its state would keep the fresh ones.
    """
    if options.initialize_from is None:
        # Not under one jit: XLA would compile the same random program for every weight of a shape,
        # which at 124M took longer than compiling the training step did (H200, November 2026).
        return Resume(initialize(), None, None, "no checkpoint")
    chosen = options.initialize_weights
    name: WeightsName = "ema" if chosen == "ema" else "params"
    abstract = jax.eval_shape(initialize)
    targets = targets_of(abstract, mesh)
    # Made before anything is read, and at once without its weights: never two copies of those.
    fresh = without(without(named_leaves(initialize()), WEIGHTS), AVERAGE)
    loaded = load_weights(
        options.initialize_from,
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
    return Resume(state, None, continues, f"{chosen} weights of {found.path}")


def restore_checkpoint(found: StepFolder, abstract_state: State, *, mesh: Mesh) -> State:
    """The state of one checkpoint, each array read straight into its place on the mesh.

    `abstract_state` is the state's `jax.eval_shape`; its shardings are those of the result.
    """
    targets = targets_of(abstract_state, mesh)
    require_same_arrays(found.path, found.metadata.arrays, targets)
    leaves = read_arrays(found, targets)
    if (reason := receipt_problem(found, leaves)) is not None:
        raise DamagedCheckpoint(found.path, reason)
    state: State = with_leaves(abstract_state, leaves)
    return state


def described(found: StepFolder) -> dict[str, Any]:
    """The one checkpoint that is meant, however often its run was tried."""
    metadata = found.metadata
    facts = {name: getattr(metadata, name) for name in ("run_id", "attempt", "step")}
    return {"path": found.path, **facts}


def _put_aside(paths: Sequence[str], why: Literal["damaged", "forked"], attempt: int) -> None:
    """Move checkpoints aside, given newest first, by process 0."""

    def move() -> None:
        # The oldest first: whoever is killed between two of them leaves the newest in its place.
        for path in reversed(paths):
            _log.warning("moved aside, and kept: %s", move_aside(path, why=why, attempt=attempt))

    _decide_first(f"put {why} checkpoints aside", move)


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
    require(
        set(names) <= set(all_weights(found)),
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
        raise CheckpointError(
            f"{place} has no undamaged checkpoint:{_listed(skipped)}",
            allowed="a run folder, a checkpoints folder or a step-N with an undamaged checkpoint",
            fix="choose another, or restore a damaged one from a copy",
        )
    found, arrays = newest
    models = {
        # An average is a tree of the same shape, so the weights' own serves for both.
        name: with_leaves(abstract_params, {n.removeprefix(prefix): x for n, x in own.items()})
        for name, prefix in _PREFIXES.items()
        if (own := within(arrays, prefix))
    }
    return LoadedWeights(found, models)


def require_weights(
    place: str, name: WeightsName, abstract_params: Any, *, model: Mapping[str, Any]
) -> None:
    """Raise what a start with these weights would, as far as metadata tells, without a device."""
    there = _restorable(place_of(place))
    found = next((item for item in there if isinstance(item, StepFolder)), there[0])
    if isinstance(found, Unreadable):
        raise found.error()
    names = these_weights(found, (name,))
    _require_same_weights(found, names, named_leaves(abstract_params), model)


def _require_same_weights(
    found: StepFolder,
    names: Sequence[WeightsName],
    leaves: Targets,
    model: Mapping[str, Any] | None,
) -> None:
    fix = "choose a checkpoint of this model"
    if model is not None:
        differing = config_difference(found.metadata.config.get("model", {}), model)
        fields = ", ".join(f"model.{item.path}={item.before}" for item in differing)
        fix = f"set {fields}, as its run had, or {fix}" if fields else fix
    # Prefix by prefix: what the optimizer keeps is no business of a reader of weights.
    for name in names:
        require_same_arrays(
            found.path,
            within(found.metadata.arrays, _PREFIXES[name]),
            _weights_targets(found, [name], leaves),
            allowed="weights of the names, shapes and dtypes that the model has now",
            fix=fix,
        )


def _weights_targets(
    found: StepFolder, names: Sequence[WeightsName], leaves: Targets
) -> dict[str, jax.ShapeDtypeStruct]:
    """What to read of a checkpoint, by the names that its arrays have."""
    targets = {_PREFIXES[name] + key: leaf for name in names for key, leaf in leaves.items()}
    for name, leaf in within(targets, AVERAGE).items():
        # As it was saved: an average is float32 beside bfloat16 weights.
        if (saved := found.metadata.arrays.get(name)) is not None:
            sharding = leaf.sharding
            targets[name] = jax.ShapeDtypeStruct(leaf.shape, saved["dtype"], sharding=sharding)
    return targets


# ---- Which checkpoint ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Search:
    """What may be restored, and what restoring it means. Plain, so that process 0 can send it."""

    paths: list[str]  # step folders, readable or not, newest first
    reason: str = "the newest of this run"
    is_own: bool = True  # in the run's own folder: what is damaged there may be moved aside
    newer: list[str] = field(default_factory=list)  # of the run, which going back leaves behind
    came_from: str | None = None  # the place its own began at, if that is not its own folder


def search_for(folder: str, options: LoadOptions) -> Search:
    """What a run with checkpoints in `folder` may go on from; no paths: nothing, start fresh."""
    own = _restorable(CheckpointPlace(folder=folder), may_be_empty=True)
    own_paths, asked = [item.path for item in own], options.load_checkpoint_path
    must_load = options.load_checkpoint is True
    if options.load_checkpoint is False and own:
        raise CheckpointError(
            f"trainer.load_checkpoint=false, but {own_paths[0]} exists",
            allowed="a fresh start in a folder without checkpoints",
            fix="set trainer.load_checkpoint=null to continue, or use another output folder",
        )
    if asked is not None:
        is_step_of_own = _is_same(parent_of(asked), folder)
        # Where no metadata can be read nobody knows where the own came from: they are tried first.
        newest = next((item.metadata for item in own if isinstance(item, StepFolder)), None)
        recorded = newest and (newest.continues or {}).get(ASKED_FOR)
        came_from_there = newest is None or recorded == _recorded_spelling(asked, folder)
        # Before the place is looked at, which may be gone by now.
        if own and came_from_there and not (must_load and is_step_of_own):
            _log.warning(
                "load_checkpoint_path=%s: this run went on from there before, and continues from "
                "its own newest checkpoint, %s. To begin there once more, move the newer ones "
                "elsewhere",
                *(asked, own_paths[0]),
            )
            places = (parent_of(asked), asked, join(asked, CHECKPOINTS))
            is_inside = any(_is_same(place, folder) for place in places)
            return Search(own_paths, came_from=None if is_inside else asked)
        place = place_of(asked)
        is_own = _is_same(place.folder, folder)
        if own and not is_own:
            raise CheckpointError(
                f"load_checkpoint_path={asked}, but {own_paths[0]} did not come from there",
                allowed="an output folder whose checkpoints came from that path, or without any",
                fix="remove trainer.load_checkpoint_path, or use another output folder",
            )
        if not is_own:
            paths = [item.path for item in _restorable(place)]
            _log.warning("load_checkpoint_path: going on from %s, not from %s", paths[0], folder)
            return Search(paths, reason="load_checkpoint_path", is_own=False)
        if place.step is not None:
            step = join(folder, name_of(_restorable(place)[0].path))
            newer = own_paths[: own_paths.index(step)]
            return Search([step], reason="load_checkpoint_path", newer=newer)
    if must_load and not own:
        raise CheckpointError(
            f"trainer.load_checkpoint=true, but {folder} has no complete checkpoint",
            allowed="a folder with at least one step-N",
            fix="correct the path, or set trainer.load_checkpoint=null to start from scratch",
        )
    passed_over = [name_of(path) for path in [*leftovers(folder), *moved_aside(folder)]]
    if passed_over and not own:  # so that no fresh start is a surprise
        text = "%s has no complete checkpoint, only %s: starting without"
        _log.warning(text, folder, ", ".join(passed_over))
    return Search(own_paths)


def _search_elsewhere(place: str) -> Search:
    """What may be read at a place that belongs to some other run."""
    paths = [item.path for item in _restorable(place_of(place))]
    return Search(paths, reason=f"the newest at {place}", is_own=False)


def _restorable(place: CheckpointPlace, *, may_be_empty: bool = False) -> list[Found]:
    """What is at a place, newest first; `CheckpointError` for one of another version of chomp."""
    found = checkpoints_at(place) if may_be_empty else require_checkpoints_at(place)
    for item in found:
        if isinstance(item, Unreadable) and item.is_other_format:
            raise item.error()  # whole, as far as anyone knows: not to be passed over
    return found


def _recorded_spelling(asked: str, folder: str) -> str:
    """A place as `continues` names it: by its step where it is the run's own, which may move."""
    return name_of(asked) if _is_same(parent_of(asked), folder) else _real(asked)


def _is_same(one: str, other: str) -> bool:
    return _real(one) == _real(other)


def _real(place: str) -> str:
    return os.path.realpath(place) if is_local(place) else normalise(place)


def _listed(skipped: Mapping[str, str]) -> str:
    return "".join(f"\n  {path}: {reason}" for path, reason in skipped.items())


# ---- Reading it together -------------------------------------------------------------------------


def _find_newest(
    name: str,
    search_for: Callable[[], Search],
    *,
    check: Callable[[StepFolder], None],
    targets: Callable[[StepFolder], Targets],
) -> tuple[Search, tuple[StepFolder, dict[str, jax.Array]] | None, dict[str, str]]:
    """The newest whole checkpoint of those that `search_for` finds in process 0, and its arrays.

    With it, newest first, why those before it are not whole: they are passed over. `check` raises
    for a checkpoint that is whole and not to be used: then no older one is tried. Where one was
    deleted meanwhile there may be a newer one: it is searched again, a few times.
    """
    for looks_left in reversed(range(_LOOKS)):
        search = Search(**_decide_first(name, lambda: asdict(search_for())))
        skipped: dict[str, str] = {}
        for path in search.paths:
            outcome = _read_whole(path, check=check, targets=targets)
            if not isinstance(outcome, str):
                return search, outcome, skipped
            # All or none: the reason is known to all, and process 0 looks.
            if _decide_first("look for a checkpoint that was listed", partial(is_gone, path)):
                break
            skipped[path] = outcome
            _log.warning("%s is damaged and passed over: %s", path, outcome)
        else:
            return search, None, skipped
        deleted = CheckpointError(
            f"{path} was deleted before it was read, as others were before it",
            allowed="a folder whose checkpoints are not deleted",
            fix="give a step-N that the run keeps, or wait until the run has ended",
        )
        if not looks_left:
            raise deleted
        _log.warning("looking again: %s", deleted)
    raise AssertionError("the last look returns or raises")


def _read_whole(
    path: str,
    *,
    check: Callable[[StepFolder], None],
    targets: Callable[[StepFolder], Targets],
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
