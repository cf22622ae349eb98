"""Verdicts: the right word for what the numbers say, and how often it is wrong."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from chomp.errors import ConfigError
from chomp.ledger.pages import interval_bar, interval_picture
from chomp.ledger.statistics import (
    LEVEL,
    PairedStatistics,
    paired_statistics,
    power_of,
    seeds_needed,
)
from chomp.ledger.verdict import Verdict, best_of, percent_text, undecided, verdict_of, word_of

SIMULATED = 1000
# The noise assumed: runs that differ by their seed alone end 0.3 % apart (standard deviation), and
# half of that variance is the data's, which a pair shares. Very short runs have more:
# docs/decisions/0013 has what was measured.
LOSS, NOISE_PERCENT, SHARED = 4.0, 0.3, 0.5


def verdict(base: list[float], variant: list[float], **options: object) -> Verdict:
    return verdict_of(paired_statistics(base, variant), **options)  # type: ignore[arg-type]


def simulated(
    count: int, gain_percent: float, seed: int, times: int = SIMULATED
) -> list[PairedStatistics]:
    """Statistics of pairs of `count` seeds, with a true gain, many times over."""
    draw = np.random.default_rng(seed)
    sizes = (times, count)
    noise = LOSS * NOISE_PERCENT / 100
    shared = draw.normal(0, noise * SHARED**0.5, sizes)
    base, variant = (
        LOSS * (1 - gain / 100) + shared + draw.normal(0, noise * (1 - SHARED) ** 0.5, sizes)
        for gain in (0.0, gain_percent)
    )
    return [paired_statistics(*pair) for pair in zip(base.tolist(), variant.tolist(), strict=True)]


def test_a_lower_loss_beyond_chance_is_better_and_a_higher_one_worse():
    base = [4.271, 4.263, 4.280, 4.259]
    found = verdict(base, [value - 0.04 + i / 1e4 for i, value in enumerate(base)])
    assert found.word == "better"
    assert found.text.startswith("better: -0.93 % (96.5 % interval ")
    assert "over 4 seeds, p < 0.0001" in found.text
    assert verdict(base, [value + 0.04 + i / 1e4 for i, value in enumerate(base)]).word == "worse"


def test_a_higher_accuracy_is_better_where_the_highest_is_best():
    base = [0.510, 0.513, 0.508]
    higher = [value + 0.05 + i / 1e4 for i, value in enumerate(base)]
    assert verdict(base, higher, best="highest").word == "better"
    assert verdict(higher, base, best="highest").word == "worse"


def test_what_chance_can_explain_is_not_told_and_says_how_many_seeds_would():
    found = verdict([4.0, 4.0, 4.0], [3.97, 4.01, 3.98])
    assert found.word == "cannot tell"
    # Differences of -0.03, 0.01, -0.02: mean -0.0133, deviation 0.0208.
    needed = seeds_needed(0.0208167, 0.0133333, pilot=3)
    assert f"An effect of this size takes about {needed} seeds" in found.text
    usual = seeds_needed(0.0208167, 0.04, pilot=3)
    assert f"one of 1 % takes about {usual} seeds" in found.text


def test_the_advice_is_a_test_of_its_own_on_new_seeds():
    found = verdict([4.0, 4.0, 4.0], [3.97, 4.01, 3.98], new_seed=7)
    needed = seeds_needed(0.0208167, 0.0133333, pilot=3)
    assert f"{needed} new ones: --seeds {needed} --first-seed 7." in found.text
    assert "more seed" not in found.text


@pytest.mark.parametrize("base", [[0.0] * 3, [-0.1, 0.1, 0.0]])
def test_a_base_of_zero_is_compared_in_absolute_terms(base):
    higher = [value + 0.2 + i / 100 for i, value in enumerate(base)]
    found = verdict(base, higher, best="highest")
    assert found.word == "better"
    assert found.text.startswith("better: +0.21 (96.5 % interval +0.18 to +0.24) over 3 seeds")
    assert verdict(base, higher).word == "worse"
    assert verdict(base, base).word == "no difference"
    unsure = verdict(base, [value + i - 1 for i, value in enumerate(base)])
    assert unsure.word == "cannot tell"
    assert "1 %" not in unsure.text.replace("96.5 %", "")


@pytest.mark.parametrize("count", [2, 3])
def test_differences_without_any_spread_tell_nothing_of_chance(count):
    found = verdict([0.50, 0.52, 0.54][:count], [0.54, 0.56, 0.58][:count], best="highest")
    assert found.word == "cannot tell"
    assert f"in each of {count} seeds, the same to the last digit" in found.text
    assert "Two more seeds may show it" in found.text


@pytest.mark.parametrize("metric", ["eval/loss", "eval/ema/bpb", "lm_eval/x/word_perplexity"])
def test_of_a_loss_the_lowest_is_the_best(metric):
    assert best_of(metric, None) == "lowest"
    assert best_of(metric, "highest") == "highest"


def test_of_any_other_metric_the_user_has_to_say_what_is_best():
    with pytest.raises(ConfigError) as caught:
        best_of("lm_eval/x/acc", None)
    assert "lm_eval/x/acc" in caught.value.given
    assert "--best" in caught.value.fix
    assert best_of("lm_eval/x/acc", "highest") == "highest"


def test_a_bar_of_what_is_not_finite_is_the_axis_alone():
    bar = interval_bar(math.nan, math.nan, math.nan, 1.0)
    assert bar.strip() == "│"
    assert "circle" not in interval_picture(math.nan, math.nan, math.nan, 1.0, label="x")


def test_one_seed_has_no_interval_and_says_so():
    found = verdict([4.0], [3.5])
    assert found.word == "cannot tell"
    assert "-12.50 % over one seed, and one pair has no interval" in found.text


def test_two_seeds_say_how_little_they_are():
    found = verdict([4.0, 4.0], [3.9, 3.7])
    assert found.word == "cannot tell"
    assert "one degree of freedom" in found.text
    sure = verdict([4.0, 4.0], [3.9, 3.9001])
    assert sure.word == "better"
    assert "one degree of freedom" in sure.text


def test_equal_values_are_no_difference():
    found = verdict([4.0, 4.1], [4.0, 4.1])
    assert found == Verdict(
        "no difference", "no difference: equal to the last digit in all 2 seeds."
    )


def test_a_difference_of_rounding_is_none_though_it_is_in_every_seed():
    base = [4.0, 4.1, 4.2]
    off = [value - 1e-6 - i * 1e-8 for i, value in enumerate(base)]
    assert verdict(base, off).word == "no difference"
    assert verdict(base, off, smallest_percent=0.0).word == "better"


def test_an_interval_around_zero_that_is_wide_is_not_taken_for_no_difference():
    assert verdict([4.0, 4.0, 4.0], [4.1, 3.9, 4.0]).word == "cannot tell"


def test_a_reason_that_comes_before_the_numbers_leaves_them_beside_it():
    found = undecided("seed 2 is not finite", paired_statistics([4.0, 4.0], [3.9, 3.8]))
    assert found.word == "cannot tell"
    assert found.text.startswith("cannot tell: seed 2 is not finite. Of the others: -3.75 %")


def test_a_percentage_keeps_its_sign_and_is_never_a_row_of_zeros():
    assert percent_text(-0.744) == "-0.74 %"
    assert percent_text(0.00012) == "+1e-04 %"


def test_the_interval_excludes_zero_exactly_if_the_word_is_better_or_worse():
    # Differences 1, 1 + d, 1 - d: t = sqrt(3) / d, of which p is 0.035 at 5.20.
    unsure = verdict([100.0] * 3, [101.0, 101.37, 100.63])
    assert unsure.word == "cannot tell"
    assert "96.5 % interval -0.11 % to +2.11 %" in unsure.text
    assert "takes about" in unsure.text
    assert verdict([100.0] * 3, [101.0, 101.33, 100.67]).word == "worse"
    for count in (2, 3, 5, 8):
        for statistics in simulated(count, 0.3, seed=count):
            is_called = word_of(statistics, smallest_percent=0.0) in ("better", "worse")
            assert is_called == (statistics.low > 0 or statistics.high < 0)


def test_an_interval_of_more_confidence_asks_for_more_than_the_level():
    base, variant = [100.0] * 3, [101.0, 101.2, 100.8]
    assert word_of(paired_statistics(base, variant)) == "worse"
    assert word_of(paired_statistics(base, variant, confidence=0.99)) == "cannot tell"


def test_what_would_have_been_told_is_said_only_where_the_pilot_is_sure_of_it():
    # Three seeds with a deviation of 0.2 %: were that the true one, they would tell 1 %.
    found = verdict([100.0] * 3, [100.3, 100.1, 99.9])
    assert power_of(3, 1.0, deviation=0.2) > 0.8 > power_of(3, 1.0, deviation=0.2, pilot=3)
    assert "1 % takes about 4 seeds" in found.text
    # Six with the same deviation leave little open.
    assert "1 % would have been told" in verdict([100.0] * 6, [100.3, 100.1, 99.9] * 2).text


@pytest.mark.parametrize("smallest_percent", [0.1, 2.0])
def test_where_all_that_matters_would_have_been_told_the_seeds_that_show_none_are_named(
    smallest_percent,
):
    spread = 0.05 * smallest_percent / 0.1
    variant = [100 + spread * each for each in (1, -1, 2, -1, 1.5)]
    found = verdict([100.0] * 5, variant, smallest_percent=smallest_percent, new_seed=5)
    assert found.word == "cannot tell"
    assert re.search(
        rf"That nothing beyond {smallest_percent:g} % is there takes about (\d+) new seeds to "
        r"show: --seeds \1 --first-seed 5\.",
        found.text,
    )


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("smallest_percent", [0.0, 0.1])
def test_whatever_cannot_be_told_comes_with_a_number_of_seeds(count, smallest_percent):
    for gain in (0.0, 0.1, 0.5):
        for statistics in simulated(count, gain, seed=count, times=4):
            found = verdict_of(statistics, smallest_percent=smallest_percent)
            if found.word == "cannot tell":
                assert re.search(r"takes (about|more than) [\d,]+ (new )?seeds", found.text)


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_of_a_thousand_changes_that_change_nothing_at_most_five_percent_are_called_something(count):
    words = [word_of(each) for each in simulated(count, 0.0, seed=count)]
    called = sum(word in ("better", "worse") for word in words)
    # Not a band around 50: the level is chosen so that nearly every thousand is below. And above
    # 15, which a true rate of 3.5 % is in all but one case of 10,000: a rule that never says
    # anything is no test.
    assert 15 < called <= 50


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_hardly_any_thousand_of_changes_that_change_nothing_has_more_than_fifty_called(count):
    draw = np.random.default_rng(count)
    differences = draw.normal(0, 1.0, (200, SIMULATED, count))
    errors = differences.std(-1, ddof=1) / count**0.5
    found = 2 * stats.t.sf(np.abs(differences.mean(-1)) / errors, count - 1)
    called = (found <= LEVEL).sum(-1)
    # 1.1 of 200 thousands are expected; seven or more come once in 5,000 times.
    assert (called > 50).sum() < 7


def test_three_budgets_that_may_all_decide_would_be_wrong_more_often_than_one():
    """Why only one decides: as in docs/decisions/0013, three independent looks."""
    noise = np.random.default_rng(20).normal(LOSS, 0.01, (3, SIMULATED, 3)).tolist()
    base = [LOSS] * 3
    called = [[paired_statistics(base, one).p <= LEVEL for one in look] for look in noise]
    assert sum(called[0]) / SIMULATED <= 0.05
    assert sum(map(any, zip(*called, strict=True))) / SIMULATED > 0.08


def test_a_planted_gain_of_one_percent_is_found_with_the_stated_number_of_seeds():
    """From a pilot's own sentence: as many seeds as it states, new ones, and the gain is found."""
    pilots = simulated(3, 1.0, seed=9, times=200)
    told = [verdict_of(each) for each in pilots]
    unsure = [each.text for each in told if each.word == "cannot tell"]
    stated = [re.search(r"1 % takes about (\d+) seeds", text) for text in unsure]
    counts = [int(match[1]) for match in stated if match]
    assert len(counts) > 30
    found = [word_of(simulated(count, 1.0, seed=i, times=1)[0]) for i, count in enumerate(counts)]
    assert found.count("better") >= 0.8 * len(counts)
    assert found.count("worse") == 0


def test_the_number_of_seeds_that_is_stated_for_a_known_noise_is_not_padded():
    deviation = NOISE_PERCENT * (2 * (1 - SHARED)) ** 0.5
    count = seeds_needed(deviation, 1.0)
    assert count == 4
    found = [word_of(each) for each in simulated(count, 1.0, seed=9)]
    assert found.count("better") >= 0.8 * SIMULATED
    assert found.count("worse") == 0
    fewer = [word_of(each) for each in simulated(count - 1, 1.0, seed=9)]
    assert fewer.count("better") < 0.8 * SIMULATED


def test_the_number_of_seeds_that_is_stated_has_the_power_that_is_stated():
    # A smaller gain, where the power is just reached: 80 %, and not 99.
    count = seeds_needed(NOISE_PERCENT, 0.3)
    assert count == 12
    found = [word_of(each) for each in simulated(count, 0.3, seed=11)]
    # Three standard errors of a share of 0.8 among a thousand are 0.038.
    assert 0.76 <= found.count("better") / SIMULATED <= 0.86
