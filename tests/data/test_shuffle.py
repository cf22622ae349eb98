"""The order of a component's rows: each once an epoch, anew each epoch, near where asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import BlockShuffleConfig, Permutation, RowOrder
from chomp.errors import DataError

Shuffle = bool | BlockShuffleConfig

# Big enough for more than one piece of what is kept.
sizes = st.integers(1, 40) | st.integers(1000, 4000)
blocks = st.builds(
    BlockShuffleConfig, block_rows=st.integers(1, 300), window_blocks=st.integers(1, 40)
).filter(lambda config: config.block_rows * config.window_blocks >= 50)
shuffles = st.booleans() | blocks


def order_of(size: int, shuffle: Shuffle = True, seed: int = 0, name: str = "web") -> RowOrder:
    return RowOrder(size, seed=seed, name=name, shuffle=shuffle)


def epoch_of(size: int, shuffle: Shuffle, epoch: int = 0, seed: int = 0) -> np.ndarray:
    return order_of(size, shuffle, seed).rows(np.arange(epoch * size, (epoch + 1) * size))


def runs_of(rows: np.ndarray, block_rows: int) -> set[int]:
    return set((rows // block_rows).tolist())


@settings(max_examples=40, deadline=None)
@given(sizes, shuffles, st.integers(0, 3))
def test_every_row_comes_once_in_every_epoch_and_knows_its_position(size, shuffle, epoch):
    order = order_of(size, shuffle)
    positions = np.arange(epoch * size, (epoch + 1) * size)
    rows = order.rows(positions)
    np.testing.assert_array_equal(np.sort(rows), np.arange(size))
    np.testing.assert_array_equal(order.positions(rows, epoch), positions)


@settings(max_examples=40, deadline=None)
@given(
    sizes,
    shuffles,
    st.lists(st.integers(0, 20_000), max_size=30)
    | st.integers(0, 20_000).map(lambda start: list(range(start, start + 50))),
    st.integers(0, 50),
)
def test_a_position_has_the_same_row_whoever_is_asked_with_it(size, shuffle, positions, cut):
    # Near positions come from kept pieces, far ones do not; epochs may change in between.
    asked = np.asarray(positions, np.int64)
    order = order_of(size, shuffle)
    parts = [order.rows(asked[:cut]), order.rows(asked[cut:])]
    np.testing.assert_array_equal(order_of(size, shuffle).rows(asked), np.concatenate(parts))


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 9), st.text("ab/", min_size=1), st.integers(0, 5))
def test_a_full_shuffle_is_the_permutation_of_seed_name_and_epoch(size, seed, name, epoch):
    # The key may never change: a resumed run would read other rows.
    rows = order_of(size, True, seed, name).rows(np.arange(epoch * size, (epoch + 1) * size))
    expected = Permutation(size, f"{seed}/{name}/{epoch}")(np.arange(size))
    np.testing.assert_array_equal(rows, expected)


def test_no_shuffle_is_the_order_of_the_store_in_every_epoch():
    order = order_of(5, False)
    assert order.rows(np.arange(3, 12)).tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert order.positions(np.array([4, 0]), 2).tolist() == [14, 10]


@pytest.mark.parametrize("shuffle", [True, BlockShuffleConfig(block_rows=8, window_blocks=16)])
def test_seed_name_and_epoch_each_give_another_order(shuffle: Shuffle):
    orders = {
        tuple(order_of(500, shuffle, seed, name).rows(np.arange(epoch * 500, epoch * 500 + 500)))
        for seed in range(3)
        for name in ("a", "b")
        for epoch in range(4)
    }
    assert len(orders) == 24


@pytest.mark.parametrize("shuffle", [True, BlockShuffleConfig()])
def test_a_component_of_a_trillion_rows_is_shuffled_where_it_is_asked(shuffle: Shuffle):
    order = order_of(10**12 + 7, shuffle)
    for start in (0, 10**9, 10**12 - 100, 5 * 10**12):
        positions = np.arange(start, start + 300)
        rows = order.rows(positions)
        epochs = positions // order.size
        assert len(np.unique(rows[epochs == epochs[0]])) == (epochs == epochs[0]).sum()
        back = [
            order.positions(np.array([row]), epoch)[0]
            for row, epoch in zip(rows.tolist(), epochs.tolist(), strict=True)
        ]
        np.testing.assert_array_equal(back, positions)


# Block shuffle.


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1500), blocks)
def test_a_window_reads_from_no_more_runs_than_it_promises(size, shuffle):
    rows, window = epoch_of(size, shuffle), shuffle.block_rows * shuffle.window_blocks
    allowed = shuffle.window_blocks + (size % shuffle.block_rows > 0)
    for start in range(0, size, window):
        assert len(runs_of(rows[start : start + window], shuffle.block_rows)) <= allowed


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1500), blocks)
def test_a_run_is_read_in_one_window_or_in_two_that_follow_each_other(size, shuffle):
    positions = np.argsort(epoch_of(size, shuffle))
    windows = positions // (shuffle.block_rows * shuffle.window_blocks)
    for start in range(0, size, shuffle.block_rows):
        run = windows[start : start + shuffle.block_rows]
        assert run.max() - run.min() <= (1 if size % shuffle.block_rows else 0)


def test_blocks_are_spread_over_the_component_and_rows_over_their_window():
    shuffle = BlockShuffleConfig(block_rows=16, window_blocks=64)
    rows = epoch_of(2**16 + 5, shuffle)
    index = np.arange(len(rows))
    assert abs(np.corrcoef(index, rows)[0, 1]) < 0.1
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.05
    # A batch of 64 has hardly two rows of one run, and a sorted corpus from end to end.
    batches = rows[: 1024 * 64].reshape(1024, 64)
    assert np.mean([len(runs_of(batch, 16)) for batch in batches]) > 38
    assert (batches.min(axis=1) < 2**14).all()
    assert (batches.max(axis=1) > 3 * 2**14).all()


def test_a_short_last_block_is_not_always_last():
    shuffle = BlockShuffleConfig(block_rows=10, window_blocks=2)
    order = order_of(995, shuffle)
    firsts = [int(order.positions(np.array([994]), epoch)[0] % 995) for epoch in range(30)]
    assert min(firsts) < 250
    assert max(firsts) > 750


def test_a_component_smaller_than_a_window_is_shuffled_all_over():
    rows = epoch_of(5000, BlockShuffleConfig())
    assert abs(np.corrcoef(np.arange(5000), rows)[0, 1]) < 0.07
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.07


# What is refused.


def test_a_row_that_is_not_there_has_no_position():
    for shuffle in (True, False, BlockShuffleConfig()):
        with pytest.raises(DataError) as caught:
            order_of(10, shuffle).positions(np.array([3, 10]), 0)
        assert "row 10 of component 'web' with 10 rows" in caught.value.given
