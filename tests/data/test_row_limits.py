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
from chomp.errors import ConfigError, DataError

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
    told = f"^{row}: the id {tokens[row, column]} at position {column}. Allowed: ids from 0 to "
    with pytest.raises(DataError, match=f"{told}{vocab_size - 1}, "):
        limits.require_tokens(tokens, str)


def test_the_largest_and_the_smallest_of_all_numbers_are_ids_of_no_vocabulary():
    for wrong in np.iinfo(np.int32).min, np.iinfo(np.int32).max, -1:
        with pytest.raises(DataError, match=f"the id {wrong} at position 1"):
            RowLimits(vocab_size=1 << 17).require_tokens(np.asarray([[0, wrong]], np.int32), str)


def test_without_limits_and_without_rows_nothing_is_refused():
    numbers = np.asarray([[-5, 9]], np.int32)
    RowLimits().require_tokens(numbers, str)
    RowLimits().require_documents(numbers, str, batch_size=1)
    RowLimits(vocab_size=3).require_tokens(numbers[:0], str)
    RowLimits(max_segments=1).require_documents(numbers[:0], str, batch_size=1)
    RowLimits(max_segments=1).require_documents(None, str, batch_size=1)


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=4, max_size=4),
    st.integers(1, 7),
    st.sampled_from([1, 2, 4]),
)
def test_rows_of_a_device_share_the_room_for_documents(lengths, max_segments, shards):
    rows = [np.repeat(np.arange(len(row), dtype=np.int32), row) for row in lengths]
    ids = np.stack([np.pad(row, (0, 30 - len(row)), constant_values=-1) for row in rows])
    taken = 1 + np.count_nonzero(np.diff(ids, axis=1), axis=1)
    on_devices = taken.reshape(shards, -1).sum(axis=1)
    limits = RowLimits(max_segments=max_segments, shards=shards)
    most, room = on_devices.max(), max_segments * 4 // shards
    if most <= room:
        limits.require_documents(ids, str, batch_size=4)
        return
    first = int(np.argmax(on_devices)) * 4 // shards
    told = f"^{most} documents in the {4 // shards} rows of a device, the first of them {first}. "
    with pytest.raises(DataError, match=f"{told}Allowed: {room}, which is {max_segments} a row"):
        limits.require_documents(ids, str, batch_size=4)


def test_a_training_row_outside_the_vocabulary_is_named_by_step_row_and_component(
    data, one_device_mesh
):
    loader = loader_of(data, one_device_mesh, RowLimits(vocab_size=9_000))
    components, _ = loader.dataset.mixture.assign(8, 16)
    micro, row = divmod(int(np.flatnonzero(components == 1)[0]), 4)
    with pytest.raises(DataError) as caught:
        loader.batch(1)
    told = rf"step 1, row {row} of micro-batch {micro}, from component 'b': the id 10\d+ at "
    assert re.match(told, str(caught.value))
    # A host that holds other rows has nothing to refuse.
    others = np.flatnonzero((components == 0).reshape(2, 4).all(axis=0))
    assert loader.host_batch(1, others).tokens.shape == (2, len(others), SEQ_LEN)


def test_training_rows_within_the_limits_come_as_they_are(data, one_device_mesh):
    limited = loader_of(data, one_device_mesh, RowLimits(vocab_size=20_000, max_segments=8))
    free = loader_of(data, one_device_mesh, RowLimits())
    np.testing.assert_array_equal(limited.host_batch(2).tokens, free.host_batch(2).tokens)


def test_a_training_batch_of_too_many_documents_is_refused_where_it_would_be_placed(
    data, one_device_mesh
):
    # In a micro-batch of four rows, one is of "b" and has about four documents.
    loader = loader_of(data, one_device_mesh, RowLimits(max_segments=1))
    told = (
        r"^\d documents in the 4 rows of a device, the first of them step 0, row 0 of micro-batch"
    )
    for look in (loader.batch, loader.first_look):
        with pytest.raises(DataError, match=told):
            look(0)
    assert loader.host_batch(0).tokens.shape == (2, 4, SEQ_LEN)


def test_held_out_rows_are_held_to_the_same_limits(data):
    found = held_out(data, RowLimits(vocab_size=9_000))
    assert found["a"].batch(0, 4).tokens.shape == (4, SEQ_LEN)
    with pytest.raises(DataError, match="held-out row 4 of component 'b': the id 10"):
        found["b"].batch(1, 4)
    narrow = held_out(data, RowLimits(max_segments=3, shards=2))
    assert narrow["a"].batch(0, 4).tokens.shape == (4, SEQ_LEN)
    with pytest.raises(DataError, match=r"in the 2 rows of .* held-out row \d of component 'b'"):
        narrow["b"].batch(0, 4)


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="vocab_size=0"):
        RowLimits(vocab_size=0)
