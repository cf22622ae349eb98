"""Curves of a run: fewer points for a page without hiding what sticks out, and its spikes.

Rows are put into buckets of equal count. Of each bucket the lowest and the highest value stay, at
their own steps, and so does one gap (a value that was not finite): a spike of a single row among a
million is drawn at its full height. What is lost is only how often a bucket went up and down.
"""

import base64
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Axes: N rows, M rows that are kept, B blocks of K rows.

# The largest that a 32-bit float can be. What lies beyond is drawn there: as infinity it would be
# drawn nowhere.
LARGEST = float(np.finfo(np.float32).max)
# A straight piece is as good as its ends where no point is further off than this share of the
# values there: half of what a float32, which is what a page holds, can tell.
_STRAIGHT = 2.0**-25
MAX_SPIKES = 20
# Six standard deviations of normal noise, of which the MAD is 0.6745. Of simulated runs of nothing
# but such noise, fewer than 1 in 100 has a row beyond, at 100 rows as at 20,000.
_DEVIATIONS = 6 / 0.6745
# Twice the second deepest dip: one alone may be an odd batch. And as many times the 99th percentile
# as six deviations of normal noise are of its own, for noise that goes up further than down; of a
# short run the fifth highest row, since the others may be spikes.
_DIPS, _DIP_RANK = 2.0, 2
_HIGHS, _HIGH_SHARE, _MIN_HIGH_RANK = 2.6, 100, 5
# Where the rows before hardly differ, this share of their median is the least that counts.
_LEAST_SHARE = 0.02
_MAX_BLOCK = 50
_MIN_BLOCK = 8


@dataclass(frozen=True)
class Curve:
    """Some points of a series, by ascending steps."""

    steps: Int[np.ndarray, " M"]
    values: Float[np.ndarray, " M"]


def downsample(steps: Int[np.ndarray, " N"], values: Float[np.ndarray, " N"], limit: int) -> Curve:
    """At most `limit` of the points (8 or more), the ends, the lowest and the highest among them.

    A series within the limit comes back as it is.
    """
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


def pack_steps(steps: Int[np.ndarray, " N"]) -> str:
    """The steps for a page's JSON: base64 of little-endian 32-bit integers."""
    return base64.b64encode(steps.astype("<i4").tobytes()).decode()


def pack_values(values: Float[np.ndarray, " N"]) -> str:
    """The values as 32-bit floats: seven digits, which is more than a screen can show.

    Each is finite, `LARGEST` at most, or NaN.
    """
    return base64.b64encode(np.clip(values, -LARGEST, LARGEST).astype("<f4").tobytes()).decode()


# --- Spikes ---------------------------------------------------------------------------------------
#
# A spike is a row far above the rows before it. It is compared with the block of rows before its
# own: with their median, in units of their median absolute deviation (MAD), or of the run's usual
# MAD if that is larger, as a block of a few rows may differ little by chance. Both ignore the
# spike itself, and a loss that falls steeply, as at the beginning, is never above its past. The
# first block has no past, so nothing is found in it.
#
# What a run does all the time is not a spike: one row alone must also be beyond twice the run's
# own dips, which no spike has made, and far beyond its highest hundredth. Two rows in a row need
# not.
#
# Simulated runs of 2,000 rows of nothing but noise that have a spike, and how often one row so many
# standard deviations up is found in them (`tests/report/test_spikes.py` holds it to about these):
#
#     noise                        have one   found: 5    8      12     20 deviations
#     normal                       0 %        0 %         95 %   100 %  100 %
#     Laplace                      0.5 %      0 %         17 %   93 %   100 %
#     Gumbel (long above)          3 %        0 %         27 %   98 %   100 %
#     Student, 5 degrees           7 %        0 %         15 %   86 %   100 %
#     Student, 3 degrees           24 %       0 %         3 %    44 %   93 %


@dataclass(frozen=True)
class Spike:
    """The highest row of a jump."""

    step: int
    value: float
    usual: float  # the median of the block of rows before


def spikes(steps: Int[np.ndarray, " N"], values: Float[np.ndarray, " N"]) -> list[Spike]:
    """The jumps of a series that should fall, by step; the `MAX_SPIKES` highest of them.

    Rows that were not finite are left out here: they are told of in other words.
    """
    is_there = np.isfinite(values)
    steps, values = steps[is_there], values[is_there]
    block = int(np.clip(values.size // 16, _MIN_BLOCK, _MAX_BLOCK))
    if values.size < 2 * block:
        return []
    blocks = values[: values.size // block * block].reshape(-1, block)
    medians = np.median(blocks, axis=1)
    spreads = np.median(np.abs(blocks - medians[:, None]), axis=1)
    # No MAD is below the median of all blocks': without that, a quarter of all runs of 100 rows of
    # noise would have a spike.
    spreads = np.maximum(spreads, np.median(spreads))
    past = np.arange(block, values.size) // block - 1
    usual, spread = medians[past], spreads[past]
    steps, values = steps[block:], values[block:]
    above = values - usual
    is_far = above > np.maximum(_DEVIATIONS * spread, _LEAST_SHARE * np.abs(usual))
    # How many MADs above its block a row may be that is like the others of its run.
    habit, differs = 0.0, spreads > 0  # rows that are all the same show no habit
    if differs.any():
        own = np.sort(((blocks - medians[:, None])[differs] / spreads[differs, None]), axis=None)
        high = own[-max(_MIN_HIGH_RANK, own.size // _HIGH_SHARE)]
        habit = max(-_DIPS * own[_DIP_RANK - 1], _HIGHS * high)
    is_near_far = np.pad(is_far, 1)  # or the row before or after is far out as well
    is_top = is_far & ((above > spread * habit) | is_near_far[:-2] | is_near_far[2:])
    rows = np.flatnonzero(is_top)
    # Rows closer than a block are one jump and its way back.
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > block) + 1) if rows.size else []
    tops = np.array([group[np.argmax(above[group])] for group in groups], np.int64)
    highest = np.sort(tops[np.argsort(-above[tops], kind="stable")[:MAX_SPIKES]])
    return [Spike(int(steps[top]), float(values[top]), float(usual[top])) for top in highest]
