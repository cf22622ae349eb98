"""The state a run begins with: restored, loaded in part, or fresh.

A checkpoint is checked before its arrays are read and proven after. One that is damaged is passed
over for an older one; one of another run is an error at once. What exists and cannot be restored is
never silently replaced by a fresh start. Folders are moved aside last, when nothing can fail any
more: a restore that fails changes nothing on disk.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import jax
from jax.sharding import Mesh

from chomp.checkpoint.candidates import (
    WEIGHTS_CHOSEN,
    WEIGHTS_FROM,
    LoadSettings,
    Search,
    lineage,
    require_sound,
    search_at,
    search_for,
)
from chomp.checkpoint.compatibility import (
    allowed_changes,
    require_same_arrays,
    require_same_run,
    warn_unless_exact,
)
from chomp.checkpoint.fallback import Outcome, Targets, first_decides, newest_whole
from chomp.checkpoint.layout import DamagedCheckpoint, StepFolder, move_aside
from chomp.checkpoint.leaves import AVERAGE, average_at, named_leaves, with_leaves, within, without
from chomp.checkpoint.metadata import CheckpointMetadata
from chomp.checkpoint.read_on_mesh import placed, read_arrays, receipt_problem
from chomp.checkpoint.weights_alone import begin_with_weights
from chomp.errors import CheckpointError
from chomp.mesh.distributed import raise_together

State = TypeVar("State")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning(Generic[State]):
    """The state a run begins with, and where it came from."""

    state: State
    found: StepFolder | None  # the checkpoint it goes on from; None: step 0
    continues: dict[str, Any] | None  # the same for the metadata of its checkpoints


@dataclass(frozen=True)
class LoadOptions:
    """`LoadSettings` as plain values, for callers without a trainer config."""

    load_checkpoint: bool | None = None
    load_checkpoint_path: str | None = None
    initialize_from: str | None = None
    initialize_weights: Literal["current", "ema"] = "current"
    allow_changes: tuple[str, ...] = ()
    allow_fresh_start: bool = False


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
) -> Beginning[State]:
    """The newest whole state in `folder`, or where `settings` point, or else a fresh one.

    `about` is the run as it is now and `config` its typed config, whose marks decide what may
    differ (without it, nothing may). `data_offset_at` gives the examples before a step by the
    present batch sizes; `past_fingerprint` that of the present data by the mixture a checkpoint was
    saved with, as stages may have changed since. `proof` raises for a state that was restored and
    may not be gone on from. Every process calls this, and all get the same or raise.
    """
    require_sound(settings)
    allowed = allowed_changes(config, settings.allow_changes)
    abstract = jax.eval_shape(initialize)
    targets = {name: placed(leaf, mesh) for name, leaf in named_leaves(abstract).items()}

    def check(found: StepFolder) -> None:
        now = about if config is not None else _with_same_fields(about, found)
        if past_fingerprint is not None:
            now = replace(now, data_fingerprint=past_fingerprint(found.metadata))
        marked = about.config if config is None else config
        require_same_run(found, now, config=marked, allowed=allowed, data_offset_at=data_offset_at)
        _require_same_state(found, targets)

    def newest(search: Callable[[], Search]) -> Outcome:
        wanted = partial(_readable, targets=targets)
        return newest_whole("find checkpoints", search, check=check, targets=wanted)

    own = newest(lambda: search_for(folder, settings))
    outcome = _or_where_it_began(own, newest, settings)
    damaged = own.skipped if own.search.is_own else {}
    if outcome.whole is None:
        if own.search.places:
            _require_fresh_start(own.search, own.skipped | outcome.skipped, settings)
        fresh = _begun(initialize, settings, about=about, mesh=mesh)
        _put_aside(list(damaged), "damaged", about.attempt)
        return fresh
    found, leaves = outcome.whole.found, outcome.whole.leaves
    if proof is not None:
        with raise_together("proof of a checkpoint"):
            proof(found)
    unread = {name: leaf for name, leaf in targets.items() if name not in leaves}
    state: State = with_leaves(abstract, leaves | average_at(leaves, unread))
    warn_unless_exact(found, about)
    _leave_behind(own.search.newer, damaged, about.attempt, at=found.path)
    return Beginning(state, found, lineage(found, folder, settings))


def restore_checkpoint(found: StepFolder, abstract_state: State, *, mesh: Mesh) -> State:
    """The state of one checkpoint, each array read straight into its place on the mesh.

    `abstract_state` is the state's `jax.eval_shape`; its shardings are those of the result.
    """
    targets = {name: placed(leaf, mesh) for name, leaf in named_leaves(abstract_state).items()}
    require_same_arrays(found.path, found.metadata.arrays, targets)
    leaves = read_arrays(found, targets)
    reason = receipt_problem(found, leaves)
    if reason is not None:
        raise DamagedCheckpoint(found.path, reason)
    state: State = with_leaves(abstract_state, leaves)
    return state


def _require_same_state(found: StepFolder, targets: Targets) -> None:
    """Names, shapes and dtypes agree, but for an average that is kept only then or only now."""
    saved, wanted = found.metadata.arrays, _readable(found, targets)
    is_left_out = not within(targets, AVERAGE)
    require_same_arrays(found.path, without(saved, AVERAGE) if is_left_out else saved, wanted)
    if is_left_out and within(saved, AVERAGE):
        _log.warning("the averaged weights of %s are left out", found.path)
    if len(wanted) < len(targets):
        _log.warning("%s has no averaged weights: the average starts at its weights", found.path)


def _readable(found: StepFolder, targets: Targets) -> Targets:
    """What of the state is read: all of it, less an average that was not kept then."""
    return targets if within(found.metadata.arrays, AVERAGE) else without(targets, AVERAGE)


def _with_same_fields(about: CheckpointMetadata, found: StepFolder) -> CheckpointMetadata:
    """Without a typed config nobody knows which fields matter, so their hash has to say it."""
    if about.config_hash != found.metadata.config_hash:
        return about
    return replace(about, config=found.metadata.config)


def _begun(
    initialize: Callable[[], State],
    settings: LoadSettings,
    *,
    about: CheckpointMetadata,
    mesh: Mesh,
) -> Beginning[State]:
    """A state of step 0."""
    if settings.initialize_from is None:
        # Not under one jit: XLA would compile the same random program for every weight of a shape,
        # which at 124M took longer than compiling the training step did (H200, November 2026).
        return Beginning(initialize(), None, None)
    chosen = settings.initialize_weights
    state, source = begin_with_weights(
        settings.initialize_from,
        "ema" if chosen == "ema" else "params",
        initialize,
        about=about,
        mesh=mesh,
    )
    _log.warning("%s weights from %s; step and optimizer are fresh", chosen, source["path"])
    return Beginning(state, None, source | {WEIGHTS_FROM: source["path"], WEIGHTS_CHOSEN: chosen})


def _or_where_it_began(
    own: Outcome, newest: Callable[[Callable[[], Search]], Outcome], settings: LoadSettings
) -> Outcome:
    """What a run's own folder gave; if all of it is damaged, what is where the run began.

    Only where a new start is allowed, and a start from there is less than one from nothing.
    """
    came_from = own.search.came_from
    if own.whole is not None or came_from is None or not settings.allow_fresh_start:
        return own
    _log.warning(
        "No checkpoint of this run could be restored; starting again from %s:%s",
        came_from,
        _listed(own.skipped),
    )
    return newest(lambda: search_at(came_from))


def _require_fresh_start(
    search: Search, skipped: Mapping[str, str], settings: LoadSettings
) -> None:
    """Refuse a fresh start beside damaged checkpoints, unless it is allowed; then log it."""
    listed, path = _listed(skipped), settings.load_checkpoint_path
    # Who names a place to go on from does not want random weights, whatever else is allowed.
    if settings.allow_fresh_start and settings.load_checkpoint is not True and path is None:
        _log.warning("No checkpoint could be restored; starting at step 0:%s", listed)
        return
    fix = "restore one from a copy"
    if path is None or (search.came_from is not None and not settings.allow_fresh_start):
        instead = "begin anew" if path is None else f"go on from {path}"
        fix += f", or set trainer.allow_fresh_start=true to move them aside and {instead}"
    raise CheckpointError(
        f"no checkpoint can be restored:{listed}",
        allowed="at least one undamaged checkpoint",
        fix=fix,
    )


def _listed(skipped: Mapping[str, str]) -> str:
    return "".join(f"\n  {path}: {reason}" for path, reason in skipped.items())


def _leave_behind(
    newer: Sequence[str], damaged: Mapping[str, str], attempt: int, *, at: str
) -> None:
    """Take the names of what was passed over or is newer: a save would take those for done."""
    _put_aside(list(damaged), "damaged", attempt)
    if newer:
        _log.warning("going back to %s: what is newer is moved aside: %s", at, ", ".join(newer))
    _put_aside(newer, "forked", attempt)


def _put_aside(paths: Sequence[str], why: Literal["damaged", "forked"], attempt: int) -> None:
    """Move checkpoints aside, given newest first, by process 0."""

    def move() -> None:
        # The oldest first: whoever is killed between two of them leaves the newest in its place.
        for path in reversed(paths):
            _log.warning("moved aside, and kept: %s", move_aside(path, why=why, attempt=attempt))

    first_decides(f"put {why} checkpoints aside", move)
