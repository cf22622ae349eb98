"""Thinned curves hide nothing: properties of every series, and a few known ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from chomp.report.curves import bucket_means, downsample, straight_pieces

FINITE = st.floats(-1e6, 1e6)
SERIES = arrays.arrays(np.float64, st.integers(0, 400), elements=FINITE | st.just(float("nan")))
LIMITS = st.integers(8, 120)


def steps_of(values):
    """Steps at uneven distances, ascending."""
    return np.cumsum(1 + np.arange(values.size) % 3).astype(np.int64)


@given(SERIES, LIMITS)
def test_a_thinned_curve_keeps_its_ends_its_extremes_and_its_limit(values, limit):
    steps = steps_of(values)
    curve = downsample(steps, values, limit)
    assert curve.steps.size <= limit
    assert np.all(np.diff(curve.steps) > 0)
    if values.size <= limit:
        assert np.array_equal(curve.values, values, equal_nan=True)
        return
    # Every point is one that was there.
    at = np.searchsorted(steps, curve.steps)
    assert np.array_equal(steps[at], curve.steps)
    assert np.array_equal(values[at], curve.values, equal_nan=True)
    assert curve.steps[[0, -1]].tolist() == steps[[0, -1]].tolist()
    if not np.isnan(values).all():
        assert np.nanmin(curve.values) == np.nanmin(values)
        assert np.nanmax(curve.values) == np.nanmax(values)
    assert np.isnan(curve.values).any() == np.isnan(values).any()


@given(st.integers(0, 9_999), st.sampled_from([1e3, -1e3]), LIMITS, st.integers(0, 9))
def test_a_planted_spike_survives_at_its_own_step(place, height, limit, seed):
    values = np.random.default_rng(seed).normal(size=10_000)
    values[place] = height
    steps = np.arange(10_000)
    curve = downsample(steps, values, limit)
    assert curve.values[np.searchsorted(curve.steps, place)] == height


@given(st.integers(1, 9_998), LIMITS)
def test_a_single_gap_is_still_a_gap(place, limit):
    values = np.sin(np.arange(10_000) / 100)
    values[place] = np.nan
    curve = downsample(np.arange(10_000), values, limit)
    assert curve.steps[np.isnan(curve.values)].tolist() == [place]


@given(SERIES, LIMITS)
def test_bucket_means_weigh_every_value_once(values, limit):
    values = np.where(np.isnan(values), 0.0, values)
    size = values.size - values.size % limit  # equal buckets: the mean of means is the mean
    means = bucket_means(steps_of(values)[:size], values[:size], limit)
    assert means.steps.size == (limit if size else 0)
    assert np.all(np.diff(means.steps) > 0)
    if size:
        assert means.values.mean() == pytest.approx(values[:size].mean(), rel=1e-9, abs=1e-6)


def test_gaps_do_not_pull_a_bucket_mean_and_nothing_but_gaps_is_one():
    values = np.array([1.0, np.nan, 3.0, 3.0, *[np.nan] * 4, *[5.0] * 24])
    means = bucket_means(np.arange(32), values, 8)
    assert means.values[0] == pytest.approx(7 / 3)
    assert np.isnan(means.values[1])
    assert means.values[2] == 5.0


def test_straight_pieces_are_their_corners_and_draw_the_whole_again():
    steps = np.arange(0, 1000, 5)
    warmup = np.minimum(steps / 100, 1.0) * 3e-4
    curve = straight_pieces(steps, warmup, 50)
    assert curve.steps.tolist() == [0, 100, 995]
    assert np.allclose(np.interp(steps, curve.steps, curve.values), warmup, rtol=1e-7)


@pytest.mark.parametrize("points", [200, 100_000])
def test_a_gentle_bend_is_no_straight_piece(points):
    steps = np.arange(points)
    cosine = 3e-4 * (1 + np.cos(np.pi * steps / points))
    curve = straight_pieces(steps, cosine, points)
    assert curve is None or curve.steps.size > points / 2


def test_a_single_step_off_the_line_is_a_corner():
    values = np.zeros(1000)
    values[417] = 1e-3
    curve = straight_pieces(np.arange(1000), values, 50)
    assert curve.steps.tolist() == [0, 416, 417, 418, 999]


@pytest.mark.parametrize("height", [1e6, 1e8, 1e12])
def test_beside_a_single_huge_value_noise_is_not_straight(height):
    values = 0.5 * np.exp(0.3 * np.random.default_rng(0).normal(size=20_000))
    values[10_000] = height
    assert straight_pieces(np.arange(20_000), values, 40) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=60), st.sampled_from([1.0, 1e9]))
def test_straight_pieces_draw_every_value_to_what_a_page_can_tell(values, height):
    values = np.array([*values, height])
    curve = straight_pieces(steps_of(values), values, 60)
    if curve is not None:
        drawn = np.interp(steps_of(values), curve.steps, curve.values)
        assert np.allclose(drawn, values, rtol=2.0**-23, atol=0.0)
