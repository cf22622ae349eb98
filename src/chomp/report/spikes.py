"""Where a loss jumped: rows far above what the rows before them had.

A row is compared with the block of rows before its own: with their median, in units of their median
absolute deviation (MAD), or of the usual one of the run where that is more: a block of a few rows
may happen to differ little. Both shrug off the spike itself, and a loss that falls steeply, as all
do at the beginning, is never above its past. The first block has no past: nothing is found in it.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

# Axes: N rows, M spikes.

MAX_SPIKES = 20
# Six standard deviations of normal noise, of which the MAD is 0.6745. Of simulated runs of nothing
# but such noise, fewer than 1 in 100 has a row beyond, at 100 rows as at 20,000; noise with heavier
# tails has more. Real spikes are far beyond.
_DEVIATIONS = 6 / 0.6745
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
    usual, spread = _before(values, block)
    steps, values = steps[block:], values[block:]
    least = np.maximum(_DEVIATIONS * spread, _LEAST_SHARE * np.abs(usual))
    above = values - usual
    tops = _tops(above > least, above, apart=block)
    highest = tops[np.argsort(-above[tops], kind="stable")[:MAX_SPIKES]]
    return [
        Spike(int(steps[top]), float(values[top]), float(usual[top])) for top in np.sort(highest)
    ]


def _before(
    values: Float[np.ndarray, " N"], block: int
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Median and MAD of the block before its own, for each row after the first block.

    No MAD is below the median of all blocks': without that, a quarter of all runs of 100 rows of
    noise would have a spike.
    """
    whole = values.size // block * block
    blocks = values[:whole].reshape(-1, block)
    medians = np.median(blocks, axis=1)
    spreads = np.median(np.abs(blocks - medians[:, None]), axis=1)
    spreads = np.maximum(spreads, np.median(spreads))
    past = np.arange(block, values.size) // block - 1
    return medians[past], spreads[past]


def _tops(
    is_above: Bool[np.ndarray, " N"], above: Float[np.ndarray, " N"], *, apart: int
) -> Int[np.ndarray, " M"]:
    """The highest row of each group; rows closer than `apart` are one jump and its way back."""
    rows = np.flatnonzero(is_above)
    if not rows.size:
        return rows
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > apart) + 1)
    return np.array([group[np.argmax(above[group])] for group in groups])
