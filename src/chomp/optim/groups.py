"""The groups a model sorts its weights into; each optimizer treats a group in its own way.

The model says what each weight is (`param_groups()`), by a tree shaped like its parameters. Nothing
here goes by the names of weights: a renamed module stays in its group.
"""

from typing import Any, Literal, NamedTuple, get_args

import jax

from chomp.errors import ConfigError

# `state` is what a train step itself sets beside the weights, such as the bias of a router: no
# optimizer touches it.
Group = Literal["matrix", "embedding", "vector", "dynamics", "state"]
PARAM_GROUPS: tuple[Group, ...] = get_args(Group)
# Weight decay pulls on these alone: it would move norms, tables and time constants off their scale.
DECAYED_GROUPS: tuple[Group, ...] = ("matrix",)

_MAX_PATHS = 4  # in a message


class GroupedWeight(NamedTuple):
    """One weight: its path in the tree, its group, its shape."""

    path: str
    group: Group
    shape: tuple[int, ...]


def require_known_groups(param_groups: Any) -> None:
    """Raise `ConfigError` unless every leaf is a label of a group."""
    unknown = {path: label for path, label in _by_path(param_groups) if label not in PARAM_GROUPS}
    if unknown:
        raise ConfigError(
            f"parameter groups {sorted(set(map(str, unknown.values())))} at {_listed(unknown)}",
            allowed=f"{list(PARAM_GROUPS)}",
            fix="correct the model's param_groups()",
        )


def grouped_weights(params: Any, param_groups: Any) -> list[GroupedWeight]:
    """Every weight (or its shape) with its one group; trees that do not match are refused."""
    require_known_groups(param_groups)
    weights, labels = dict(_by_path(params)), dict(_by_path(param_groups))
    if unmatched := [path for path in weights | labels if (path in weights) != (path in labels)]:
        raise ConfigError(
            f"parameters and their groups differ at {_listed(unmatched)}",
            allowed="exactly one group for each parameter",
            fix="make param_groups() from the parameters by jax.tree.map",
        )
    return [GroupedWeight(path, labels[path], tuple(x.shape)) for path, x in weights.items()]


def decayed_weights(param_groups: Any) -> Any:
    """A tree of booleans: what weight decay pulls on."""
    return jax.tree.map(lambda label: label in DECAYED_GROUPS, param_groups)


def _by_path(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _listed(paths: Any) -> str:
    shown = list(paths)[:_MAX_PATHS]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
