"""Numbers of seeds: against tables, against integrals, and by what such tests then find."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from chomp.ledger.statistics import (
    LEVEL,
    MOST_SEEDS,
    detectable_effect,
    paired_statistics,
    power_of,
    seeds_needed,
    seeds_to_show_none,
)
from chomp.ledger.verdict import word_of


@pytest.mark.parametrize(("effect", "power", "expected"), [(0.5, 0.8, 34), (1.0, 0.9, 13)])
def test_seeds_needed_are_those_of_the_tables(effect, power, expected):
    # G*Power 3.1, t test of the difference from constant, two-sided, alpha 0.05: n = 34 and 13.
    assert seeds_needed(1.0, effect, power=power, level=0.05) == expected


@pytest.mark.parametrize(("count", "effect"), [(2, 1.0), (3, 2.0), (10, 0.4)])
def test_power_is_that_of_the_noncentral_t(count, effect):
    limit, shift = stats.t.ppf(1 - LEVEL / 2, count - 1), effect * math.sqrt(count)
    theirs = stats.nct.sf(limit, count - 1, shift) + stats.nct.cdf(-limit, count - 1, shift)
    assert power_of(count, effect) == pytest.approx(theirs, rel=1e-6)
    assert power_of(count, 7 * effect, deviation=7.0) == pytest.approx(power_of(count, effect))


@pytest.mark.parametrize("pilot", [2, 3, 6])
def test_power_after_a_pilot_is_the_average_over_what_the_deviation_may_be(pilot):
    draw = np.random.default_rng(pilot)
    deviations = np.sqrt((pilot - 1) / draw.chisquare(pilot - 1, 100_000))
    pairs = draw.normal(1.5, deviations[:, None], (len(deviations), 8))
    share = np.mean(stats.ttest_1samp(pairs, 0.0, axis=1).pvalue <= LEVEL)
    # A standard error of such a share is 0.0015.
    assert power_of(8, 1.5, pilot=pilot) == pytest.approx(share, abs=0.006)


def test_what_a_pilot_leaves_open_costs_seeds_and_less_so_the_larger_it_is():
    found = [seeds_needed(0.5, 1.0, pilot=pilot) for pilot in (2, 3, 5, 8, 1000)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] == seeds_needed(0.5, 1.0)


def test_power_never_falls_as_the_effect_grows():
    found = [power_of(5, effect) for effect in np.linspace(0, 60, 200)]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(found))
    assert found[0] == pytest.approx(LEVEL)
    assert found[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("pilot", [None, 4])
def test_the_detectable_effect_is_found_with_that_power_and_a_smaller_one_is_not(pilot):
    found = detectable_effect(4, pilot=pilot)
    assert power_of(4, found, pilot=pilot) == pytest.approx(0.8, abs=1e-6)
    assert seeds_needed(1.0, found, pilot=pilot) == 4
    assert seeds_needed(1.0, 0.9 * found, pilot=pilot) > 4


def test_what_no_number_of_seeds_tells_is_none():
    assert seeds_needed(1.0, 0.0) is None
    assert seeds_needed(1.0, 0.01) is None  # 86,000
    assert seeds_needed(0.0, 0.0) is None
    assert seeds_needed(0.0, 0.1) == 2
    assert power_of(MOST_SEEDS, 0.01) < 0.8
    assert seeds_to_show_none(1.0, 0.0) is None


def found_after_pilots(pilot: int, noise_percent: float, points: int) -> float:
    """How often a gain of 1 % is found with the number of seeds that a pilot states.

    Over the deviations that pilots of so many pairs measure, at the middles of equal parts.
    """
    chances = (np.arange(points) + 0.5) / points
    measured = noise_percent * np.sqrt(stats.chi2.ppf(chances, pilot - 1) / (pilot - 1))
    stated = [seeds_needed(each, 1.0, pilot=pilot) for each in measured.tolist()]
    assert None not in stated
    return float(np.mean([power_of(count, 1.0, deviation=noise_percent) for count in stated]))


@pytest.mark.parametrize("pilot", [2, 3, 5])
def test_four_in_five_is_what_the_stated_number_finds_after_a_small_pilot(pilot):
    assert 0.78 <= found_after_pilots(pilot, 1.0, 20) <= 0.87


@pytest.mark.slow
@pytest.mark.parametrize("pilot", range(2, 9))
@pytest.mark.parametrize("noise_percent", [0.3, 0.5, 1.0])
def test_four_in_five_is_what_the_stated_number_finds(pilot, noise_percent):
    # With less noise a few seeds find more: one fewer would find too little.
    assert found_after_pilots(pilot, noise_percent, 300) >= 0.78


@pytest.mark.parametrize("deviation", [0.05, 0.3])
def test_the_number_of_seeds_that_shows_no_difference_does_so_four_times_in_five(deviation):
    count = seeds_to_show_none(deviation, 0.1)
    assert count is not None
    draw = np.random.default_rng(count)
    base = [100.0] * count  # of which 0.1 percent is 0.1
    runs = (100.0 + draw.normal(0, deviation, (1000, count))).tolist()
    words = [word_of(paired_statistics(base, run)) for run in runs]
    # Three standard errors of a share of 0.8 among a thousand are 0.038; few seeds are coarse.
    assert 0.762 <= words.count("no difference") / 1000 <= 0.9
    assert seeds_to_show_none(deviation, 0.1, pilot=4) > count
