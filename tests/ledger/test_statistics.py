"""Paired statistics against scipy and against formulas by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from chomp.errors import ConfigError
from chomp.ledger.statistics import LEVEL, paired_statistics, sign_flip_p


def samples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    shared = draw.normal(3.0, 0.02, count)
    return shared + draw.normal(0, 0.01, count), shared + draw.normal(-0.01, 0.01, count)


@pytest.mark.parametrize("count", [2, 3, 5, 12, 40])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_test_and_interval_are_those_of_scipy(count, confidence):
    base, variant = samples(count)
    ours = paired_statistics(base.tolist(), variant.tolist(), confidence=confidence)
    theirs = stats.ttest_rel(variant, base)
    interval = theirs.confidence_interval(confidence)
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-9)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert ours.error == pytest.approx(stats.sem(variant - base), rel=1e-9)


def test_a_small_case_by_hand():
    ours = paired_statistics([10.0, 12.0, 11.0], [9.0, 10.0, 11.0], confidence=0.95)
    # Differences -1, -2, 0: mean -1, deviation 1, t(2) at 97.5 % is 4.3027.
    assert ours.differences == (-1.0, -2.0, 0.0)
    assert (ours.mean, ours.deviation, ours.effect) == (-1.0, 1.0, -1.0)
    assert ours.error == pytest.approx(1 / math.sqrt(3))
    assert ours.high == pytest.approx(-1 + 4.30265 / math.sqrt(3), abs=1e-4)
    assert ours.percent(ours.mean) == pytest.approx(-100 / 11)
    # Of the 8 choices of signs, 4 have a sum of at least 3: +-(1+2+0), with either sign of 0.
    assert ours.sign_flip_p == 0.5


@pytest.mark.parametrize("count", [1, 2, 3, 6, 9])
def test_sign_flips_are_those_of_trying_all_signs(count):
    base, variant = samples(count, seed=count)
    differences = (variant - base).tolist()
    sums = [
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=count)
    ]
    expected = sum(one >= abs(sum(differences)) - 1e-12 for one in sums) / len(sums)
    assert sign_flip_p(differences) == expected


def test_sign_flips_are_those_of_scipys_permutation_test():
    base, variant = samples(8, seed=4)
    theirs = stats.permutation_test(
        (variant - base, np.zeros(8)),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        n_resamples=math.inf,
    )
    assert sign_flip_p((variant - base).tolist()) == pytest.approx(theirs.pvalue)


def test_very_many_pairs_have_no_exact_sign_flips():
    assert sign_flip_p([0.1] * 17) is None


def test_one_pair_has_a_difference_and_nothing_else():
    ours = paired_statistics([3.0], [2.9])
    assert ours.mean == pytest.approx(-0.1)
    assert (ours.deviation, ours.error, ours.low, ours.high, ours.t, ours.p) == (None,) * 6


def test_equal_runs_have_an_interval_of_no_width_and_no_test():
    ours = paired_statistics([3.0, 3.1], [3.0, 3.1])
    assert (ours.mean, ours.low, ours.high, ours.p) == (0.0, 0.0, 0.0, None)


@pytest.mark.parametrize(
    ("base", "variant"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, math.nan], [1.0, 2.0])]
)
def test_what_cannot_be_paired_is_refused(base, variant):
    with pytest.raises(ConfigError) as caught:
        paired_statistics(base, variant)
    assert "finite values" in caught.value.allowed


def test_the_level_keeps_nearly_every_thousand_changes_that_do_nothing_within_fifty():
    assert stats.binom.sf(50, 1000, LEVEL) < 0.01
    # And what an interval of 95 % would call does not: nearly every second thousand has more.
    assert stats.binom.sf(50, 1000, 0.05) > 0.4
