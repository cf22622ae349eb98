"""Rows a model cannot take are refused on the host, with the place they come from."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from number_stores import NUMBERS, number_data

from chomp.data import (
    BatchSchedule,
    EvalDataset,
    LmDataConfig,
    RowLimits,
    TrainLoader,
    build_eval_datasets,
    build_train_dataset,
    build_train_loader,
)
from chomp.errors import DataError

SEQ_LEN = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    # Ids of "a" are below 352; those of "b" begin at 10,000. Documents of "b" have two tokens.
    folder = Path(tmp_path_factory.mktemp("components"))
    return number_data(folder, {"a": [200, 150], "b": [1] * 60}, {"a": 3.0, "b": 1.0})


def loader_of(data: LmDataConfig, mesh, limits: RowLimits) -> TrainLoader:
    dataset = build_train_dataset(
        data, NUMBERS, seq_len=SEQ_LEN, seed=0, batches=BatchSchedule(4, grad_accum=2)
    )
    return build_train_loader(dataset, mesh, limits)


def held_out(data: LmDataConfig, limits: RowLimits) -> dict[str, EvalDataset]:
    datasets = build_eval_datasets(data, NUMBERS, seq_len=SEQ_LEN, limits=limits)
    return {dataset.name: dataset for dataset in datasets}


@given(
    st.lists(st.lists(st.integers(-3, 12), min_size=4, max_size=4), min_size=1, max_size=5),
    st.integers(1, 13),
)
def test_a_batch_passes_exactly_when_every_id_is_in_the_vocabulary(rows, vocab_size):
    tokens = np.asarray(rows, np.int32)
    wrong = np.argwhere((tokens < 0) | (tokens >= vocab_size)).tolist()
    limits = RowLimits(vocab_size=vocab_size)
    if not wrong:
        limits.require_tokens(tokens, str)
        return
    row, column = wrong[0]
    with pytest.raises(DataError) as caught:
        limits.require_tokens(tokens, str)
    assert f"{row}: the id {tokens[row, column]} at position {column}" in caught.value.given
    assert f"0 to {vocab_size - 1}," in caught.value.allowed


def test_the_largest_and_the_smallest_of_all_numbers_are_ids_of_no_vocabulary():
    for wrong in np.iinfo(np.int32).min, np.iinfo(np.int32).max, -1:
        with pytest.raises(DataError) as caught:
            RowLimits(vocab_size=1 << 17).require_tokens(np.asarray([[0, wrong]], np.int32), str)
        assert f"the id {wrong} at position 1" in caught.value.given


def test_without_limits_and_without_rows_nothing_is_refused():
    numbers = np.asarray([[-5, 9]], np.int32)
    RowLimits().require_tokens(numbers, str)
    assert RowLimits().max_segments(numbers, str, batch_size=1) is None
    RowLimits(vocab_size=3).require_tokens(numbers[:0], str)
    counting = RowLimits(counts_documents=True)
    assert counting.max_segments(numbers[:0], str, batch_size=1) == 12
    assert counting.max_segments(None, str, batch_size=1) is None


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=40), min_size=4, max_size=4),
    st.sampled_from([1, 2, 4]),
)
def test_rows_of_a_device_share_room_that_is_doubled_until_their_documents_fit(lengths, shards):
    rows = [np.repeat(np.arange(len(row), dtype=np.int32), row) for row in lengths]
    ids = np.stack([np.pad(row, (0, 121 - len(row)), constant_values=-1) for row in rows])
    taken = 1 + np.count_nonzero(np.diff(ids, axis=1), axis=1)
    most = taken.reshape(shards, -1).sum(axis=1).max() / (4 // shards)
    limits = RowLimits(counts_documents=True, shards=shards)
    room = limits.max_segments(ids, str, batch_size=4)
    assert room == (12 if most <= 12 else 24 if most <= 24 else 48)
    if room > 12:
        with pytest.raises(DataError) as caught:
            RowLimits(counts_documents=True, shards=shards).max_segments(
                ids, str, batch_size=4, is_whole_batch=False
            )
        assert "12 a row" in caught.value.allowed


def test_a_training_row_outside_the_vocabulary_is_named_by_step_row_and_component(
    data, one_device_mesh
):
    loader = loader_of(data, one_device_mesh, RowLimits(vocab_size=9_000))
    components, _ = loader.dataset.mixture.assign(8, 16)
    micro, row = divmod(int(np.flatnonzero(components == 1)[0]), 4)
    with pytest.raises(DataError) as caught:
        loader.batch(1)
    told = rf"step 1, row {row} of micro-batch {micro}, from component 'b': the id 10\d+ at "
    assert re.match(told, caught.value.given)
    # A host that holds other rows has nothing to refuse.
    others = np.flatnonzero((components == 0).reshape(2, 4).all(axis=0))
    assert loader.host_batch(1, others).tokens.shape == (2, len(others), SEQ_LEN)


def test_training_rows_within_the_limits_come_as_they_are(data, one_device_mesh):
    limited = loader_of(data, one_device_mesh, RowLimits(vocab_size=20_000, counts_documents=True))
    free = loader_of(data, one_device_mesh, RowLimits())
    np.testing.assert_array_equal(limited.host_batch(2).tokens, free.host_batch(2).tokens)
    assert limited.batch(2).attn_mask.max_segments == 12
    assert free.batch(2).attn_mask.max_segments is None


def test_batches_of_many_documents_carry_the_room_they_need_and_it_is_said_once(
    tmp_path, one_device_mesh, caplog
):
    # Documents of two tokens: 16 in a row of 32, and the one that a row begins in the middle of.
    data = number_data(tmp_path, {"b": [1] * 800}, {"b": 1.0})
    batches = BatchSchedule(4, grad_accum=2)
    dataset = build_train_dataset(data, NUMBERS, seq_len=32, seed=0, batches=batches)
    loader = build_train_loader(dataset, one_device_mesh, RowLimits(counts_documents=True))
    assert loader.first_look(0).attn_mask.max_segments == 24
    assert [loader.batch(step).attn_mask.max_segments for step in range(3)] == [24] * 3
    (told,) = [record.message for record in caplog.records if "room for" in record.message]
    assert "the first of them step 0, row 0 of micro-batch" in told
    assert "room for 24 a row instead of 12" in told
    assert "model.attention=chunked" in told


def test_held_out_rows_are_held_to_the_same_limits(data):
    found = held_out(data, RowLimits(vocab_size=9_000))
    assert found["a"].read(np.arange(4), 4).example.tokens.shape == (4, SEQ_LEN)
    with pytest.raises(DataError) as caught:
        found["b"].read(np.asarray([6, 2]), 4)
    assert "held-out row 6 of component 'b': the id 10" in caught.value.given
    counted = held_out(data, RowLimits(counts_documents=True))
    assert counted["b"].read(np.arange(4), 4).example.attn_mask.max_segments == 12
