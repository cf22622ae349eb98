"""Weights of a state by the names of their leaves: the weights themselves, and their average.

Templates keep weights in `params` and their average in `ema_params`, shaped alike. Everything else
is the optimizer's and the run's own.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

WEIGHTS = "params/"
AVERAGE = "ema_params/"

T = TypeVar("T")


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
