"""What paired statistics mean, in words: better, worse, no difference, or cannot tell.

One test decides, the t test at the budget that was named before looking: its p reaches the level or
it does not. The verdict also gives the size of the difference and, if nothing can be told, the
number of seeds that would tell.
"""

import math
import re
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
# The effect for which a number of seeds is given besides the measured one.
_USUAL_PERCENT = 1.0
# Metrics of which less is better, by the end of their names; for others the user has to say.
_LOWER_IS_BETTER = re.compile(r"(loss|bpb|perplexity|bits_per_byte)\Z")
# Differences that are equal up to the rounding of a subtraction.
_SAME = 1e-9


@dataclass(frozen=True)
class Verdict:
    """One word, and the sentence that gives its reasons."""

    word: Word
    text: str


def best_of(metric: str, given: str | None) -> str:
    """Which value of a metric is the best; `ConfigError` if only the user can know."""
    require(
        given is not None or _LOWER_IS_BETTER.search(metric) is not None,
        f"--metric {metric} without --best",
        allowed="a loss, bpb or perplexity (lowest is best), or --best",
        fix=f"add --best {HIGHEST}, as for an accuracy, or --best {LOWEST}",
    )
    return given or LOWEST


def word_of(
    statistics: PairedStatistics, *, best: str = LOWEST, smallest_percent: float = SMALLEST_PERCENT
) -> Word:
    """The word for these differences from the base."""
    low, high = statistics.low, statistics.high
    if low is None or high is None:
        return "cannot tell"
    # 0 if the base is 0: percent mean nothing there, and only equality is no difference.
    limit = abs(statistics.base_mean) * smallest_percent / 100
    if -limit <= low and high <= limit:
        return "no difference"
    if not _has_spread(statistics) or statistics.p is None or statistics.p > _level(statistics):
        return "cannot tell"
    return "better" if (statistics.mean < 0) == (best == LOWEST) else "worse"


def verdict_of(
    statistics: PairedStatistics,
    *,
    best: str = LOWEST,
    smallest_percent: float = SMALLEST_PERCENT,
    new_seed: int | None = None,
) -> Verdict:
    """The word and its sentence. `new_seed`: the first seed that no pair has, for a new test."""
    word = word_of(statistics, best=best, smallest_percent=smallest_percent)
    count, shown = statistics.count, difference_text(statistics)
    if word == "no difference":
        text = f"no difference that matters: {shown}, all of it within {smallest_percent:g} % of "
        text += "the base."
        if statistics.deviation == 0 and statistics.mean == 0:
            text = f"no difference: equal to the last digit in all {count} seeds."
    elif statistics.low is None:
        text = (
            f"cannot tell: {shown}, and one pair has no interval: how much two runs differ by "
            "chance is unknown. Two more seeds give a first idea."
        )
    elif not _has_spread(statistics):
        # As of a metric of few values: an accuracy of few questions.
        text = (
            f"cannot tell: {amount_text(statistics, statistics.mean)} in each of {count} seeds, "
            "the same to the last digit: how much two runs differ by chance is unknown. Two more "
            "seeds may show it, or a metric of finer values."
        )
    else:
        text = f"{word}: {shown}, p {p_text(statistics.p)}."
        if count == 2:
            text += " Two seeds have one degree of freedom: they say next to nothing about chance."
        if word == "cannot tell":
            text += _seeds_text(statistics, smallest_percent, new_seed)
    return Verdict(word, text)


def undecided(
    reason: str, statistics: PairedStatistics | None, *, beside: str = "Of the others"
) -> Verdict:
    """No verdict, for a reason that comes before any statistics; `beside` introduces these."""
    measured = "" if statistics is None else f" {beside}: {difference_text(statistics)}."
    return Verdict("cannot tell", f"cannot tell: {reason}.{measured}")


def difference_text(statistics: PairedStatistics) -> str:
    """The mean difference in percent, its interval, and the number of seeds."""
    mean = amount_text(statistics, statistics.mean)
    seeds = f"{statistics.count} seeds" if statistics.count > 1 else "one seed"
    if statistics.low is None or statistics.high is None:
        return f"{mean} over {seeds}"
    low, high = (amount_text(statistics, end) for end in (statistics.low, statistics.high))
    return f"{mean} ({share_text(statistics.confidence)} interval {low} to {high}) over {seeds}"


def amount_text(statistics: PairedStatistics, difference: float) -> str:
    """A signed difference in percent of the base; in absolute terms if the base is 0."""
    percent = statistics.percent(difference)
    return percent_text(percent) if math.isfinite(percent) else f"{difference:+.4g}"


def percent_text(percent: float) -> str:
    """A signed percentage with two digits after the point; with an exponent if these are 0."""
    is_shown = abs(percent) >= 0.005 or percent == 0
    return f"{percent:+.2f} %" if is_shown else f"{percent:+.0e} %"


def share_text(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.3g} %"


def p_text(p: float | None) -> str:
    """A probability for a reader."""
    if p is None:
        return "-"
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _level(statistics: PairedStatistics) -> float:
    """The p that better or worse takes: less if the interval was asked for more confidence."""
    return min(LEVEL, 1 - statistics.confidence)


def _has_spread(statistics: PairedStatistics) -> bool:
    """Whether the differences differ, by more than the rounding of a subtraction."""
    low, high = statistics.low, statistics.high
    return low is not None and high is not None and high - low > _SAME * abs(statistics.mean)


def _seeds_text(statistics: PairedStatistics, smallest_percent: float, new_seed: int | None) -> str:
    """What it would take to tell: at least one number of seeds."""
    deviation, count, level = statistics.deviation, statistics.count, _level(statistics)
    assert deviation is not None, "an interval has one"
    limit = abs(statistics.base_mean) * smallest_percent / 100
    effects = {"this size": statistics.mean} if abs(statistics.mean) >= limit else {}
    if statistics.base_mean and smallest_percent <= _USUAL_PERCENT:
        effects[f"{_USUAL_PERCENT:g} %"] = abs(statistics.base_mean) * _USUAL_PERCENT / 100
    needed = {
        size: seeds_needed(deviation, effect, pilot=count, level=level)
        for size, effect in effects.items()
    }
    sentences = [""]
    if needed:
        parts = [f"{size} {_takes(seeds, count)}" for size, seeds in needed.items()]
        sentences.append(f"An effect of {'; one of '.join(parts)}.")
    first = next(iter(needed.values()), None)
    if all(seeds is not None and seeds <= count for seeds in needed.values()):
        # All that is large would have been told: what is left is to show that nothing is there.
        none = seeds_to_show_none(deviation, limit, pilot=count, confidence=statistics.confidence)
        number = f"more than {MOST_SEEDS:,}" if none is None else f"about {none:,}"
        options = "" if none is None or new_seed is None else _options(none, new_seed)
        sentences.append(
            f"That nothing beyond {smallest_percent:g} % is there takes {number} new seeds to show"
            f"{options}."
        )
    elif first is not None and first > count and new_seed is not None:
        # New seeds alone: the old ones with more would be a second look.
        sentences.append(f"Test it on {first:,} new ones{_options(first, new_seed)}.")
    least = deviation * detectable_effect(count, pilot=count, level=level)
    size = amount_text(statistics, least).removeprefix("+")
    sentences.append(f"{count} seeds detect a difference of {size} with 80 % power.")
    return " ".join(sentences)


def _takes(needed: int | None, count: int) -> str:
    if needed is None:
        return f"takes more than {MOST_SEEDS:,} seeds"
    return "would have been told" if needed <= count else f"takes about {needed:,} seeds"


def _options(seeds: int, new_seed: int) -> str:
    return f": --seeds {seeds} --first-seed {new_seed}"
