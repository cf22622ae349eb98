"""Weights of a state by the names of their leaves: the average, and another run's weights.

Templates keep weights in `params` and their average in `ema_params`, shaped alike. Everything else
is the optimizer's and the run's own.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from chomp.checkpoint.candidates import described, search_at
from chomp.checkpoint.compatibility import require_same_arrays
from chomp.checkpoint.fallback import newest_whole
from chomp.checkpoint.layout import StepFolder
from chomp.checkpoint.leaves import named_leaves, with_leaves
from chomp.checkpoint.read_on_mesh import placed
from chomp.errors import CheckpointError, message

WEIGHTS = "params/"
AVERAGE = "ema_params/"

T = TypeVar("T")
State = TypeVar("State")

_log = logging.getLogger(__name__)


def within(leaves: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The leaves below a field of the state."""
    return {name: leaf for name, leaf in leaves.items() if name.startswith(prefix)}


def without(leaves: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The leaves that are not below a field of the state."""
    return {name: leaf for name, leaf in leaves.items() if not name.startswith(prefix)}


def average_at(weights: Mapping[str, jax.Array], targets: Mapping[str, Any]) -> dict[str, Any]:
    """The average that starts at `weights`, for the leaves of `targets`: copies, in its dtype."""
    return {
        # A copy even where dtypes agree: a step that donates the state may not get a buffer twice.
        name: jnp.array(weights[name.replace(AVERAGE, WEIGHTS, 1)], dtype=leaf.dtype, copy=True)
        for name, leaf in within(targets, AVERAGE).items()
    }


def begin_with_weights(
    place: str, initialize: Callable[[], State], *, tokenizer_hash: str, mesh: Mesh
) -> tuple[State, dict[str, Any]]:
    """A fresh state with the newest whole weights at `place`, and which checkpoint had them.

    `place` may belong to any run; only names, shapes and dtypes of the weights have to agree. Step,
    optimizer and random key are fresh, and an average starts at the loaded weights. An optimizer
    that keeps weights in its state would keep the fresh ones. Another tokenizer than the run's
    `tokenizer_hash` is told loudly.
    """
    abstract = jax.eval_shape(initialize)
    leaves = {name: placed(leaf, mesh) for name, leaf in named_leaves(abstract).items()}
    targets = within(leaves, WEIGHTS)
    # Made before anything is read, and at once without its weights: never two copies of those.
    fresh = without(without(named_leaves(initialize()), WEIGHTS), AVERAGE)
    outcome = newest_whole(
        "find weights",
        lambda: search_at(place),
        check=lambda found: _require_same_weights(found, targets),
        targets=lambda found: targets,
    )
    whole = outcome.whole
    if whole is None:
        raise _none_whole(place, outcome.skipped)
    _warn_of_other_tokens(whole.found, tokenizer_hash)
    state = with_leaves(abstract, fresh | whole.leaves | average_at(whole.leaves, leaves))
    return state, described(whole.found)


def _require_same_weights(found: StepFolder, targets: Mapping[str, Any]) -> None:
    require_same_arrays(found.path, within(found.metadata.arrays, WEIGHTS), targets)


def _warn_of_other_tokens(found: StepFolder, tokenizer_hash: str) -> None:
    saved = found.metadata.tokenizer_hash
    if saved != tokenizer_hash:
        # Not refused: the layers between embedding and head may be what somebody wants.
        _log.warning(
            "%s was trained with ANOTHER TOKENIZER (%s there, %s here): its embedding and its head "
            "mean other tokens",
            found.path,
            saved or "unknown",
            tokenizer_hash or "unknown",
        )


def _none_whole(place: str, skipped: Mapping[str, str]) -> CheckpointError:
    listed = "".join(f"\n  {path}: {reason}" for path, reason in skipped.items())
    return CheckpointError(
        message(
            given=f"initialize_from={place} has no whole checkpoint{listed}",
            allowed="a step-N folder, a folder of those, or a run folder",
            fix="correct the path, or remove initialize_from to begin with random weights",
        )
    )
