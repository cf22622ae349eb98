"""What a run says before its first step: its bytes per device and that its kernels are right."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from chomp.data import BatchSchedule, LmDataConfig, TrainLoader, build_train_dataset
from chomp.errors import ConfigError
from chomp.optim import GrugOptimizerConfig
from chomp.tracking import LoggingConfig, metric_of
from chomp.training import row_limits
from chomp.training.setup import start_report
from tests import tiny

SEQ_LEN = 32


@dataclass(frozen=True)
class Model:
    """The shapes of a small model."""

    vocab_size: int = 258
    hidden_dim: int = 16
    num_heads: int = 2
    num_kv_heads: int = 2
    inferred_head_dim: int = 8
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    attention: str = "auto"


@dataclass(frozen=True)
class Trainer:
    """What the model is computed in, and on."""

    seq_len: int = SEQ_LEN
    precision: str = "params=float32,compute=float32"


@dataclass(frozen=True)
class Told:
    """A run config, as far as it is reported."""

    trainer: Trainer = field(default_factory=Trainer)
    data: LmDataConfig = field(default_factory=LmDataConfig)
    model: Model = field(default_factory=Model)
    optimizer: GrugOptimizerConfig = field(default_factory=GrugOptimizerConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


@dataclass(frozen=True)
class Weights:
    """A model of one matrix."""

    w: Any

    def param_groups(self) -> "Weights":
        """It is one."""
        return Weights("matrix")


@dataclass(frozen=True)
class State:
    """A train state of one weight."""

    params: Any
    opt_state: Any
    ema_params: Any


jax.tree_util.register_dataclass(Weights, ["w"], [])
jax.tree_util.register_dataclass(State, ["params", "opt_state", "ema_params"], [])


def make_state(rows: int = 64, with_average: bool = True) -> State:
    weight = jax.reshard(jnp.zeros((rows, 16)), P("model", "data"))
    return State(Weights(weight), {"mu": weight, "nu": weight}, weight if with_average else None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(Path(tmp_path_factory.mktemp("data")))


@pytest.fixture
def loader(data, one_device_mesh) -> TrainLoader:
    dataset = build_train_dataset(
        data, data.tokenizer.load(), seq_len=SEQ_LEN, seed=0, batches=BatchSchedule(4, grad_accum=2)
    )
    return TrainLoader(dataset, one_device_mesh)


def test_a_run_starts_with_its_bytes_and_the_check_of_its_kernels(
    loader, one_device_mesh, caplog, capsys
):
    expected = np.asarray(loader.batch(3).tokens)
    with jax.set_mesh(one_device_mesh):
        state = make_state()
    caplog.set_level(logging.INFO, logger="chomp.training")
    summary = start_report(Told(), loader, state, steps=range(3, 9))
    assert summary["memory/params_bytes_per_device"] == 64 * 16 * 4
    assert summary["memory/state_bytes_per_device"] == 4 * 64 * 16 * 4
    assert summary["kernels/attention"] == "chunked"
    assert summary["kernels/attention_deviation"] < 1e-5
    assert all(metric_of(name) is not None for name in summary)
    bytes_told, groups_told, kernels_told = (record.getMessage() for record in caplog.records)
    assert "matrix  adamw       0.01         1    1,024" in groups_told
    assert "averaged weights" in bytes_told
    assert "gradient of head" in kernels_told
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "16.00 KiB of state per device, 4.00 KiB of it parameters"
    assert shown[1].startswith("attention chunked (")
    assert len(shown) == 2
    # What was looked at is served all the same.
    np.testing.assert_array_equal(loader.batch(3).tokens, expected)


def test_a_run_that_is_done_has_no_batch_to_look_at(loader, one_device_mesh, capsys):
    with jax.set_mesh(one_device_mesh):
        state = make_state(with_average=False)
    told = Told(logging=LoggingConfig(console=False))
    summary = start_report(told, loader, state, steps=range(9, 9))
    here = {name for name in summary if name.startswith("environment/")}
    memory = {"memory/params_bytes_per_device", "memory/state_bytes_per_device"}
    assert set(summary) - here == memory
    assert "environment/jax" in here
    assert summary["memory/state_bytes_per_device"] == 3 * 64 * 16 * 4
    assert capsys.readouterr().out == ""


def test_rows_are_limited_by_the_vocabulary_and_by_the_kernel_that_was_chosen(
    data, one_device_mesh
):
    limits = row_limits(Told(data=data), one_device_mesh)
    assert (limits.vocab_size, limits.counts_documents, limits.shards) == (258, False, 1)
    with pytest.raises(ConfigError, match=r"cudnn_packed, which cannot do this call.*chunked"):
        row_limits(Told(data=data, model=Model(attention="cudnn_packed")), one_device_mesh)


def test_a_mesh_that_cannot_cut_the_model_is_refused_before_anything_is_made(
    data, eight_device_mesh
):
    assert row_limits(Told(data=data), eight_device_mesh).shards == 4
    with pytest.raises(ConfigError, match=r"model.vocab_size=257 with mesh.model=2"):
        row_limits(Told(data=data, model=Model(vocab_size=257)), eight_device_mesh)
