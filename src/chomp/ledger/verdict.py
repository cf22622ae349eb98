"""What paired statistics mean, in words: better, worse, no difference, or cannot tell.

One test decides, the t test of the budget that was named before looking: its p reaches the level or
it does not. What follows from that is said with the size of the difference, and where nothing can
be told, with the number of seeds that would.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chomp.errors import require
from chomp.launch.sweep import HIGHEST, LOWEST
from chomp.ledger.statistics import (
    LEVEL,
    MOST_SEEDS,
    PairedStatistics,
    detectable_effect,
    seeds_needed,
    seeds_to_show_none,
)

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
        f"--metric {metric} without --best",
        allowed="a loss, bpb or perplexity (lowest is best), or --best",
        fix=f"add --best {HIGHEST}, as for an accuracy, or --best {LOWEST}",
    )
    return given or LOWEST


def word_of(
    statistics: PairedStatistics,
    *,
    best: str = LOWEST,
    smallest_percent: float = SMALLEST_PERCENT,
) -> Word:
    """The word that differences from the base give a variant."""
    low, high = statistics.low, statistics.high
    if low is None or high is None:
        return "cannot tell"
    # 0 where the base is 0: percent mean nothing there, and only equality is no difference.
    limit = abs(statistics.base_mean) * smallest_percent / 100
    if -limit <= low and high <= limit:
        return "no difference"
    if not _has_spread(statistics):
        return "cannot tell"
    if statistics.p is None or statistics.p > level_of(statistics):
        return "cannot tell"
    return "better" if (statistics.mean < 0) == (best == LOWEST) else "worse"


def verdict_of(
    statistics: PairedStatistics,
    *,
    best: str = LOWEST,
    smallest_percent: float = SMALLEST_PERCENT,
    new_seed: int | None = None,
) -> Verdict:
    """The word, and the sentence that goes with it.

    `new_seed`: the first that no pair has, for the advice on a new test.
    """
    word = word_of(statistics, best=best, smallest_percent=smallest_percent)
    if word == "no difference":
        return Verdict(word, _no_difference(statistics, smallest_percent))
    if word == "cannot tell":
        if statistics.low is None:
            return Verdict(word, _one_seed(statistics))
        if not _has_spread(statistics):
            return Verdict(word, _no_spread(statistics))
        return Verdict(word, _cannot_tell(statistics, smallest_percent, new_seed))
    told = f"{word}: {difference_text(statistics)}, p {p_text(statistics.p)}."
    return Verdict(word, " ".join([told, *_few_seeds(statistics)]))


def undecided(
    reason: str, statistics: PairedStatistics | None, *, beside: str = "Of the others"
) -> Verdict:
    """No verdict, for a reason that comes before any statistics; `beside` leads these in."""
    measured = "" if statistics is None else f" {beside}: {difference_text(statistics)}."
    return Verdict("cannot tell", f"cannot tell: {reason}.{measured}")


def level_of(statistics: PairedStatistics) -> float:
    """The p that better or worse takes; never more than the interval beside it allows."""
    return min(LEVEL, 1 - statistics.confidence)


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


def _has_spread(statistics: PairedStatistics) -> bool:
    """Whether the differences differ, by more than the digits of a subtraction."""
    low, high = statistics.low, statistics.high
    return low is not None and high is not None and high - low > _SAME * abs(statistics.mean)


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
        "seeds, the same to the last digit: how much two runs differ by chance is unknown. Two "
        "more seeds may show it, or a metric of finer values."
    )


def _few_seeds(statistics: PairedStatistics) -> list[str]:
    """What is to be said of an interval that two seeds give, whatever it says."""
    if statistics.count > 2:
        return []
    return ["Two seeds have one degree of freedom: what they tell of chance is next to nothing."]


def _cannot_tell(
    statistics: PairedStatistics, smallest_percent: float, new_seed: int | None
) -> str:
    """Why nothing is told, and what would: at least one number of seeds."""
    deviation, count, level = statistics.deviation, statistics.count, level_of(statistics)
    assert deviation is not None, "an interval has one"
    sizes = _sizes(statistics, smallest_percent)
    needed = {
        size: seeds_needed(deviation, each, pilot=count, level=level)
        for size, each in sizes.items()
    }
    told = [seeds_text(each, count, size) for size, each in needed.items()]
    least = deviation * detectable_effect(count, pilot=count, level=level)
    return " ".join(
        [
            f"cannot tell: {difference_text(statistics)}, p {p_text(statistics.p)}.",
            *_almost(statistics, level),
            *_few_seeds(statistics),
            *([f"An effect of {'; one of '.join(told)}."] if told else []),
            *_advice(list(needed.values()), statistics, smallest_percent, new_seed),
            f"These {count} tell {amount_text(statistics, least).removeprefix('+')} four times in "
            "five.",
        ]
    )


def _sizes(statistics: PairedStatistics, smallest_percent: float) -> dict[str, float]:
    """The effects that numbers of seeds are told for: the one that was seen, and the usual one."""
    limit = abs(statistics.base_mean) * smallest_percent / 100
    sizes = {"this size": statistics.mean} if abs(statistics.mean) >= limit else {}
    if statistics.base_mean and smallest_percent <= _USUAL_PERCENT:
        usual = abs(statistics.base_mean) * _USUAL_PERCENT / 100
        sizes[f"{_USUAL_PERCENT:g} %"] = usual
    return sizes


def seeds_text(needed: int | None, count: int, size: str) -> str:
    """How many seeds a test takes that tells an effect of some size; `count` have been run."""
    if needed is None:
        return f"{size} takes more than {MOST_SEEDS:,} seeds"
    if needed <= count:
        return f"{size} would have been told"
    return f"{size} takes about {needed:,} seeds"


def _almost(statistics: PairedStatistics, level: float) -> list[str]:
    """What is to be said where an interval excludes 0, as 95 % are shown and more is asked for."""
    low, high = statistics.low, statistics.high
    if low is None or high is None or low <= 0 <= high:
        return []
    return [
        f"The interval excludes 0, but better or worse takes a p of at most {level:g}: of 1,000 "
        "changes that do nothing at most 50 are to be called so."
    ]


def _advice(
    needed: Sequence[int | None],
    statistics: PairedStatistics,
    smallest_percent: float,
    new_seed: int | None,
) -> list[str]:
    """The options of a test on new seeds alone: more of the old ones would be a second look."""
    count = statistics.count
    if all(each is not None and each <= count for each in needed):
        # All that is large would have been told: what is left is to show that nothing is there.
        return [_to_show_none(statistics, smallest_percent, new_seed)]
    first = needed[0]
    if first is None or first <= count or new_seed is None:
        return []
    return [f"Test it on {first:,} new ones: --seeds {first} --first-seed {new_seed}."]


def _to_show_none(
    statistics: PairedStatistics, smallest_percent: float, new_seed: int | None
) -> str:
    assert statistics.deviation is not None, "an interval has one"
    needed = seeds_to_show_none(
        statistics.deviation,
        abs(statistics.base_mean) * smallest_percent / 100,
        pilot=statistics.count,
        confidence=statistics.confidence,
    )
    number = f"more than {MOST_SEEDS:,}" if needed is None else f"about {needed:,}"
    is_advice = needed is not None and new_seed is not None
    options = f": --seeds {needed} --first-seed {new_seed}" if is_advice else ""
    return (
        f"That nothing beyond {smallest_percent:g} % is there takes {number} new seeds to show"
        f"{options}."
    )
