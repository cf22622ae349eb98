"""Batches on the mesh: the batch of a step, made ahead, wherever a run starts."""

import shutil
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from number_stores import NUMBERS, number_data

from chomp.data import (
    GrugLmExample,
    TrainDataset,
    TrainLoader,
    build_train_dataset,
    build_train_loader,
    iter_from_step,
)
from chomp.errors import ConfigError, DataError

SEQ_LEN = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("components")
    number_data(folder, {"a": [200, 150], "b": [90]})
    return folder


@pytest.fixture(scope="module")
def dataset(folder: Path) -> TrainDataset:
    data = number_data(folder, {"a": [200, 150], "b": [90]})
    return build_train_dataset(data, NUMBERS, seq_len=SEQ_LEN, seed=0)


@pytest.fixture(scope="module")
def loader(dataset: TrainDataset, one_device_mesh: jax.sharding.Mesh) -> TrainLoader:
    return build_train_loader(dataset, one_device_mesh, batch_size=4, grad_accum=3)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "chomp-loader"]


def assert_same(found: GrugLmExample, expected: GrugLmExample) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_batch_has_micro_batches_rows_and_tokens(loader: TrainLoader):
    batch = loader.batch(0)
    assert loader.examples_per_step == 12
    for leaf in (batch.tokens, batch.loss_weight, batch.attn_mask.segment_ids):
        assert isinstance(leaf, jax.Array)
        assert leaf.shape == (3, 4, SEQ_LEN)
    assert (batch.tokens.dtype, batch.loss_weight.dtype) == (np.int32, np.float32)


def test_the_batch_of_a_step_is_the_next_examples_of_the_run(loader: TrainLoader, dataset):
    for step in (0, 1, 7):
        rows = dataset.examples(12 * step, 12 * (step + 1))
        tokens = np.asarray(loader.batch(step).tokens)
        np.testing.assert_array_equal(tokens.reshape(12, SEQ_LEN), rows.tokens)


def test_micro_batches_cut_a_step_and_not_the_data(dataset, one_device_mesh, loader):
    whole = build_train_loader(dataset, one_device_mesh, batch_size=12)
    np.testing.assert_array_equal(
        whole.host_batch(5).tokens.reshape(3, 4, SEQ_LEN), loader.host_batch(5).tokens
    )


def test_rows_are_spread_over_the_mesh(dataset, eight_device_mesh):
    loader = build_train_loader(dataset, eight_device_mesh, batch_size=8, grad_accum=2)
    batch = loader.batch(3)
    assert {shard.data.shape for shard in batch.tokens.addressable_shards} == {(2, 2, SEQ_LEN)}
    assert_same(batch, loader.host_batch(3))


def test_iterating_gives_the_batches_of_the_steps_from_anywhere(loader: TrainLoader):
    for start in (0, 2, 1000):
        found = list(iter_from_step(loader, start, start + 4))
        assert len(found) == 4
        for offset, batch in enumerate(found):
            assert_same(batch, loader.batch(start + offset))
    assert loader_threads() == []


def test_no_steps_are_no_batches(loader: TrainLoader):
    assert list(iter_from_step(loader, 5, 5)) == []


def test_closing_early_stops_the_thread(loader: TrainLoader):
    batches = iter_from_step(loader, 0, 10**9)
    next(batches)
    assert len(loader_threads()) == 1
    batches.close()
    assert loader_threads() == []


def test_an_error_while_loading_ahead_reaches_the_loop(folder, tmp_path, one_device_mesh):
    shutil.copytree(folder, tmp_path / "copy")
    data = number_data(tmp_path / "copy", {"a": [200, 150], "b": [90]})
    dataset = build_train_dataset(data, NUMBERS, seq_len=SEQ_LEN, seed=0)
    shutil.rmtree(tmp_path / "copy/b/tokens/c")
    loader = build_train_loader(dataset, one_device_mesh, batch_size=4)
    with pytest.raises(DataError, match="copy/b is damaged"):
        list(iter_from_step(loader, 0, 100))
    assert loader_threads() == []


def test_batches_made_before_an_error_are_served_first(folder, tmp_path, one_device_mesh):
    shutil.copytree(folder, tmp_path / "copy")
    data = number_data(tmp_path / "copy", {"a": [200, 150], "b": [90]}, {"a": 1.0, "b": 0.01})
    dataset = build_train_dataset(data, NUMBERS, seq_len=SEQ_LEN, seed=0)
    shutil.rmtree(tmp_path / "copy/b/tokens/c")
    loader = build_train_loader(dataset, one_device_mesh, batch_size=4)
    served = []
    with pytest.raises(DataError, match="copy/b is damaged"):
        served.extend(iter_from_step(loader, 0, 100))
    # The first example of b is the 51st of the run.
    assert len(served) == 12


@pytest.mark.parametrize(("batch_size", "nearest"), [(6, 8), (1, 4), (0, 4), (13, 12)])
def test_a_batch_the_mesh_cannot_cut_is_refused_with_what_would_work(
    dataset, eight_device_mesh, batch_size, nearest
):
    with pytest.raises(ConfigError) as caught:
        build_train_loader(dataset, eight_device_mesh, batch_size=batch_size)
    told = str(caught.value)
    assert told.startswith(
        f"train.batch_size={batch_size} on a mesh that cuts the batch into 4. "
        f"Allowed: multiples of 4. Fix: set train.batch_size to {nearest}, or a mesh whose "
        "replica x data x expert is one of [1"
    )


@pytest.mark.parametrize("grad_accum", [0, -1])
def test_a_step_without_micro_batches_is_refused(dataset, one_device_mesh, grad_accum):
    with pytest.raises(ConfigError, match=rf"train\.grad_accum={grad_accum}\. Allowed: 1 or more"):
        build_train_loader(dataset, one_device_mesh, batch_size=4, grad_accum=grad_accum)
