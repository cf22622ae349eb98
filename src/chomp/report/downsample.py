"""Fewer points of a curve for a page or a terminal, without hiding anything that sticks out.

Rows are put into buckets of equal count. Of each bucket the lowest and the highest value stay, at
their own steps, and so does one gap (a value that was not finite): a spike of a single row among a
million is drawn at its full height. What is lost is only how often a bucket went up and down.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from chomp.errors import require

# Axes: N rows, M rows that are kept.

MIN_POINTS = 8  # below that a curve says nothing, and no bucket is left between its ends
# A straight piece is as good as its ends where no point is further off than this share of the
# values there: half of what a float32, which is what a page holds, can tell.
_STRAIGHT = 2.0**-25


@dataclass(frozen=True)
class Curve:
    """Some points of a series, by ascending steps."""

    steps: Int[np.ndarray, " M"]
    values: Float[np.ndarray, " M"]


def downsampled(steps: Int[np.ndarray, " N"], values: Float[np.ndarray, " N"], limit: int) -> Curve:
    """At most `limit` of the points, first and last, lowest and highest always among them.

    A series within the limit comes back as it is.
    """
    _require_limit(limit)
    if values.size <= limit:
        return Curve(steps, values)
    is_gap = np.isnan(values)
    per_bucket = 3 if is_gap.any() else 2
    edges = _edges(values.size, (limit - 2) // per_bucket)
    kept = np.zeros(values.size, bool)
    kept[[0, -1]] = True
    # A gap is neither lowest nor highest, unless a bucket is nothing but gaps.
    kept[_first_of_buckets(np.where(is_gap, np.inf, values), edges)] = True
    kept[_first_of_buckets(np.where(is_gap, np.inf, -values), edges)] = True
    if per_bucket == 3:
        gaps = _first_of_buckets(np.where(is_gap, 0.0, 1.0), edges)
        kept[gaps[is_gap[gaps]]] = True
    return Curve(steps[kept], values[kept])


def bucket_means(
    steps: Int[np.ndarray, " N"], values: Float[np.ndarray, " N"], limit: int
) -> Curve:
    """The means of at most `limit` buckets at their middle steps; gaps are left out of them."""
    _require_limit(limit)
    edges = _edges(values.size, min(limit, values.size))
    if not edges.size:
        return Curve(steps, values)
    is_there = ~np.isnan(values)
    counts = np.add.reduceat(is_there.astype(np.float64), edges)
    # 0/0: a bucket of nothing but gaps is one itself. A sum beyond all numbers is infinite.
    with np.errstate(invalid="ignore", over="ignore"):
        means = np.add.reduceat(np.where(is_there, values, 0.0), edges) / counts
    last = np.append(edges[1:], values.size) - 1
    return Curve((steps[edges] + steps[last]) // 2, means)


def straight_pieces(
    steps: Int[np.ndarray, " N"], values: Float[np.ndarray, " N"], limit: int
) -> Curve | None:
    """The corners of a series of straight pieces, from which all of it can be drawn again.

    None where it takes more than `limit` of them, as for anything noisy or bent.
    """
    beginning = slice(4 * limit)
    # Most series are noise, which a look at their beginning tells.
    if np.isnan(values).any() or _corners(steps[beginning], values[beginning]).sum() > limit:
        return None
    is_corner = _corners(steps, values)
    if is_corner.sum() > limit:
        return None
    curve = Curve(steps[is_corner], values[is_corner])
    # A gentle bend changes its slope by next to nothing at every point: only this tells.
    with np.errstate(over="ignore", invalid="ignore"):
        drawn = np.interp(steps, curve.steps, curve.values) if values.size else values
        allowed = 2 * _STRAIGHT * np.maximum(np.abs(values), np.abs(drawn))
        return curve if bool(np.all(np.abs(drawn - values) <= allowed)) else None


def _corners(
    steps: Int[np.ndarray, " N"], values: Float[np.ndarray, " N"]
) -> Bool[np.ndarray, " N"]:
    """Both ends, and where the slope changes by more than the rounding of the values there."""
    is_corner = np.ones(values.size, bool)
    if values.size > 2:
        widths = np.diff(steps)
        # What is too large for that comes out as no corner, which is found to draw something else.
        with np.errstate(over="ignore", invalid="ignore"):
            bends = np.abs(np.diff(np.diff(values) / widths))
        change = bends * np.minimum(widths[1:], widths[:-1])
        # Not of the whole series: beside one value of 1e8 all others would be a straight line.
        sizes = np.abs(values)
        largest = np.maximum(np.maximum(sizes[:-2], sizes[1:-1]), sizes[2:])
        is_corner[1:-1] = change > _STRAIGHT * largest
    return is_corner


def _edges(size: int, buckets: int) -> Int[np.ndarray, " M"]:
    """Where each bucket begins."""
    return np.unique(np.linspace(0, size, buckets, endpoint=False).astype(np.int64))


def _first_of_buckets(
    values: Float[np.ndarray, " N"], edges: Int[np.ndarray, " M"]
) -> Int[np.ndarray, " M"]:
    """The index of each bucket's lowest value, the first of equals."""
    lowest = np.repeat(np.minimum.reduceat(values, edges), np.diff(np.append(edges, values.size)))
    places = np.flatnonzero(values == lowest)
    return places[np.searchsorted(places, edges)]


def _require_limit(limit: int) -> None:
    require(
        limit >= MIN_POINTS,
        f"a curve of at most {limit} points",
        allowed=f"{MIN_POINTS} or more",
        fix="draw fewer curves, or allow more points for each",
    )
