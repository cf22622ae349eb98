"""Grouped products by plain batched ones, on any platform: groups cut into tiles of equal height.

The rows of a group go into tiles, the last of which is filled up with zeros; a tile's product is
with the weights of its group. Nothing depends on how many rows a group has.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Axes: M rows sorted by group, E groups, D and F widths, N tiles, R rows of a tile.

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
    products = jnp.einsum("nrd,ndf->nrf", _taken(rows, tiling.row), weights[tiling.group])
    return products.reshape(-1, weights.shape[2])[tiling.place]


def tiled_outer(
    rows: Float[Array, "M D"], others: Float[Array, "M F"], sizes: Int[Array, " E"]
) -> Float[Array, "E D F"]:
    """For every group, the sum over its rows of the outer products."""
    tiling = _tiling(sizes, rows.shape[0])
    products = jnp.einsum(
        "nrd,nrf->ndf",
        _taken(rows, tiling.row),
        _taken(others, tiling.row),
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


def _taken(rows: Float[Array, "M D"], index: Int[Array, "N R"]) -> Float[Array, "N R D"]:
    return jnp.take(rows, index, axis=0, mode="fill", fill_value=0)
