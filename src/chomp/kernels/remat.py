"""What the backward pass of a layer recomputes, by the name a model's config gives it.

Recomputing trades time for memory and changes no value beyond rounding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax

Remat = Literal["none", "block", "matmuls"]

# Products are what takes the time; norms and gates between them are cheap to make again.
_KEEP_PRODUCTS = jax.checkpoint_policies.dots_with_no_batch_dims_saveable


def remat(apply: Callable[..., Any], policy: Remat) -> Callable[..., Any]:
    """`apply`, keeping everything (`none`), its inputs alone (`block`), or also its products."""
    match policy:
        case "none":
            return apply
        case "block":
            return jax.checkpoint(apply)
        case "matmuls":
            return partial(jax.checkpoint, policy=_KEEP_PRODUCTS)(apply)
