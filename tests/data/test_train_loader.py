"""Batches on the mesh: the batch of a step, made ahead, wherever a run starts."""

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from number_stores import NUMBERS, number_data

from chomp.data import (
    BatchSchedule,
    GrugLmExample,
    LmComponentConfig,
    LmDataConfig,
    MemorySource,
    StreamConfig,
    TrainDataset,
    TrainLoader,
    build_train_dataset,
    build_train_loader,
    iter_from_step,
)
from chomp.errors import ConfigError, DataError, StorageError
from chomp.mesh import MeshConfig, create_mesh

SEQ_LEN = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("components")
    number_data(folder, {"a": [200, 150], "b": [90]})
    return folder


@pytest.fixture(scope="module")
def dataset(folder: Path) -> TrainDataset:
    data = number_data(folder, {"a": [200, 150], "b": [90]})
    return dataset_of(data, batch_size=4, grad_accum=3)


def dataset_of(
    data: LmDataConfig, *, batch_size: int | list[tuple[int, int]] = 4, grad_accum: int = 1
) -> TrainDataset:
    batches = BatchSchedule(batch_size, grad_accum)
    return build_train_dataset(data, NUMBERS, seq_len=SEQ_LEN, seed=0, batches=batches)


@pytest.fixture(scope="module")
def loader(dataset: TrainDataset, one_device_mesh: jax.sharding.Mesh) -> TrainLoader:
    return build_train_loader(dataset, one_device_mesh)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "chomp-loader" in thread.name]


def assert_same(found: GrugLmExample, expected: GrugLmExample) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_batch_is_the_next_examples_of_the_run_cut_into_micro_batches(loader, dataset):
    for step in (0, 1, 7):
        rows, batch = dataset.examples(12 * step, 12 * (step + 1)), loader.batch(step)
        for leaf in (batch.tokens, batch.loss_weight, batch.attn_mask.segment_ids):
            assert isinstance(leaf, jax.Array)
            assert leaf.shape == (3, 4, SEQ_LEN)
        assert (batch.tokens.dtype, batch.loss_weight.dtype) == (np.int32, np.float32)
        tokens = np.asarray(batch.tokens).reshape(12, SEQ_LEN)
        np.testing.assert_array_equal(tokens, rows.tokens)


def test_iterating_gives_the_batches_of_the_steps_from_anywhere(loader: TrainLoader):
    for start in (0, 2, 1000):
        found = list(iter_from_step(loader, start, start + 4))
        assert len(found) == 4
        for offset, batch in enumerate(found):
            assert_same(batch, loader.batch(start + offset))
    assert list(iter_from_step(loader, 5, 5)) == []
    assert loader_threads() == []


def test_closing_early_stops_the_thread(loader: TrainLoader):
    batches = iter_from_step(loader, 0, 10**9)
    next(batches)
    assert loader_threads()
    batches.close()
    assert loader_threads() == []


def test_batches_made_before_an_error_are_served_first(folder, tmp_path, one_device_mesh):
    shutil.copytree(folder, tmp_path / "copy")
    data = number_data(tmp_path / "copy", {"a": [200, 150], "b": [90]}, {"a": 1.0, "b": 0.01})
    dataset = dataset_of(data)
    shutil.rmtree(tmp_path / "copy/b/tokens/c")
    loader = build_train_loader(dataset, one_device_mesh)
    served = []
    with pytest.raises(StorageError) as caught:
        served.extend(iter_from_step(loader, 0, 100))
    assert "copy/b/tokens" in caught.value.given
    # The first example of b is the 51st of the run.
    assert len(served) == 12
    assert loader_threads() == []


@pytest.mark.parametrize(("batch_size", "nearest"), [(6, 8), (1, 4), (13, 12)])
def test_a_batch_the_mesh_cannot_cut_is_refused_with_what_would_work(
    dataset, eight_device_mesh, batch_size, nearest
):
    scheduled = dataset_of(dataset.config, batch_size=[(0, 8), (5, batch_size)])
    with pytest.raises(ConfigError) as caught:
        build_train_loader(scheduled, eight_device_mesh)
    assert f"train.batch_size={batch_size}" in caught.value.given
    assert caught.value.allowed == "multiples of 4"
    assert f"set train.batch_size to {nearest}, or" in caught.value.fix


def test_a_batch_size_that_grows_takes_up_where_the_smaller_one_ended(dataset, one_device_mesh):
    scheduled = dataset_of(dataset.config, batch_size=[(0, 2), (3, 4), (5, 6)], grad_accum=2)
    loader = build_train_loader(scheduled, one_device_mesh)
    batches = list(iter_from_step(loader, 0, 7))
    assert [batch.tokens.shape[:2] for batch in batches] == [
        *[(2, 2)] * 3,
        *[(2, 4)] * 2,
        *[(2, 6)] * 2,
    ]
    served = np.concatenate([np.asarray(batch.tokens).reshape(-1, SEQ_LEN) for batch in batches])
    np.testing.assert_array_equal(served, dataset.examples(0, len(served)).tokens)


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
def test_hosts_that_read_only_their_rows_have_the_whole_batch_between_them(dataset, shards):
    scheduled = dataset_of(dataset.config, batch_size=8, grad_accum=2)
    mesh = create_mesh(MeshConfig(data=1), devices=jax.devices()[:1])
    loader = build_train_loader(scheduled, mesh)
    rows_of_hosts = np.split(np.arange(8), shards)
    for step in (0, 3):
        parts = [loader.host_batch(step, rows) for rows in rows_of_hosts]
        together = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)
        whole = loader.host_batch(step)
        assert_same(together, whole)
    some = loader.host_batch(3, np.asarray([3, 0, 2]))  # in the order asked for
    np.testing.assert_array_equal(some.tokens, whole.tokens[:, [3, 0, 2]])


@pytest.mark.parametrize("data_axis", [1, 2, 4, 8])
def test_any_mesh_has_the_same_batch_and_each_device_its_rows(dataset, data_axis):
    mesh = create_mesh(MeshConfig(data=data_axis), devices=jax.devices()[:data_axis])
    loader = build_train_loader(dataset_of(dataset.config, batch_size=8, grad_accum=2), mesh)
    batch = loader.batch(5)
    assert_same(batch, loader.host_batch(5))
    shards = {shard.data.shape for shard in batch.tokens.addressable_shards}
    assert shards == {(2, 8 // data_axis, SEQ_LEN)}


def test_only_the_rows_of_a_host_are_read(folder, tmp_path, one_device_mesh):
    # Component b cannot be read any more; a host whose rows are all of a does not notice.
    shutil.copytree(folder, tmp_path / "copy")
    data = number_data(tmp_path / "copy", {"a": [200, 150], "b": [90]}, {"a": 3.0, "b": 1.0})
    dataset = dataset_of(data, batch_size=8)
    shutil.rmtree(tmp_path / "copy/b/tokens/c")
    loader = build_train_loader(dataset, one_device_mesh)
    components, _ = dataset.mixture.assign(0, 8)
    of_a = np.flatnonzero(components == 0)
    assert loader.host_batch(0, of_a).tokens.shape == (1, len(of_a), SEQ_LEN)
    with pytest.raises(StorageError) as caught:
        loader.host_batch(0)
    assert "copy/b/tokens" in caught.value.given


def test_only_one_batch_is_made_before_the_first_is_there(folder, one_device_mesh):
    dataset = dataset_of(number_data(folder, {"a": [200, 150], "b": [90]}))
    asked: list[int] = []

    class Noting(TrainLoader):
        def batch(self, step: int) -> GrugLmExample:
            asked.append(step)
            return super().batch(step)

    batches = iter_from_step(Noting(dataset, one_device_mesh), 7, 1000)
    next(batches)
    assert asked == [7]
    for _ in range(20):
        next(batches)
    batches.close()
    # 8 ahead at most, and each step once.
    assert len(asked) == len(set(asked)) <= 21 + 8


def stream_data(window_documents: int = 4) -> LmDataConfig:
    documents = tuple(" ".join(str(100 * i + j) for j in range(1, 4 + i % 7)) for i in range(1, 30))
    stream = StreamConfig(window_documents=window_documents)
    return LmDataConfig(
        components={
            "s": LmComponentConfig(source=MemorySource(documents=documents), stream=stream)
        },
        validation_fraction=0.1,
    )


@pytest.mark.parametrize("packing_mode", ["concat", "packed"])
def test_a_loader_of_streams_goes_on_from_the_state_of_any_step(packing_mode, one_device_mesh):
    data = replace(stream_data(), packing_mode=packing_mode)

    def new_loader() -> TrainLoader:
        return build_train_loader(dataset_of(data), one_device_mesh)

    unbroken = new_loader()
    batches, states = [], []
    for step, batch in enumerate(iter_from_step(unbroken, 0, 25)):
        batches.append(batch)
        # Batches are made ahead; the state of a step is that of the step, not of what was made.
        states.append(json.loads(json.dumps(unbroken.stream_states(step + 1))))
    for cut in (1, 2, 9, 24):
        restored = new_loader()
        restored.restore_streams(states[cut - 1])
        for step, batch in enumerate(iter_from_step(restored, cut, 25), start=cut):
            assert_same(batch, batches[step])
        restored.dataset.close()
    unbroken.dataset.close()


def test_a_stream_that_was_not_restored_does_not_serve_the_rows_of_another_step(one_device_mesh):
    loader = build_train_loader(dataset_of(stream_data()), one_device_mesh)
    with pytest.raises(DataError) as caught:
        next(iter_from_step(loader, 2, 9))
    assert "row 8 of the stream 's'" in caught.value.given
    loader.close()


def test_a_state_of_a_stream_that_is_gone_is_an_error(one_device_mesh):
    loader = build_train_loader(dataset_of(stream_data()), one_device_mesh)
    before = loader.stream_states(0)
    for step in range(20):
        loader.batch(step)
    assert loader.stream_states(20) == loader.dataset.stream_states()
    assert loader.stream_states(0) == before  # where the streams were put is never forgotten
    for gone in (1, 21):
        with pytest.raises(DataError) as caught:
            loader.stream_states(gone)
        assert f"step {gone}" in caught.value.given
        assert "20" in caught.value.allowed
    loader.restore_streams(loader.stream_states(12))
    with pytest.raises(DataError) as caught:  # 4 rows a step
        loader.stream_states(20)
    assert "step 20" in caught.value.given
    assert "48" in caught.value.allowed
    assert loader.stream_states(12) == loader.dataset.stream_states()
    loader.close()


def test_a_checkpoint_of_other_streams_is_refused(dataset, one_device_mesh):
    loader = build_train_loader(dataset, one_device_mesh)
    assert loader.stream_states(3) is None
    loader.restore_streams(None)
    with pytest.raises(DataError) as caught:
        loader.restore_streams({"s": {}})
    assert "['s']" in caught.value.given


def test_a_batch_that_was_looked_at_is_served_all_the_same(dataset, one_device_mesh):
    loader, fresh = (build_train_loader(dataset, one_device_mesh) for _ in range(2))
    looked_at = loader.first_look(5)
    assert loader.first_look(5) is looked_at
    assert isinstance(looked_at.tokens, np.ndarray)
    assert_same(looked_at, fresh.host_batch(5))
    for found, expected in zip(
        iter_from_step(loader, 5, 8), iter_from_step(fresh, 5, 8), strict=True
    ):
        assert_same(found, expected)


def test_a_stream_that_was_looked_at_serves_every_row_once(one_device_mesh):
    loaders = [build_train_loader(dataset_of(stream_data()), one_device_mesh) for _ in range(3)]
    looking, plain, fresh = loaders
    before = plain.stream_states(0)
    looking.first_look(0)
    assert looking.stream_states(0) == before
    for step in range(3):
        assert_same(looking.batch(step), plain.batch(step))
        assert looking.stream_states(step + 1) == plain.stream_states(step + 1)
    # Put back to its beginning, it forgets what it had looked at.
    looking.first_look(3)
    looking.restore_streams(before)
    assert looking.stream_states(0) == before
    assert_same(looking.batch(0), fresh.batch(0))
    for loader in loaders:
        loader.close()
