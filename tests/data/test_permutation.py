"""The computed shuffle: a true permutation of any size, undone exactly, and a good one."""

from collections.abc import Iterable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import Permutation
from chomp.errors import DataError

MANY = 100_000

# Powers of two fill the network's domain; one row more leaves three quarters of it outside.
EDGE_SIZES = [2**bits + more for bits in range(9, 17) for more in (-1, 0, 1)]


def shuffled(size: int, key: str = "key") -> np.ndarray:
    return Permutation(size, key)(np.arange(size))


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def surprise(counts: np.ndarray) -> float:
    """How uneven counts are: about 0 for an even chance, in standard deviations of chi-squared."""
    expected, freedom = counts.mean(), counts.size - 1
    return float((((counts - expected) ** 2).sum() / expected - freedom) / np.sqrt(2 * freedom))


# A bijection.


@pytest.mark.parametrize("sizes", [range(1, 300), EDGE_SIZES], ids=["small", "edges"])
def test_all_of_a_small_size_is_permuted_without_loss(sizes: Iterable[int]):
    for size in sizes:
        permutation = Permutation(size, f"key {size}")
        order = permutation(np.arange(size))
        np.testing.assert_array_equal(np.sort(order), np.arange(size))
        np.testing.assert_array_equal(permutation(order, is_inverse=True), np.arange(size))


@settings(max_examples=15, deadline=None)
@given(st.integers(2001, 2**40), st.integers(0, 2**32), st.text(max_size=5))
def test_big_sizes_keep_distinct_indexes_distinct_and_inside(size: int, seed: int, key: str):
    indexes = np.unique(np.random.default_rng(seed).integers(0, size, 5000))
    permutation = Permutation(size, key)
    found = permutation(indexes)
    assert found.dtype == np.int64
    assert 0 <= found.min() <= found.max() < size
    assert len(np.unique(found)) == len(indexes)
    np.testing.assert_array_equal(permutation(found, is_inverse=True), indexes)
    np.testing.assert_array_equal(permutation(permutation(indexes, is_inverse=True)), indexes)


@settings(deadline=None)
@given(
    st.integers(1, 2**40),
    st.lists(st.integers(0, 2**41), max_size=60),
    st.integers(0, 60),
    st.booleans(),
)
def test_an_index_goes_to_the_same_place_whoever_is_asked_with_it(size, indexes, cut, is_inverse):
    # Few indexes are worked out one by one, many as an array.
    def asked_for(indexes: np.ndarray) -> np.ndarray:
        permutation = Permutation(size, "key")
        return permutation(indexes, is_inverse=is_inverse)

    asked = np.asarray(indexes, np.int64) % size
    parts = np.concatenate([asked_for(asked[:cut]), asked_for(asked[cut:])])
    np.testing.assert_array_equal(asked_for(asked), parts)


def test_the_order_is_the_same_on_every_machine():
    # A changed order would silently change what a resumed run reads: these may never change.
    assert shuffled(10, "0/code/0").tolist() == [7, 4, 3, 1, 9, 8, 0, 6, 2, 5]
    million = Permutation(10**6, "0/web/1")(np.arange(5))
    assert million.tolist() == [571970, 562062, 213197, 217896, 534835]
    huge = Permutation(2**40, "3/web/12")(np.array([0, 1, 2**39, 2**40 - 1]))
    assert huge.tolist() == [408822397065, 587296857166, 755215730588, 396795226078]


# A good one. Keys are fixed, so these pass or fail for ever; limits are about five deviations.


def test_all_orders_of_a_few_rows_occur_about_equally_often():
    counts = np.unique([shuffled(4, str(i)) for i in range(2400)], axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert surprise(counts) < 5


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


@pytest.mark.parametrize("size", [2**20, 2**20 - 3, 2**40])
@pytest.mark.parametrize("key", ["0/web/0", "1/web/0", "0/code/3"])
def test_no_bit_of_a_thousand_consecutive_rows_is_constant_or_periodic(size: int, key: str):
    # A round of multiply and add alone gives constant parity here, and low bits of period 16.
    rows = Permutation(size, key)(np.arange(5 * 1024, 6 * 1024))
    bits = (rows[None, :] >> np.arange(size.bit_length() - 1)[:, None]) & 1
    assert np.abs(bits.mean(axis=1) - 0.5).max() < 0.08
    for period in range(1, 129):
        agreement = (bits[:, period:] == bits[:, :-period]).mean(axis=1)
        assert np.abs(agreement - 0.5).max() < 0.085, period


@pytest.mark.parametrize("size", [MANY, 2**16 + 1, 2**40])
def test_a_step_from_row_to_row_is_as_likely_as_any_other(size: int):
    rows = Permutation(size, "key")(np.arange(50_000))
    for lag in (1, 2, 16, 1024):
        steps = (rows[lag:] - rows[:-lag]) % size
        assert abs(surprise(np.bincount(steps * 64 // size, minlength=64))) < 5
        assert abs(surprise(np.bincount(steps % 16, minlength=16))) < 5


@pytest.mark.parametrize("size", [MANY, 2**16 + 1, 2**40])
def test_a_batch_of_a_sorted_corpus_comes_from_all_over_it(size: int):
    # Sixteen topics, one after the other: 50 batches of 256 rows each hold all of them, no batch
    # is far from even, and on average they are as uneven as chance.
    rows = Permutation(size, "key")(np.arange(50 * 256)).reshape(50, 256)
    topics = np.stack([np.bincount(batch * 16 // size, minlength=16) for batch in rows])
    assert topics.min() > 0
    surprises = [surprise(counts) for counts in topics]
    assert max(surprises) < 5
    assert abs(np.mean(surprises)) < 5 / np.sqrt(50)


def test_two_epochs_are_unrelated():
    first, second = shuffled(MANY, "seed/name/0"), shuffled(MANY, "seed/name/1")
    assert abs(correlation(first, second)) < 0.02
    assert (first == second).sum() < 10
    # Neither does the place in one tell the place in the other, nor how far the other moved it.
    joint = np.bincount((first * 10 // MANY) * 10 + second * 10 // MANY, minlength=100)
    assert abs(surprise(joint)) < 5
    moved = (second - first) % MANY
    assert abs(surprise(np.bincount(moved * 50 // MANY, minlength=50))) < 5


# What is refused.


@pytest.mark.parametrize("size", [0, -5])
def test_a_permutation_of_nothing_is_refused(size: int):
    with pytest.raises(DataError) as caught:
        Permutation(size, "key")
    assert f"{size} rows" in caught.value.given


@pytest.mark.parametrize("index", [100, 10**6, -1])
def test_an_index_outside_is_refused(index: int):
    permutation = Permutation(100, "key")
    for asked in (permutation, partial(permutation, is_inverse=True)):
        with pytest.raises(DataError) as caught:
            asked(np.array([0, index, 1]))
        assert f"row {index} " in caught.value.given
        assert "100 rows" in caught.value.given
