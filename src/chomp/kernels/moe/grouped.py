"""Products of sorted rows with the weights of their groups, by the fastest way of the platform.

Rows of a group stand together, groups in order, and `sizes` are their rows, which add up to all.
For arrays of one device, without derivatives: `experts` writes those out.
"""

import logging
from functools import cache
from typing import Literal

import jax
from jaxtyping import Array, DTypeLike, Float, Int

from chomp.kernels.moe.mosaic import mosaic_matmul, mosaic_outer, unsupported_by_mosaic
from chomp.kernels.moe.tiles import tiled_matmul, tiled_outer

# Axes: M rows sorted by group, E groups, D and F widths.

GroupedBackend = Literal["ragged_dot", "tiles", "mosaic"]

_MIN_KERNEL_ROWS = 512

_log = logging.getLogger(__name__)
# The sum over rows, which are what is ragged.
_OUTER = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


def grouped_backend(platform: str, dtype: DTypeLike, rows: int, *widths: int) -> GroupedBackend:
    """The way to multiply on a platform; a slow one where a fast one was to be expected is told."""
    if platform == "tpu":
        return "ragged_dot"  # which the compiler has a kernel for, on a TPU alone
    # Few rows, as when text is generated, take as long as reading the weights whatever is done.
    if platform == "gpu" and rows >= _MIN_KERNEL_ROWS:
        limit = unsupported_by_mosaic(dtype, rows, *widths)
        if limit is None:
            return "mosaic"
        _tell_fallback(limit)
    return "tiles"


def grouped_matmul(
    rows: Float[Array, "M _"],
    weights: Float[Array, "E _ _"],
    sizes: Int[Array, " E"],
    *,
    backend: GroupedBackend,
    is_turned: bool = False,
) -> Float[Array, "M _"]:
    """Every row times the weights of its group, or with `is_turned` times their transpose."""
    if backend == "mosaic":
        return mosaic_matmul(rows, weights, sizes, is_turned=is_turned)
    weights = weights.mT if is_turned else weights
    if backend == "tiles":
        return tiled_matmul(rows, weights, sizes)
    return jax.lax.ragged_dot(rows, weights, sizes, preferred_element_type=rows.dtype)


def grouped_outer(
    rows: Float[Array, "M D"],
    others: Float[Array, "M F"],
    sizes: Int[Array, " E"],
    *,
    backend: GroupedBackend,
) -> Float[Array, "E D F"]:
    """For every group, the sum over its rows of the outer products: a gradient of its weights."""
    if backend == "mosaic":
        return mosaic_outer(rows, others, sizes)
    if backend == "tiles":
        return tiled_outer(rows, others, sizes)
    return jax.lax.ragged_dot_general(
        rows,
        others,
        sizes,
        ragged_dot_dimension_numbers=_OUTER,
        preferred_element_type=rows.dtype,
    )


@cache
def _tell_fallback(limit: str) -> None:
    _log.warning(
        "experts are multiplied by tiles, which is slower than the kernels for Hopper GPUs: %s",
        limit,
    )
