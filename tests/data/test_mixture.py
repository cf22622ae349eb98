"""The mixture against a simulation that serves one example at a time, in exact fractions."""

import json
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import Mixture, first_difference, mixture_length, require_served
from chomp.errors import ConfigError

Weights = dict[str, float]
Stages = list[tuple[int, Weights]]

names = st.text("abcxyz/", min_size=1, max_size=3)
weight_values = (
    st.integers(1, 20).map(float)
    | st.integers(1, 1000).map(lambda n: n / 1000)
    | st.floats(1e-6, 1e6)
)
mixtures = st.dictionaries(names, weight_values, min_size=1, max_size=5)

# Few names and weights of 0, so that components come and go from stage to stage.
stage_weights = st.dictionaries(
    st.sampled_from("abcde"), st.just(0.0) | weight_values, min_size=1
).filter(lambda weights: any(weights.values()))
all_positive = st.lists(weight_values, min_size=3, max_size=3).map(
    lambda values: dict(zip("abc", values, strict=True))
)


def starting_at(starts: list[int], weights: list[Weights]) -> Stages:
    return list(zip([0, *np.cumsum(starts).tolist()], weights, strict=False))


def stages_of(weights: st.SearchStrategy[Weights], longest: int = 15, most: int = 6):
    return st.builds(
        starting_at,
        st.lists(st.integers(1, longest), min_size=most, max_size=most),
        st.lists(weights, min_size=1, max_size=most),
    )


def shares_of(weights: Weights) -> dict[str, Fraction]:
    exact = {name: Fraction(str(weight)) for name, weight in sorted(weights.items()) if weight}
    return {name: weight / sum(exact.values()) for name, weight in exact.items()}


def simulated(stages: Weights | Stages, count: int) -> list[tuple[str, int]]:
    """The first `count` examples, as component and how many of it came before."""
    pairs = [(0, stages)] if isinstance(stages, dict) else stages
    credit: dict[str, Fraction] = {}
    totals: dict[str, int] = {}
    order: list[tuple[str, int]] = []
    for (start, weights), (stop, _) in pairwise([*pairs, (max(count, pairs[-1][0]) + 1, {})]):
        shares, served = shares_of(weights), dict.fromkeys(weights, 0)
        due = {n: (Fraction(1, 2) - credit.get(n, 0)) / share for n, share in shares.items()}
        for _ in range(start, stop):
            name = min(due, key=lambda name: (due[name], name))
            order.append((name, totals.get(name, 0)))
            totals[name] = totals.get(name, 0) + 1
            served[name] += 1
            due[name] += 1 / shares[name]
        for name, share in shares.items():
            credit[name] = credit.get(name, 0) + share * (stop - start) - served[name]
    return order[:count]


def demand(stages: Stages, example: int) -> dict[str, Fraction]:
    """What each component would have had by then if examples could be cut."""
    total: dict[str, Fraction] = {}
    for (start, weights), (stop, _) in pairwise([*stages, (max(example, stages[-1][0]), {})]):
        for name, share in shares_of(weights).items():
            length = max(0, min(stop, example) - start)
            total[name] = total.get(name, 0) + share * length
    return total


def assigned(mixture: Mixture, start: int, stop: int) -> list[tuple[str, int]]:
    components, positions = mixture.assign(start, stop)
    return [(mixture.names[i], int(j)) for i, j in zip(components, positions, strict=True)]


# One stage.


@settings(deadline=None)
@given(mixtures, st.integers(0, 300) | st.integers(0, 10**15))
def test_every_component_has_its_share_at_every_moment(weights, example):
    mixture, shares = Mixture(weights), shares_of(weights)
    for name, count in zip(mixture.names, mixture.counts_before(example), strict=True):
        # Half an example of its own, and its share of half an example of each.
        allowed = Fraction(1, 2) + shares[name] * len(shares) / 2
        assert abs(count - example * shares[name]) <= allowed


@settings(deadline=None)
@given(
    st.dictionaries(names, st.integers(1, 50).map(float), min_size=1, max_size=5),
    st.integers(1, 50),
)
def test_weights_in_the_same_proportion_are_the_same_mixture(weights, factor):
    scaled = {name: weight * factor for name, weight in weights.items()}
    assert Mixture(scaled).identity == Mixture(weights).identity
    assert assigned(Mixture(scaled), 0, 30) == assigned(Mixture(weights), 0, 30)


def test_a_decimal_weight_means_that_decimal():
    mixture = Mixture({"a": 0.7, "b": 0.2, "c": 0.1})
    assert mixture.identity == {"a": 7, "b": 2, "c": 1}
    assert mixture.counts_before(10**12) == [7 * 10**11, 2 * 10**11, 10**11]
    assert mixture.weights_at(0)["a"] == 0.7


# Stages.


@settings(deadline=None)
@given(stages_of(stage_weights), st.lists(st.integers(0, 90), min_size=2, max_size=6).map(sorted))
def test_any_piece_of_a_staged_order_equals_the_simulation(stages, cuts):
    mixture, expected = Mixture(stages), simulated(stages, cuts[-1])
    for start, stop in pairwise(cuts):
        assert assigned(mixture, start, stop) == expected[start:stop]
    served = [name for name, _ in expected]
    assert mixture.counts_before(cuts[-1]) == [served.count(name) for name in mixture.names]


@settings(deadline=None)
@given(stages_of(stage_weights), st.integers(0, 10))
def test_the_index_of_a_position_is_where_the_simulation_serves_it(stages, position):
    mixture = Mixture(stages)
    expected = simulated(stages, 150)
    for name in mixture.names:
        index = mixture.index_of(name, position)
        if (name, position) in expected:
            assert index == expected.index((name, position))
        else:
            assert index is None or index >= 150
        if index is not None:
            assert assigned(mixture, index, index + 1) == [(name, position)]


@settings(deadline=None)
@given(stages_of(stage_weights, longest=10**12), st.integers(0, 10**13), st.integers(0, 20))
def test_far_into_long_stages_counts_order_and_index_agree(stages, start, length):
    mixture = Mixture(stages)
    before = mixture.counts_before(start)
    assert sum(before) == start
    seen = dict(zip(mixture.names, before, strict=True))
    for example, (name, position) in enumerate(assigned(mixture, start, start + length), start):
        assert position == seen[name]
        assert mixture.index_of(name, position) == example
        seen[name] += 1
    assert list(seen.values()) == mixture.counts_before(start + length)


@settings(deadline=None)
@given(
    stages_of(all_positive, longest=4, most=40) | stages_of(stage_weights, longest=40, most=12),
    st.integers(0, 200),
)
def test_counts_stay_near_the_demand_however_short_the_stages(stages, example):
    mixture, wanted = Mixture(stages), demand(stages, example)
    for name, count in zip(mixture.names, mixture.counts_before(example), strict=True):
        # A search for the worst case found 0.7 of an example per component; a remainder lost at
        # every stage would be dozens.
        assert abs(count - wanted.get(name, 0)) <= len(mixture.names)


def test_a_thousand_stages_of_three_examples_still_serve_one_percent():
    stages = [(3 * i, {"big": 0.99, "small": 0.01 + i * 1e-9}) for i in range(1000)]
    mixture = Mixture(stages)
    big, small = mixture.counts_before(3000)
    assert (big, small) == (2970, 30)
    # Evenly, not when the remainders happen to meet: about one in a hundred examples.
    served = np.flatnonzero(mixture.assign(0, 3000)[0] == 1)
    assert np.diff(served).min() >= 95
    assert np.diff(served).max() <= 105


def test_a_component_that_a_stage_drops_is_not_served_from_its_first_example_on():
    # At the boundary "late" is owed half an example, and it gets it when it is back.
    mixture = Mixture(
        [(0, {"a": 2.0, "late": 1.0}), (4, {"a": 1.0}), (1000, {"a": 2.0, "late": 1.0})]
    )
    components, positions = mixture.assign(0, 1010)
    served = np.flatnonzero(components == 1)
    assert served.tolist() == [1, 1000, 1003, 1006, 1009]
    assert positions[served].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5])
def test_a_component_that_many_rare_ones_put_ahead_waits_until_it_is_due_again(share):
    # None of the nineteen is due within 15 examples, so "a" has nearly six more than its share.
    rare = {f"rare {i}": 0.02 for i in range(19)}
    stages = [(0, {"a": 0.62, **rare}), (15, {"a": share, "rare 0": 1 - share}), (60, rare)]
    mixture = Mixture(stages)
    assert mixture.counts_before(15)[0] == 15
    expected = simulated(stages, 100)
    for start in range(10, 100):
        assert assigned(mixture, start, start + 1) == expected[start : start + 1]


@settings(deadline=None)
@given(stages_of(stage_weights), st.integers(1, 60))
def test_a_boundary_between_equal_weights_changes_nothing(stages, cut):
    mixture = Mixture(stages)
    weights = stages[mixture.stage_at(cut)][1]
    split = Mixture(sorted({cut: weights, **dict(stages)}.items()))
    assert assigned(split, 0, 100) == assigned(mixture, 0, 100)
    assert split.identity == mixture.identity


@settings(deadline=None)
@given(stages_of(stage_weights), st.randoms(), st.lists(st.sampled_from("vwxyz"), max_size=3))
def test_listing_order_and_components_of_weight_0_change_nothing(stages, random, others):
    def relisted(weights: Weights) -> Weights:
        entries = [*weights.items(), *dict.fromkeys(others, 0.0).items()]
        return dict(random.sample(entries, len(entries)))

    mixture, other = Mixture(stages), Mixture([(start, relisted(w)) for start, w in stages])
    assert other.names == mixture.names
    assert other.identity == mixture.identity
    assert assigned(other, 0, 60) == assigned(mixture, 0, 60)


def test_identity_tells_stages_apart_that_proportions_alone_would_not():
    one, two = {"a": 1.0, "b": 3.0}, {"a": 0.5, "b": 0.25}
    assert Mixture([(0, one), (7, two)]).identity == [[0, {"a": 1, "b": 3}], [7, {"a": 2, "b": 1}]]
    assert Mixture([(0, one), (8, two)]).identity == [[0, {"a": 1, "b": 3}], [8, {"a": 2, "b": 1}]]
    assert Mixture([(0, one)]).identity == Mixture(one).identity == {"a": 1, "b": 3}
    staged = Mixture([(0, one), (8, two)]).identity
    assert json.loads(json.dumps(staged)) == staged


def test_stage_and_weights_of_an_example_change_at_the_boundary():
    mixture = Mixture([(0, {"a": 3.0, "b": 1.0}), (10, {"a": 0.0, "c": 2.0})])
    assert mixture.names == ("a", "b", "c")
    assert mixture.starts == (0, 10)
    assert [mixture.stage_at(example) for example in (0, 9, 10, 10**12)] == [0, 0, 1, 1]
    assert mixture.weights_at(9) == {"a": 0.75, "b": 0.25, "c": 0.0}
    assert mixture.weights_at(10) == {"a": 0.0, "b": 0.0, "c": 1.0}
    assert mixture.index_of("b", 1) == 6
    assert mixture.index_of("b", 2) is None
    assert mixture.index_of("nobody", 0) is None


def test_threads_that_ask_at_once_get_what_one_would():
    stages = [(7 * i, {"a": 1.0 + i, "b": 2.0, "c": i % 3 / 7}) for i in range(300)]
    expected = assigned(Mixture(stages), 0, 2100)
    shared = Mixture(stages)
    with ThreadPoolExecutor(8) as pool:
        pieces = list(
            pool.map(lambda start: assigned(shared, start, start + 21), range(0, 2100, 21))
        )
    assert [example for piece in pieces for example in piece] == expected


# Stop strategies and the components that a run would miss.


def simulated_length(stages: Stages, rows: dict[str, int], strategy: str, count: int) -> int | None:
    """By walking: the example after which a strategy stops, if that is within `count`."""
    trained = {name for _, weights in stages for name, weight in weights.items() if weight}
    waiting = set(trained)
    for index, (name, position) in enumerate(simulated(stages, count)):
        if position == rows[name] - 1:
            waiting.discard(name)
        is_over = waiting != trained if strategy == "first_exhausted" else not waiting
        if is_over:
            return index + 1
    return None


@settings(deadline=None)
@given(
    stages_of(stage_weights, most=4),
    st.lists(st.integers(1, 12), min_size=5, max_size=5),
    st.sampled_from(["first_exhausted", "all_exhausted"]),
)
def test_stop_strategies_end_where_the_simulation_ends(stages, sizes, strategy):
    rows = dict(zip("abcde", sizes, strict=True))
    length = mixture_length(Mixture(stages), rows, strategy)
    expected = simulated_length(stages, rows, strategy, 200)
    assert length == expected or (expected is None and length is not None and length > 200)


def test_a_component_that_never_gets_to_its_end_ends_nothing():
    mixture = Mixture([(0, {"a": 1.0, "b": 1.0}), (10, {"a": 1.0})])
    assert mixture_length(mixture, {"a": 100, "b": 6}, "first_exhausted") == 105
    assert mixture_length(mixture, {"a": 100, "b": 6}, "all_exhausted") is None
    assert mixture_length(mixture, {"a": 100, "b": 5}, "all_exhausted") == 105
    assert mixture_length(mixture, {"a": 100, "b": 5}, "restart") is None


@settings(deadline=None)
@given(stages_of(stage_weights, most=3), st.integers(1, 60))
def test_a_run_that_misses_a_component_is_refused_and_no_other(stages, total):
    mixture = Mixture(stages)
    missed = set(mixture.names) - {name for name, _ in simulated(stages, total)}
    if not missed:
        require_served(mixture, total)
        return
    with pytest.raises(ConfigError) as caught:
        require_served(mixture, total)
    assert any(f"component {name!r}" in caught.value.given for name in missed)


def test_the_error_about_a_missed_component_says_when_it_would_come():
    mixture = Mixture({"a": 0.999, "rare": 0.001})
    require_served(mixture, 501)
    with pytest.raises(ConfigError) as error:
        require_served(mixture, 500)
    assert str(error.value) == (
        "component 'rare' with 0.001 of the weight would be first served as example 501, in a run "
        "of 500 examples. Allowed: weights above 0 that yield at least one example in the run. "
        "Fix: raise the weight of 'rare', train for 501 examples, or set its weight to 0."
    )


def test_a_component_whose_only_stage_is_too_short_for_it_is_never_served():
    mixture = Mixture([(0, {"a": 0.999, "rare": 0.001}), (20, {"a": 1.0})])
    with pytest.raises(ConfigError) as caught:
        require_served(mixture, 10**12)
    assert "'rare' with 0.001 of the weight in stage 0" in caught.value.given


# What is refused.


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_first_difference_of_two_mixtures_is_the_first_example_that_differs(data):
    def stages() -> list[tuple[int, dict[str, float]]]:
        starts = sorted(data.draw(st.sets(st.integers(1, 40), max_size=3)))
        names = data.draw(st.sampled_from(["ab", "abc"]))
        shares = st.fixed_dictionaries({name: st.sampled_from([0.0, 1.0, 3.0]) for name in names})
        shares = shares.filter(lambda weights: any(weights.values()))
        return [(start, data.draw(shares)) for start in [0, *starts]]

    one, other, stop = Mixture(stages()), Mixture(stages()), data.draw(st.integers(0, 60))

    def served(mixture: Mixture) -> list[tuple[str, int]]:
        components, positions = mixture.assign(0, stop)
        return [(mixture.names[i], p) for i, p in zip(components, positions.tolist(), strict=True)]

    pairs = enumerate(zip(served(one), served(other), strict=True))
    assert first_difference(one, other, stop) == next((i for i, (a, b) in pairs if a != b), None)
    assert first_difference(one, one, stop) is None


def test_the_first_difference_of_long_mixtures_is_found_without_walking_there():
    past = [(0, {"a": 1.0, "b": 2.0})]
    assert first_difference(Mixture(past), Mixture([*past, (10**12, {"a": 1.0})]), 10**12) is None
    found = first_difference(Mixture(past), Mixture([*past, (10**12, {"a": 1.0})]), 2 * 10**12)
    assert found is not None
    assert 10**12 <= found < 10**12 + 3
