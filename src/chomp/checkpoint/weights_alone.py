"""The weights of a checkpoint on a mesh, without the optimizer: for evaluation, or to begin with.

The average of a checkpoint is read where it has one, whatever the run's config says of averages by
now: the checkpoint knows what was saved.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import jax
from jax.sharding import Mesh

from chomp.checkpoint.candidates import described, search_at
from chomp.checkpoint.compatibility import require_same_arrays
from chomp.checkpoint.fallback import newest_whole
from chomp.checkpoint.layout import StepFolder, opened
from chomp.checkpoint.leaves import (
    AVERAGE,
    WEIGHTS,
    average_at,
    named_leaves,
    with_leaves,
    within,
    without,
)
from chomp.checkpoint.metadata import CheckpointMetadata
from chomp.checkpoint.read_on_mesh import placed
from chomp.config import config_difference
from chomp.errors import CheckpointError, require

WeightsName = Literal["params", "ema"]
State = TypeVar("State")

_log = logging.getLogger(__name__)

_FIELDS: dict[WeightsName, str] = {"params": WEIGHTS, "ema": AVERAGE}


@dataclass(frozen=True)
class WeightsAlone:
    """A checkpoint and those of its weights that were asked for and are there."""

    found: StepFolder
    models: dict[WeightsName, Any]  # each a tree like the state's `params`


def all_weights(found: StepFolder) -> tuple[WeightsName, ...]:
    """The weights of a checkpoint, and their average where it keeps one."""
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
) -> WeightsAlone:
    """The weights of the newest whole checkpoint at `place`, proven by its receipt.

    `abstract_params` is the `jax.eval_shape` of a state's `params`; its shardings are those of the
    result. `choose` says which weights of a checkpoint to read, and raises for one that is not to
    be used, before any array is read. `model` is the present model's config: an error about other
    shapes names the fields that differ. A damaged checkpoint is passed over for an older one, with
    a warning, unless it is the one that `place` names. Every process calls this, and all get the
    same or raise.
    """
    leaves = {name: placed(leaf, mesh) for name, leaf in named_leaves(abstract_params).items()}

    # By checkpoint: an older one that is fallen back to may have no average yet.
    def targets(found: StepFolder) -> dict[str, jax.ShapeDtypeStruct]:
        return _targets(found, choose(found), leaves)

    def check(found: StepFolder) -> None:
        _require_same_weights(found, choose(found), targets(found), model)

    outcome = newest_whole("find weights", lambda: search_at(place), check=check, targets=targets)
    if outcome.whole is None:
        raise _none_whole(place, outcome.skipped)
    return WeightsAlone(outcome.whole.found, _models(abstract_params, outcome.whole.leaves))


def require_weights(
    place: str, name: WeightsName, abstract_params: Any, *, model: Mapping[str, Any]
) -> None:
    """Raise `begin_with_weights`'s errors that metadata tells, without a device or an array."""
    readable = (opened(path) for path in search_at(place).places)
    found = next((item for item in readable if isinstance(item, StepFolder)), None)
    if found is None:
        raise _none_whole(place, {})
    names = these_weights(found, (name,))
    targets = _targets(found, names, named_leaves(abstract_params))
    _require_same_weights(found, names, targets, model)


def begin_with_weights(
    place: str,
    name: WeightsName,
    initialize: Callable[[], State],
    *,
    about: CheckpointMetadata,
    mesh: Mesh,
) -> tuple[State, dict[str, Any]]:
    """A fresh state with the newest whole weights at `place`, and which checkpoint had them.

    `place` may belong to any run; only names, shapes and dtypes of the weights have to agree. Step,
    optimizer and random key are fresh, and an average starts at the loaded weights. An optimizer
    that keeps weights in its state would keep the fresh ones. A checkpoint of another tokenizer
    than that of the run, `about`, is warned of.
    """
    abstract = jax.eval_shape(initialize)
    leaves = {name: placed(leaf, mesh) for name, leaf in named_leaves(abstract).items()}
    targets = within(leaves, WEIGHTS)
    # Made before anything is read, and at once without its weights: never two copies of those.
    fresh = without(without(named_leaves(initialize()), WEIGHTS), AVERAGE)
    loaded = load_weights(
        place,
        {name.removeprefix(WEIGHTS): leaf for name, leaf in targets.items()},
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
    state = with_leaves(abstract, fresh | weights | average_at(weights, leaves))
    return state, described(found)


def _same_model(found: StepFolder, model: Mapping[str, Any] | None) -> str:
    """How to make weights fit: the fields of the model that were others, and what they were."""
    other = "choose a checkpoint of this model"
    if model is None:
        return other
    differing = config_difference(found.metadata.config.get("model", {}), model)
    fields = ", ".join(f"model.{item.path}={item.before}" for item in differing)
    return f"set {fields}, as its run had, or {other}" if fields else other


def _require_same_weights(
    found: StepFolder,
    names: Sequence[WeightsName],
    targets: Mapping[str, Any],
    model: Mapping[str, Any] | None,
) -> None:
    # Field by field: what the optimizer keeps is no business of a reader of weights.
    for field in [_FIELDS[name] for name in names]:
        require_same_arrays(
            found.path,
            within(found.metadata.arrays, field),
            within(targets, field),
            allowed="weights of the names, shapes and dtypes that the model has now",
            fix=_same_model(found, model),
        )


def _targets(
    found: StepFolder, names: Sequence[WeightsName], leaves: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.ShapeDtypeStruct]:
    """What to read of a checkpoint, by the names that its arrays have."""
    saved = found.metadata.arrays
    return {
        field + name: _as_saved(field + name, leaf, saved)
        for field in [_FIELDS[name] for name in names]
        for name, leaf in leaves.items()
    }


def _models(abstract_params: Any, read: Mapping[str, Any]) -> dict[WeightsName, Any]:
    # An average is a tree of the same shape, so the weights' own serves for both.
    return {
        kind: with_leaves(abstract_params, {n.removeprefix(field): x for n, x in own.items()})
        for kind, field in _FIELDS.items()
        if (own := within(read, field))
    }


def _as_saved(
    name: str, leaf: jax.ShapeDtypeStruct, saved: Mapping[str, Mapping[str, Any]]
) -> jax.ShapeDtypeStruct:
    """The leaf in the dtype it was saved in: an average is float32 beside bfloat16 weights."""
    if name not in saved or not name.startswith(AVERAGE):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, saved[name]["dtype"], sharding=leaf.sharding)


def _none_whole(place: str, skipped: Mapping[str, str]) -> CheckpointError:
    listed = "".join(f"\n  {path}: {reason}" for path, reason in skipped.items())
    return CheckpointError(
        f"{place} has no undamaged checkpoint{listed}",
        allowed="a run folder, its checkpoints folder or a step-N, with an undamaged checkpoint",
        fix="correct the path, or restore a damaged one from a copy",
    )
