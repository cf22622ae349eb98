"""A state as a flat mapping of named arrays, and back; and the weights in it.

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


def named_leaves(state: Any) -> dict[str, Any]:
    """Leaf path -> array. Typed random keys become their data, which Orbax and hashes can take."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {_name(path): _plain(leaf) for path, leaf in flat}


def with_leaves(abstract_state: Any, leaves: dict[str, Any]) -> Any:
    """The state of `abstract_state`'s shape whose leaves are `leaves`, random keys typed again."""

    def find(path: jax.tree_util.KeyPath[Any], leaf: Any) -> Any:
        value = leaves[_name(path)]
        return _as_key(value, leaf) if _is_key(leaf) else value

    return jax.tree_util.tree_map_with_path(find, abstract_state)


def arrays_of(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Shape and dtype of each leaf, as the metadata of a checkpoint holds them."""
    return {
        name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for name, leaf in leaves.items()
    }


def _name(path: jax.tree_util.KeyPath[Any]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_key(data: Any, like: Any) -> Any:
    """`data` as random keys of the kind `like` has: another generator would give other numbers."""
    kinds: list[Any] = []
    # JAX tells the kind of an array only, and `like` may be its shape: so it is asked in a trace.
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), like)
    return jax.random.wrap_key_data(data, impl=kinds[0])


def _plain(leaf: Any) -> Any:
    if not _is_key(leaf):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.random.key_data(leaf)


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
