"""The mixture against a simulation that sorts exact fractions."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.data import Mixture
from chomp.errors import DataError

names = st.text("abcxyz/", min_size=1, max_size=3)
weight_values = (
    st.integers(1, 20).map(float)
    | st.integers(1, 1000).map(lambda n: n / 1000)
    | st.floats(1e-6, 1e6)
)
mixtures = st.dictionaries(names, weight_values, min_size=1, max_size=5)


def shares_of(weights: dict[str, float]) -> dict[str, Fraction]:
    exact = {name: Fraction(str(weight)) for name, weight in sorted(weights.items()) if weight}
    return {name: weight / sum(exact.values()) for name, weight in exact.items()}


def simulated(weights: dict[str, float], count: int) -> list[tuple[str, int]]:
    """The first `count` examples, as component and how many of it came before."""
    events = [
        ((2 * j + 1) / (2 * share), name, j)
        for name, share in shares_of(weights).items()
        for j in range(count)
    ]
    return [(name, j) for _, name, j in sorted(events)[:count]]


def assigned(mixture: Mixture, start: int, stop: int) -> list[tuple[str, int]]:
    components, positions = mixture.assign(start, stop)
    return [(mixture.names[i], int(j)) for i, j in zip(components, positions, strict=True)]


@given(mixtures, st.lists(st.integers(0, 60), min_size=2, max_size=6).map(sorted))
def test_any_piece_of_the_order_equals_the_simulation(weights, cuts):
    mixture, expected = Mixture(weights), simulated(weights, cuts[-1])
    for start, stop in pairwise(cuts):
        assert assigned(mixture, start, stop) == expected[start:stop]


@given(mixtures, st.integers(0, 60))
def test_counts_before_an_example_equal_the_simulation(weights, example):
    mixture = Mixture(weights)
    served = [name for name, _ in simulated(weights, example)]
    assert mixture.counts_before(example) == [served.count(name) for name in mixture.names]


@given(mixtures, st.integers(0, 10**12), st.integers(0, 40))
def test_far_into_a_run_counts_and_order_still_agree(weights, start, length):
    mixture = Mixture(weights)
    before, after = mixture.counts_before(start), mixture.counts_before(start + length)
    components, positions = mixture.assign(start, start + length)
    assert sum(before) == start
    np.testing.assert_array_equal(
        np.subtract(after, before), np.bincount(components, minlength=len(before))
    )
    for i, count in enumerate(before):
        mine = positions[components == i]
        np.testing.assert_array_equal(mine, np.arange(count, count + len(mine)))


@given(mixtures, st.integers(0, 300) | st.integers(0, 10**15))
def test_every_component_has_its_share_at_every_moment(weights, example):
    mixture, shares = Mixture(weights), shares_of(weights)
    for name, count in zip(mixture.names, mixture.counts_before(example), strict=True):
        # Half an example of its own, and its share of half an example of each.
        allowed = Fraction(1, 2) + shares[name] * len(shares) / 2
        assert abs(count - example * shares[name]) <= allowed


@given(mixtures, st.randoms())
def test_the_order_in_which_components_are_listed_changes_nothing(weights, random):
    shuffled = dict(random.sample(sorted(weights.items()), len(weights)))
    assert assigned(Mixture(weights), 0, 50) == assigned(Mixture(shuffled), 0, 50)


@given(mixtures, st.lists(names, max_size=3))
def test_components_of_weight_0_change_nothing(weights, others):
    mixture = Mixture({**dict.fromkeys(others, 0.0), **weights})
    assert mixture.names == tuple(sorted(weights))
    assert assigned(mixture, 0, 50) == assigned(Mixture(weights), 0, 50)


@given(
    st.dictionaries(names, st.integers(1, 50).map(float), min_size=1, max_size=5),
    st.integers(1, 50),
)
def test_weights_in_the_same_proportion_are_the_same_mixture(weights, factor):
    scaled = {name: weight * factor for name, weight in weights.items()}
    assert Mixture(scaled).proportions == Mixture(weights).proportions
    assert assigned(Mixture(scaled), 0, 30) == assigned(Mixture(weights), 0, 30)


def test_a_decimal_weight_means_that_decimal():
    mixture = Mixture({"a": 0.7, "b": 0.2, "c": 0.1})
    assert mixture.proportions == {"a": 7, "b": 2, "c": 1}
    assert mixture.counts_before(10**12) == [7 * 10**11, 2 * 10**11, 10**11]
    assert (mixture.share("a"), mixture.share("unknown")) == (0.7, 0.0)


def test_equal_weights_take_turns_in_the_order_of_names():
    components, _ = Mixture({"b": 1.0, "c": 1.0, "a": 1.0}).assign(0, 7)
    assert components.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_the_first_example_of_a_rare_component_comes_in_the_middle_of_its_first_period():
    components, _ = Mixture({"common": 99.0, "rare": 1.0}).assign(0, 200)
    assert np.flatnonzero(components == 1).tolist() == [50, 150]


def test_an_empty_piece_is_empty():
    assert assigned(Mixture({"a": 1.0}), 5, 5) == []


@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"a": 0.0},
        {"a": 0.0, "b": -0.0},
        {"a": 1.0, "b": -0.1},
        {"a": float("nan")},
        {"a": 1.0, "b": float("nan")},
        {"a": float("inf")},
    ],
)
def test_weights_that_say_nothing_are_refused(weights):
    with pytest.raises(DataError, match=r"^mixture weights \{.*\. Allowed: finite weights of 0 or"):
        Mixture(weights)
