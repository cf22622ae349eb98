"""The computed shuffle: a true permutation, and a good one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import Permutation
from chomp.errors import DataError

MANY = 100_000


def shuffled(size: int, key: str = "key") -> np.ndarray:
    return Permutation(size, key)(np.arange(size))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


@pytest.mark.parametrize("start", range(1, 2001, 250))
def test_small_sizes_are_permuted_without_loss(start: int):
    for size in range(start, start + 250):
        np.testing.assert_array_equal(np.sort(shuffled(size, f"key {size}")), np.arange(size))


@settings(max_examples=30, deadline=None)
@given(st.integers(2001, 2**40), st.integers(0, 2**32), st.text(max_size=5))
def test_big_sizes_keep_distinct_indexes_distinct_and_inside(size: int, seed: int, key: str):
    indexes = np.unique(np.random.default_rng(seed).integers(0, size, 5000))
    found = Permutation(size, key)(indexes)
    assert found.dtype == np.int64
    assert 0 <= found.min() <= found.max() < size
    assert len(np.unique(found)) == len(indexes)


@settings(deadline=None)
@given(st.integers(1, 10**9), st.lists(st.integers(0, 10**9), max_size=20), st.integers(0, 20))
def test_an_index_goes_to_the_same_place_whoever_is_asked_with_it(size, indexes, cut):
    asked = np.asarray(indexes, np.int64) % size
    permutation, again = Permutation(size, "key"), Permutation(size, "key")
    parts = np.concatenate([again(asked[:cut]), again(asked[cut:])])
    np.testing.assert_array_equal(permutation(asked), parts)


def test_another_key_is_another_order():
    orders = {tuple(shuffled(50, f"seed/name/{epoch}")) for epoch in range(100)}
    assert len(orders) == 100


def test_the_order_is_the_same_on_every_machine():
    # A changed order would silently change what a resumed run reads: this list may never change.
    assert shuffled(10, "0/code/0").tolist() == [7, 4, 3, 1, 9, 8, 0, 6, 2, 5]


def test_all_orders_of_a_few_rows_occur_about_equally_often():
    counts = np.unique([shuffled(3, str(i)) for i in range(1200)], axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert counts.min() > 130
    assert counts.max() < 270


@pytest.mark.parametrize("size", [MANY, 2**17, 2**16 + 1, 2**16])
def test_neighbours_and_parity_tell_nothing_about_where_a_row_goes(size: int):
    order = shuffled(size)
    indexes = np.arange(size)
    # The standard error of these is 0.004 at most; two rounds of mixing would give 0.03 to 0.98.
    for lag in (1, 2, 3, 64, 256):
        assert abs(correlation(order[:-lag], order[lag:])) < 0.02
    assert abs(correlation(indexes, order)) < 0.02
    for bit in range(4):
        assert abs(correlation((indexes >> bit) & 1, (order >> bit) & 1)) < 0.02
    assert abs(correlation(order[:-1] & 1, order[1:] & 1)) < 0.02


def test_two_epochs_are_unrelated():
    first, second = shuffled(MANY, "seed/name/0"), shuffled(MANY, "seed/name/1")
    assert abs(correlation(first, second)) < 0.02
    assert (first == second).sum() < 10


@pytest.mark.parametrize("size", [0, -5])
def test_a_permutation_of_nothing_is_refused(size: int):
    with pytest.raises(DataError, match=rf"a permutation of {size} rows\. Allowed: 1 row or more"):
        Permutation(size, "key")
