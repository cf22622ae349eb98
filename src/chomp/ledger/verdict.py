"""What paired statistics mean, in words: better, worse, no difference, or cannot tell.

One test decides, the t test of the budget that was named before looking: its interval excludes 0 or
it does not. What follows from that is said with the size of the difference, and where nothing can
be told, with the number of seeds that would.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

from chomp.errors import require
from chomp.launch.sweep_table import HIGHEST, LOWEST
from chomp.ledger.statistics import PairedStatistics, detectable_effect, seeds_needed

Word = Literal["better", "worse", "no difference", "cannot tell"]

# Percent of the base's value. Smaller differences are no reason to keep a change, and rounding
# alone makes some: two programs for one model end a few 1e-6 apart.
SMALLEST_PERCENT = 0.1
# The effect that "how many more seeds" is told for, besides the one that was seen.
_USUAL_PERCENT = 1.0
# Metrics of which less is better, by the end of their names; of any other nobody can know.
_LOWER_IS_BETTER = re.compile(r"(loss|bpb|perplexity|bits_per_byte)\Z")
# Differences that are equal but for the digits of a subtraction.
_SAME = 1e-9


@dataclass(frozen=True)
class Verdict:
    """One word, and the sentence that gives its reasons."""

    word: Word
    text: str


def best_of(metric: str, given: str | None) -> str:
    """Which value of a metric is the best; `ConfigError` where only the user can know."""
    require(
        given is not None or _LOWER_IS_BETTER.search(metric) is not None,
        given=f"--metric {metric} without --best",
        allowed="a loss, bpb or perplexity, of which the lowest is the best, or --best",
        fix=f"add --best {HIGHEST}, as for an accuracy, or --best {LOWEST}",
    )
    return given or LOWEST


def verdict_of(
    statistics: PairedStatistics,
    *,
    best: str = LOWEST,
    smallest_percent: float = SMALLEST_PERCENT,
    new_seed: int | None = None,
) -> Verdict:
    """The verdict on a variant by its differences from the base.

    `new_seed`: the first that no pair has, for the advice on a new test.
    """
    low, high = statistics.low, statistics.high
    if low is None or high is None:
        return Verdict("cannot tell", _one_seed(statistics))
    # 0 where the base is 0: percent mean nothing there, and only equality is no difference.
    limit = abs(statistics.base_mean) * smallest_percent / 100
    if -limit <= low and high <= limit:
        return Verdict("no difference", _no_difference(statistics, smallest_percent))
    if high - low <= _SAME * abs(statistics.mean):
        return Verdict("cannot tell", _no_spread(statistics))
    if low <= 0 <= high:
        return Verdict("cannot tell", _cannot_tell(statistics, smallest_percent, new_seed))
    word: Word = "better" if (high < 0) == (best == LOWEST) else "worse"
    told = f"{word}: {difference_text(statistics)}, p {p_text(statistics.p)}."
    return Verdict(word, " ".join([told, *_few_seeds(statistics)]))


def undecided(reason: str, statistics: PairedStatistics | None) -> Verdict:
    """No verdict, for a reason that comes before any statistics."""
    others = "" if statistics is None else f" Of the others: {difference_text(statistics)}."
    return Verdict("cannot tell", f"cannot tell: {reason}.{others}")


def difference_text(statistics: PairedStatistics) -> str:
    """The mean difference in percent, its interval, and the number of seeds."""
    mean = amount_text(statistics, statistics.mean)
    seeds = f"{statistics.count} seeds" if statistics.count > 1 else "one seed"
    if statistics.low is None or statistics.high is None:
        return f"{mean} over {seeds}"
    low, high = (amount_text(statistics, end) for end in (statistics.low, statistics.high))
    return f"{mean} ({share_text(statistics.confidence)} interval {low} to {high}) over {seeds}"


def amount_text(statistics: PairedStatistics, difference: float) -> str:
    """A signed difference in percent of the base; as it is where the base is 0."""
    percent = statistics.percent(difference)
    return percent_text(percent) if math.isfinite(percent) else f"{difference:+.4g}"


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


def _no_spread(statistics: PairedStatistics) -> str:
    """A metric of few values, as an accuracy of few questions, makes such differences by chance."""
    return (
        f"cannot tell: {amount_text(statistics, statistics.mean)} in each of {statistics.count} "
        "seeds, the same to the last digit: how much two runs differ by chance is unknown."
    )


def _few_seeds(statistics: PairedStatistics) -> list[str]:
    """What is to be said of an interval that two seeds give, whatever it says."""
    if statistics.count > 2:
        return []
    return ["Two seeds have one degree of freedom: what they tell of chance is next to nothing."]


def _cannot_tell(
    statistics: PairedStatistics, smallest_percent: float, new_seed: int | None
) -> str:
    deviation, count = statistics.deviation, statistics.count
    assert deviation is not None, "an interval has one"
    alpha = 1 - statistics.confidence
    limit = abs(statistics.base_mean) * smallest_percent / 100
    # The size that was seen first, of which the advice is.
    sizes = {"this size": statistics.mean} if abs(statistics.mean) >= limit else {}
    if statistics.base_mean:
        usual = abs(statistics.base_mean) * _USUAL_PERCENT / 100
        sizes[f"{_USUAL_PERCENT:g} %"] = usual
    needed = {size: seeds_needed(deviation, each, alpha=alpha) for size, each in sizes.items()}
    told = [seeds_text(each, count, size) for size, each in needed.items()]
    least = amount_text(statistics, detectable_effect(deviation, count, alpha=alpha))
    return " ".join(
        [
            f"cannot tell: {difference_text(statistics)}.",
            *_few_seeds(statistics),
            f"An effect of {'; one of '.join(told)}.",
            *_advice(next(iter(needed.values())), count, new_seed),
            f"These {count} tell {least.removeprefix('+')} four times in five.",
        ]
    )


def seeds_text(needed: int | None, count: int, size: str) -> str:
    """How many seeds a test takes that tells an effect of some size; `count` have been run."""
    if needed is None:
        return f"{size} takes more than 1,000 seeds"
    if needed <= count:
        return f"{size} would have been told"
    return f"{size} takes about {needed:,} seeds"


def _advice(needed: int | None, count: int, new_seed: int | None) -> list[str]:
    """The options of a test on new seeds alone: more of the old ones would be a second look."""
    if needed is None or needed <= count or new_seed is None:
        return []
    return [f"Test it on {needed:,} new ones: --seeds {needed} --first-seed {new_seed}."]
