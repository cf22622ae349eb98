"""What paired statistics mean, in words: better, worse, no difference, or cannot tell.

One test decides, the t test of the budget that was named before looking: its interval excludes 0 or
it does not. What follows from that is said with the size of the difference, and where nothing can
be told, with the number of seeds that would.
"""

from dataclasses import dataclass
from typing import Literal

from chomp.ledger.statistics import PairedStatistics, detectable_effect, seeds_needed

Word = Literal["better", "worse", "no difference", "cannot tell"]
LOWEST, HIGHEST = "lowest", "highest"  # which value of a metric is the best

# Percent of the base's value. Smaller differences are no reason to keep a change, and rounding
# alone makes some: two programs for one model end a few 1e-6 apart.
SMALLEST_PERCENT = 0.1
# The effect that "how many more seeds" is told for, besides the one that was seen.
_USUAL_PERCENT = 1.0


@dataclass(frozen=True)
class Verdict:
    """One word, and the sentence that gives its reasons."""

    word: Word
    text: str


def verdict_of(
    statistics: PairedStatistics,
    *,
    best: str = LOWEST,
    smallest_percent: float = SMALLEST_PERCENT,
) -> Verdict:
    """The verdict on a variant by its differences from the base."""
    if statistics.low is None or statistics.high is None:
        return Verdict("cannot tell", _one_seed(statistics))
    low, high = sorted(map(statistics.percent, (statistics.low, statistics.high)))
    if -smallest_percent <= low and high <= smallest_percent:
        return Verdict("no difference", _no_difference(statistics, smallest_percent))
    if low <= 0 <= high:
        return Verdict("cannot tell", _cannot_tell(statistics, smallest_percent))
    is_lower = high < 0
    word: Word = "better" if is_lower == (best == LOWEST) else "worse"
    return Verdict(word, f"{word}: {difference_text(statistics)}, p {p_text(statistics.p)}.")


def undecided(reason: str, statistics: PairedStatistics | None) -> Verdict:
    """No verdict, for a reason that comes before any statistics."""
    others = "" if statistics is None else f" Of the others: {difference_text(statistics)}."
    return Verdict("cannot tell", f"cannot tell: {reason}.{others}")


def difference_text(statistics: PairedStatistics) -> str:
    """The mean difference in percent, its interval, and the number of seeds."""
    mean = percent_text(statistics.percent(statistics.mean))
    seeds = f"{statistics.count} seeds" if statistics.count > 1 else "one seed"
    if statistics.low is None or statistics.high is None:
        return f"{mean} over {seeds}"
    low, high = (percent_text(statistics.percent(end)) for end in (statistics.low, statistics.high))
    return f"{mean} ({share_text(statistics.confidence)} interval {low} to {high}) over {seeds}"


def percent_text(percent: float) -> str:
    """A signed percentage with two digits after the point; one that counts where these are 0."""
    is_shown = abs(percent) >= 0.005 or percent == 0
    return f"{percent:+.2f} %" if is_shown else f"{percent:+.0e} %"


def share_text(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.3g} %"


def p_text(p: float | None) -> str:
    """A probability as a reader wants it."""
    if p is None:
        return "-"
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _one_seed(statistics: PairedStatistics) -> str:
    return (
        f"cannot tell: {difference_text(statistics)}, and one pair has no interval: how much two "
        "runs differ by chance is unknown. Two more seeds give a first idea."
    )


def _no_difference(statistics: PairedStatistics, smallest_percent: float) -> str:
    if statistics.deviation == 0 and statistics.mean == 0:
        return f"no difference: equal to the last digit in all {statistics.count} seeds."
    return (
        f"no difference that matters: {difference_text(statistics)}, all of it within "
        f"{smallest_percent:g} % of the base."
    )


def _cannot_tell(statistics: PairedStatistics, smallest_percent: float) -> str:
    deviation, count = statistics.deviation, statistics.count
    assert deviation is not None, "an interval has one"
    alpha = 1 - statistics.confidence
    parts = [f"cannot tell: {difference_text(statistics)}."]
    if count == 2:
        parts.append("Two seeds have one degree of freedom, and so a very wide interval.")
    usual = abs(statistics.base_mean) * _USUAL_PERCENT / 100
    found = [
        more_seeds_text(seeds_needed(deviation, usual, alpha=alpha), count, f"{_USUAL_PERCENT:g} %")
    ]
    if abs(statistics.percent(statistics.mean)) >= smallest_percent:
        needed = seeds_needed(deviation, statistics.mean, alpha=alpha)
        found.insert(0, more_seeds_text(needed, count, "this size"))
    parts.append(f"An effect of {'; one of '.join(found)}.")
    least = statistics.percent(detectable_effect(deviation, count, alpha=alpha))
    parts.append(f"These {count} tell {least:.2g} % four times in five.")
    return " ".join(parts)


def more_seeds_text(needed: int | None, count: int, size: str) -> str:
    """How many seeds beyond `count` would tell an effect of some size."""
    if needed is None:
        return f"{size} would take more than 1,000 seeds"
    more = needed - count
    if more <= 0:
        return f"{size} would have been told"
    return f"{size} would take about {more:,} more seed{'s' if more > 1 else ''}"
