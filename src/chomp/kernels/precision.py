"""Which dtype the parameters are kept in and which dtype the computation runs in.

The policy is data (`params=float32,compute=bfloat16`), so it can stand in a config and a metric.
Losses, softmax and norms are float32 whatever the policy says; that is the kernels' business.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from chomp.errors import require

Tree = TypeVar("Tree")

# What a model's `param_groups()` calls so is float32 at rest and at work: time constants and biases
# whose steps bfloat16 would round away, and routers, whose choice it would change.
FLOAT32_GROUPS = ("dynamics", "state")

# Not float16: gradients below 6e-8 are 0 in it, and nothing here scales a loss out of their reach.
_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtypes of one run: `params` at rest (and in the optimizer), `compute` inside the step."""

    params: str = "float32"
    compute: str = "float32"

    def __post_init__(self) -> None:
        for part, name in (("params", self.params), ("compute", self.compute)):
            require(
                name in _DTYPES,
                f"precision {part}={name}",
                allowed="float32 or bfloat16; in float16 small gradients would be lost, since no "
                "loss is scaled here",
                fix="write for example params=float32,compute=bfloat16",
            )

    @staticmethod
    def parse(text: str) -> "Precision":
        """The policy written as `params=float32,compute=bfloat16`; a part left out is float32."""
        parts: dict[str, str] = {}
        pieces = [piece.strip() for piece in text.split(",")]
        for item in list(filter(None, pieces)) or [""]:
            name, equals, dtype = item.partition("=")
            require(
                equals == "=" and name in ("params", "compute") and name not in parts,
                f"precision {text!r}",
                allowed="comma-separated params=DTYPE and compute=DTYPE, each once",
                fix="write for example 'params=float32,compute=bfloat16'",
            )
            parts[name] = dtype
        return Precision(**parts)

    def for_params(self, tree: Tree, groups: Tree | None = None) -> Tree:
        """`tree` with its floating-point arrays in the parameter dtype, but for `FLOAT32_GROUPS`.

        `groups` says which those are; None: what the `param_groups()` of a model says.
        """
        return _cast(tree, _DTYPES[self.params], groups)

    def for_compute(self, tree: Tree, groups: Tree | None = None) -> Tree:
        """`tree` with its floating-point arrays in the compute dtype, but for the same."""
        return _cast(tree, _DTYPES[self.compute], groups)


def _cast(tree: Any, dtype: Any, groups: Any) -> Any:
    def cast(leaf: Any, group: str = "") -> Any:
        is_float = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(dtype) if is_float and group not in FLOAT32_GROUPS else leaf

    # Asked here and not by every caller: one that forgot would generate with other experts than
    # the model was trained with, and nothing would tell.
    if groups is None and hasattr(tree, "param_groups"):
        groups = tree.param_groups()
    return jax.tree.map(cast, tree) if groups is None else jax.tree.map(cast, tree, groups)
