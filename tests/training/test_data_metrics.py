"""What a row says about the data: exact counts, and TensorStore's counters when asked for."""

from dataclasses import replace
from pathlib import Path

import jax
import pytest

from chomp.data import (
    BatchSchedule,
    LmDataConfig,
    PackingConfig,
    build_train_dataset,
    build_train_loader,
)
from chomp.errors import ConfigError
from chomp.training.step_log import TensorStoreCounters, data_metrics
from tests import tiny

VARIABLE = "LEVANTER_LOG_TENSORSTORE_METRICS_EVERY"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(Path(tmp_path_factory.mktemp("data")))


def test_a_row_counts_what_was_served_up_to_its_step(data, one_device_mesh: jax.sharding.Mesh):
    dataset = build_train_dataset(
        data,
        data.tokenizer.load(),
        seq_len=64,
        seed=0,
        batches=BatchSchedule([(0, 4), (2, 8)], grad_accum=2),
    )
    loader = build_train_loader(dataset, one_device_mesh)
    row = data_metrics(loader, 2)  # two steps of 8 examples and one of 16
    assert row["mixture/examples/sums"] + row["mixture/examples/words"] == 32
    assert row["mixture/examples/sums"] == 24
    assert row["mixture/tokens/words"] == 8 * 64
    assert row["mixture/weight/sums"] == 0.75
    assert row["mixture/epoch/words"] == 8 / dataset.num_rows["words"]
    assert (row["mixture/stage"], row["packing_mode"]) == (0, "concat")


@pytest.mark.parametrize("flows_on", [False, True])
def test_utilization_is_that_of_the_steps_own_batch(data, one_device_mesh, flows_on):
    packing = PackingConfig(max_documents_per_row=1)
    config = replace(data, packing_mode="packed", packing=packing)
    apart, read = (
        build_train_dataset(
            replace(config, stream_semantics=is_one_text),
            data.tokenizer.load(),
            seq_len=1024,
            seed=0,
            batches=BatchSchedule(2),
        )
        for is_one_text in (False, flows_on)
    )
    loader = build_train_loader(read, one_device_mesh)
    found = []
    for step in range(6):
        assert "packing_utilization" not in data_metrics(loader, step)  # nobody has made it yet
        loader.batch(step)
        ids = apart.examples(2 * step, 2 * step + 2).attn_mask.segment_ids
        found.append(data_metrics(loader, step)["packing_utilization"])
        assert found[-1] == (ids >= 0).mean()
    assert len(set(found)) > 1
    assert 0 < min(found) < 1


def test_tensorstores_counters_come_with_every_nth_step_when_asked_for(data, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert TensorStoreCounters().metrics(9) == {}
    monkeypatch.setenv(VARIABLE, "5")
    counters = TensorStoreCounters()
    assert counters.metrics(3) == {}
    assert counters.metrics(6)  # the first row since five steps were completed
    assert counters.metrics(7) == {}
    found = counters.metrics(9)
    assert found["data/tensorstore/kvstore/file/bytes_read"] > 0
    assert all(name.startswith("data/tensorstore/") for name in found)


def test_a_period_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "often")
    with pytest.raises(ConfigError, match=f"{VARIABLE}=often"):
        TensorStoreCounters()
