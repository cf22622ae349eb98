"""Products of sorted rows with the weights of their groups, by the fastest way of the platform.

Rows of a group stand together, groups in order; `sizes` are the rows of each group. For arrays of
one device, without derivatives: `experts` writes those out.
"""

import logging
from functools import cache
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from chomp.kernels.moe.mosaic import mosaic_matmul, mosaic_outer, unsupported_by_mosaic

# Axes: M rows sorted by group, E groups, D and F widths, N tiles, R rows of a tile.


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
    """The backend of a platform; a warning where a faster one was to be expected."""
    if platform == "tpu":
        return "ragged_dot"  # which the compiler has a kernel for, on a TPU alone
    # Few rows, as when text is generated, take as long as reading the weights whatever is done.
    if platform == "gpu" and rows >= _MIN_KERNEL_ROWS:
        limit = unsupported_by_mosaic(dtype, rows, *widths)
        if limit is None:
            return "mosaic"
        _warn_fallback(limit)
    return "tiles"


def grouped_matmul(
    rows: Float[Array, "M _"],
    weights: Float[Array, "E _ _"],
    sizes: Int[Array, " E"],
    *,
    backend: GroupedBackend,
    transpose: bool = False,
) -> Float[Array, "M _"]:
    """Every row times the weights of its group, or with `transpose` times their transpose."""
    if backend == "mosaic":
        return mosaic_matmul(rows, weights, sizes, transpose=transpose)
    weights = weights.mT if transpose else weights
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
def _warn_fallback(limit: str) -> None:
    _log.warning(
        "experts are multiplied by tiles, which is slower than the kernels for Hopper GPUs: %s",
        limit,
    )


# ---- Tiles: plain batched products, on any platform ---------------------------------------------
#
# The rows of a group go into tiles of equal height, the last filled up with zeros; a tile is
# multiplied by the weights of its group. No shape depends on how many rows a group has.


# As many tiles in a group of mean size: the filling then costs an eighth on average.
_TILES_PER_GROUP = 4
_MIN_TILE, _MAX_TILE = 8, 1024


class _Tiling(NamedTuple):
    group: Int[Array, " N"]  # whose weights a tile takes
    row: Int[Array, "N R"]  # which row stands there; M: none
    place: Int[Array, " M"]  # where a row stands among the rows of all tiles


def tiled_matmul(
    rows: Float[Array, "M D"], weights: Float[Array, "E D F"], sizes: Int[Array, " E"]
) -> Float[Array, "M F"]:
    """Every row times the weights of its group; `sizes` are the rows of each, in order."""
    tiling = _tiling(sizes, rows.shape[0])
    products = jnp.einsum("nrd,ndf->nrf", _take(rows, tiling.row), weights[tiling.group])
    return products.reshape(-1, weights.shape[2])[tiling.place]


def tiled_outer(
    rows: Float[Array, "M D"], others: Float[Array, "M F"], sizes: Int[Array, " E"]
) -> Float[Array, "E D F"]:
    """For every group, the sum over its rows of the outer products."""
    tiling = _tiling(sizes, rows.shape[0])
    products = jnp.einsum(
        "nrd,nrf->ndf",
        _take(rows, tiling.row),
        _take(others, tiling.row),
        preferred_element_type=jnp.float32,
    )
    sums = jax.ops.segment_sum(
        products, tiling.group, num_segments=sizes.shape[0], indices_are_sorted=True
    )
    return sums.astype(rows.dtype)


def _tiling(sizes: Int[Array, " E"], count: int) -> _Tiling:
    height = _tile_height(count, sizes.shape[0])
    ends, tiles = jnp.cumsum(sizes), -(-sizes // height)
    tile_ends = jnp.cumsum(tiles)
    # As many as the least lucky sizes need: each group may leave its last tile almost empty.
    numbers = jnp.arange(-(-count // height) + sizes.shape[0], dtype=sizes.dtype)
    # A tile that nobody needs belongs to the last group and holds no row.
    group = jnp.minimum(jnp.searchsorted(tile_ends, numbers, side="right"), sizes.shape[0] - 1)
    first = (ends - sizes)[group] + (numbers - (tile_ends - tiles)[group]) * height
    row = first[:, None] + jnp.arange(height, dtype=sizes.dtype)[None]
    row = jnp.where(row < ends[group][:, None], row, count)
    rows = jnp.arange(count, dtype=sizes.dtype)
    own = jnp.searchsorted(ends, rows, side="right")
    place = (tile_ends - tiles)[own] * height + rows - (ends - sizes)[own]
    return _Tiling(group, row, place)


def _tile_height(count: int, groups: int) -> int:
    wanted = max(count // (groups * _TILES_PER_GROUP), 1)
    return min(max(1 << (wanted.bit_length() - 1), _MIN_TILE), _MAX_TILE)


def _take(rows: Float[Array, "M D"], index: Int[Array, "N R"]) -> Float[Array, "N R D"]:
    return jnp.take(rows, index, axis=0, mode="fill", fill_value=0)
