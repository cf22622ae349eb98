"""Where a loss jumped: rows far above what the rows before them had.

A row is compared with the block of rows before its own: with their median, in units of their median
absolute deviation (MAD), or of the usual one of the run where that is more: a block of a few rows
may happen to differ little. Both shrug off the spike itself, and a loss that falls steeply, as all
do at the beginning, is never above its past. The first block has no past: nothing is found in it.

What a run does all the time is no spike: one row alone must also be beyond twice the run's own
dips, which no spike has made, and far beyond its highest hundredth. Two rows on end need not.

Simulated runs of 2,000 rows of nothing but noise that have a spike, and how often one row so many
standard deviations up is found in them (`tests/report/test_spikes.py` holds it to about these):

    noise                        have one   found: 5    8      12     20 deviations
    normal                       0 %        0 %         95 %   100 %  100 %
    Laplace                      0.5 %      0 %         17 %   93 %   100 %
    Gumbel (long above)          3 %        0 %         27 %   98 %   100 %
    Student, 5 degrees           7 %        0 %         15 %   86 %   100 %
    Student, 3 degrees           24 %       0 %         3 %    44 %   93 %
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Axes: N rows, B blocks of K rows, M spikes.

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
    medians, spreads = _medians_and_spreads(blocks)
    past = np.arange(block, values.size) // block - 1
    usual, spread = medians[past], spreads[past]
    steps, values = steps[block:], values[block:]
    above = values - usual
    is_far = above > np.maximum(_DEVIATIONS * spread, _LEAST_SHARE * np.abs(usual))
    is_unlike = above > spread * _habit(blocks, medians, spreads)
    tops = _tops(is_far & (is_unlike | _has_neighbour(is_far)), above, apart=block)
    highest = tops[np.argsort(-above[tops], kind="stable")[:MAX_SPIKES]]
    return [
        Spike(int(steps[top]), float(values[top]), float(usual[top])) for top in np.sort(highest)
    ]


def _medians_and_spreads(
    blocks: Float[np.ndarray, "B K"],
) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " B"]]:
    """Median and MAD of each block.

    No MAD is below the median of all blocks': without that, a quarter of all runs of 100 rows of
    noise would have a spike.
    """
    medians = np.median(blocks, axis=1)
    spreads = np.median(np.abs(blocks - medians[:, None]), axis=1)
    return medians, np.maximum(spreads, np.median(spreads))


def _habit(
    blocks: Float[np.ndarray, "B K"],
    medians: Float[np.ndarray, " B"],
    spreads: Float[np.ndarray, " B"],
) -> float:
    """How many MADs above its block a row may be that is like the others of its run."""
    differs = spreads > 0  # rows that are all the same show no habit
    if not differs.any():
        return 0.0
    deviations = (blocks - medians[:, None])[differs] / spreads[differs, None]
    deviations = np.sort(deviations, axis=None)
    high_rank = max(_MIN_HIGH_RANK, deviations.size // _HIGH_SHARE)
    return float(max(-_DIPS * deviations[_DIP_RANK - 1], _HIGHS * deviations[-high_rank]))


def _has_neighbour(is_far: Bool[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Whether the row before or the row after is far out as well."""
    padded = np.pad(is_far, 1)
    return padded[:-2] | padded[2:]


def _tops(
    is_above: Bool[np.ndarray, " N"], above: Float[np.ndarray, " N"], *, apart: int
) -> Int[np.ndarray, " M"]:
    """The highest row of each group; rows closer than `apart` are one jump and its way back."""
    rows = np.flatnonzero(is_above)
    if not rows.size:
        return rows
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > apart) + 1)
    return np.array([group[np.argmax(above[group])] for group in groups])
