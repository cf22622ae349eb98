"""The base loop: it learns, adds up, logs what it promises, and continues bit for bit."""

import json
import math
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from chomp.checkpoint import CheckpointConfig, Checkpointer, list_checkpoints
from chomp.data import GrugLmExample, LmDataConfig, MixtureStage, StreamConfig, TrainLoader
from chomp.errors import CheckpointError, ConfigError, NonFiniteError, RunInterrupted
from chomp.kernels.precision import Precision
from chomp.mesh import place_batch
from chomp.tracking import JsonlTracker, MetricValue
from chomp.tracking.logging_config import WandbConfig
from chomp.training import HarnessConfig, SamplesConfig
from experiments.grug.base.model import GrugModelConfig
from experiments.grug.base.train import (
    GrugEvalConfig,
    GrugRunConfig,
    GrugTrainState,
    _make_train_step,
    initial_state,
    run_grug,
)
from tests import tiny
from tests.evaluation.local_tasks import local_tasks


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(tmp_path_factory.mktemp("tiny-data"))


@pytest.fixture(scope="session")
def straight_run(data: LmDataConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run of 12 steps with averaged weights, evaluated in the middle and at the end."""
    folder = tmp_path_factory.mktemp("straight")
    config = tiny.run_config(data, folder, ema_beta=0.9)
    samples = SamplesConfig(every=6, max_tokens=16)
    with local_tasks(tmp_path_factory.mktemp("tasks")) as tasks:
        harness = HarnessConfig(
            tasks=("colours", "echo"), every=6, include_path=str(tasks), batch_size=8
        )
        evaluation = GrugEvalConfig(
            steps_per_eval=6, eval_batch_size=8, max_eval_batches=2, harness=harness
        )
        run_grug(replace(config, eval=evaluation, samples=samples))
    return folder


def rows_of(run_folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]


def test_the_loss_falls_on_real_text(straight_run):
    found, rows = tiny.losses(straight_run), rows_of(straight_run)
    assert sorted(found) == list(range(12))
    assert found[0] == pytest.approx(math.log(257), abs=0.05)  # knows nothing: uniform
    assert found[11] < found[0] - 1.5
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(12))
    assert [row["step"] for row in rows if "eval/loss" in row] == [5, 11]
    assert [row["run_progress"] for row in rows if "run_progress" in row][-1] == 1.0


def test_tasks_are_run_on_the_averaged_weights_in_time_and_kept(straight_run):
    rows = [row for row in rows_of(straight_run) if "lm_eval/colours/acc" in row]
    assert [row["step"] for row in rows] == [5, 11]
    for row in rows:
        kept = json.loads(
            (straight_run / f"artifacts/lm_eval_harness_results.{row['step'] + 1}.json").read_text()
        )
        assert kept["metrics"].items() <= row.items()
        assert (kept["weights"], kept["harness"]["tasks"]) == ("ema", ["colours", "echo"])
        assert row["lm_eval/averages/macro_avg_acc"] == row["lm_eval/colours/acc"]
        assert row["lm_eval/echo/exact_match"] == 0.0
    artifacts = [row["name"] for row in rows_of(straight_run) if row.get("kind") == "artifact"]
    assert artifacts.count("lm_eval_harness_results.12") == 1


def test_a_task_that_is_not_there_is_refused_before_the_first_step(data, tmp_path):
    with local_tasks(tmp_path) as tasks:
        harness = HarnessConfig(tasks=("colour",), include_path=str(tasks))
        config = tiny.run_config(data, tmp_path / "run")
        with pytest.raises(ConfigError, match=r"the task colour \(did you mean colours\?\)"):
            run_grug(replace(config, eval=GrugEvalConfig(harness=harness)))
    assert tiny.losses(tmp_path / "run") == {}


def test_a_run_records_that_its_kernels_were_checked_and_what_its_state_takes(straight_run):
    lines = [row for row in rows_of(straight_run) if row.get("kind") == "summary"]
    summary = {key: value for row in lines for key, value in row.items()}
    assert summary["kernels/attention"] == "chunked"
    assert 0 < summary["kernels/attention_deviation"] < 1e-5
    assert 0 < summary["kernels/loss_deviation"] < 1e-5
    # Weights, two moments of each, and the average, all in float32.
    states = summary["memory/state_bytes_per_device"] / summary["memory/params_bytes_per_device"]
    assert states == pytest.approx(4, rel=0.01)


def test_the_run_folder_holds_what_the_run_was_made_of(straight_run):
    for name in ("config_original.yaml", "config_resolved.json", "train.log", "metrics.jsonl"):
        assert (straight_run / name).stat().st_size > 0
    derived = json.loads((straight_run / "config_resolved.json").read_text())["derived"]
    assert derived["optim"] == {"warmup_steps_effective": 2, "decay_steps_effective": 10}
    assert derived["train"]["total_tokens"] == 12 * 8 * 64
    source = Path(tiny.__file__).parents[1] / "experiments/grug/base/train.py"
    assert (straight_run / "template/train.py").read_text() == source.read_text()
    assert (straight_run / "tokenizer/chomp_tokenizer.json").exists()
    assert (straight_run / "samples/step-12.txt").exists()


def test_a_run_stopped_in_the_middle_continues_bit_for_bit(
    straight_run, data, tmp_path, monkeypatch
):
    config = tiny.run_config(data, tmp_path, ema_beta=0.9)
    config = replace(config, checkpoint=CheckpointConfig(save_interval_s=None, every=5))
    stop_when_logged(monkeypatch, rows=4)
    with pytest.raises(RunInterrupted, match="The same command continues") as stopped:
        run_grug(config)
    assert stopped.value.exit_code == 130
    stopped_at = list_checkpoints(str(tmp_path / "checkpoints"))[-1].metadata.step
    assert 0 < stopped_at < 12
    run_grug(config)
    assert tiny.losses(tmp_path) == tiny.losses(straight_run)
    assert tiny.receipt(tmp_path, 12) == tiny.receipt(straight_run, 12)
    attempts = {row["attempt"] for row in rows_of(tmp_path)}
    assert attempts == {1, 2}


def test_streams_stages_and_growing_batches_continue_bit_for_bit(data, tmp_path, monkeypatch):
    stored, streamed = (replace(data.components[name], weight=1.0) for name in ("sums", "words"))
    stream = StreamConfig(window_documents=8)
    weights = [{"sums": 1.0, "words": 1.0}, {"sums": 0.0, "words": 1.0}]
    mixed = replace(
        data,
        components={
            "sums": stored,
            "words": replace(streamed, train_store=None, stream=stream),
        },
        stages=tuple(MixtureStage(start_step=3 * i, weights=w) for i, w in enumerate(weights)),
        packing_mode="packed",
    )

    def config(folder: Path) -> GrugRunConfig:
        sizes = ((0, 8), (4, 16))
        return replace(tiny.run_config(mixed, folder, steps=6, batch_size=sizes), eval=None)

    run_grug(config(tmp_path / "straight"))
    stop_when_logged(monkeypatch, rows=2)
    with pytest.raises(RunInterrupted):
        run_grug(config(tmp_path / "stopped"))
    saved = list_checkpoints(str(tmp_path / "stopped/checkpoints"))[-1].metadata
    assert 0 < saved.step < 6
    assert saved.data_offset == 8 * saved.step + 8 * max(saved.step - 4, 0)
    assert saved.stream_states is not None
    run_grug(config(tmp_path / "stopped"))
    assert tiny.losses(tmp_path / "stopped") == tiny.losses(tmp_path / "straight")
    assert tiny.receipt(tmp_path / "stopped", 6) == tiny.receipt(tmp_path / "straight", 6)
    rows = {row["step"]: row for row in rows_of(tmp_path / "straight") if "train/loss" in row}
    assert [rows[step]["mixture/stage"] for step in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [rows[step]["mixture/weight/sums"] for step in (2, 3)] == [0.5, 0.0]
    assert rows[5]["mixture/examples/words"] == 12 + 8 + 32
    assert rows[5]["throughput/total_tokens"] == 64 * (4 * 8 + 2 * 16)
    # How often a stream was read is not known; how often a store was, is.
    assert "mixture/epoch/sums" in rows[5]
    assert "mixture/epoch/words" not in rows[5]
    assert 0.5 < rows[5]["packing_utilization"] <= 1.0
    # One program for each size of batch, and none besides.
    assert sum(row["throughput/compile_time"] > 0 for row in rows.values()) == 2


def stop_when_logged(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Send this process a real SIGINT at the moment in which a run logs so many steps."""
    # Not from a thread that looks at the record: on a busy machine it may find the run at its end.
    log, logged = JsonlTracker.log, []

    def log_and_stop(self: JsonlTracker, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        log(self, metrics, step=step)
        if "train/loss" in metrics:
            logged.append(step)
            if len(logged) == rows:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(JsonlTracker, "log", log_and_stop)


def test_a_finished_run_is_left_as_it_is(straight_run, data):
    before = tiny.losses(straight_run)
    run_grug(replace(tiny.run_config(data, straight_run, ema_beta=0.9), eval=None))
    assert tiny.losses(straight_run) == before


def test_a_changed_config_is_refused_with_the_field_that_changed(straight_run, data):
    config = tiny.run_config(data, straight_run, ema_beta=0.9, precision="compute=bfloat16")
    config = replace(config, optimizer=replace(config.optimizer, lr=2e-2))
    described = (straight_run / "config_resolved.json").read_text()
    with pytest.raises(CheckpointError) as refused:
        run_grug(config)
    assert "trainer.precision" in str(refused.value)
    assert "optimizer.lr" in str(refused.value)
    assert (straight_run / "config_resolved.json").read_text() == described


def spoil_step(monkeypatch: pytest.MonkeyPatch, *spoiled: int) -> None:
    """Give those steps a weight that is not a number, as a faulty reader might."""
    host_batch = TrainLoader.host_batch

    def spoilt(self: TrainLoader, step: int, rows: np.ndarray | None = None) -> GrugLmExample:
        batch = host_batch(self, step, rows)
        if step in spoiled:
            batch.loss_weight[0, 0, 3] = np.nan
        return batch

    monkeypatch.setattr(TrainLoader, "host_batch", spoilt)


def saved_steps(run_folder: Path) -> list[int]:
    return [found.metadata.step for found in list_checkpoints(str(run_folder / "checkpoints"))]


def short_run(data: LmDataConfig, folder: Path, **trainer: object) -> GrugRunConfig:
    config = tiny.run_config(data, folder, steps=6, **trainer)
    return replace(config, eval=None, checkpoint=CheckpointConfig(save_interval_s=None, every=2))


def test_a_bad_step_ends_the_run_before_anything_of_it_is_saved(data, tmp_path, monkeypatch):
    spoil_step(monkeypatch, 3)
    with pytest.raises(NonFiniteError, match=r"step 3 gave .*nan.*no checkpoint holds that step"):
        run_grug(short_run(data, tmp_path))
    assert saved_steps(tmp_path) == [2]
    assert sorted(tiny.losses(tmp_path)) == [0, 1, 2]


def test_a_bad_step_is_skipped_and_counted_and_the_count_survives_a_resume(
    data, tmp_path, monkeypatch
):
    spoil_step(monkeypatch, 1, 3)
    stop_when_logged(monkeypatch, rows=4)
    config = short_run(data, tmp_path, nonfinite_policy="skip")
    with pytest.raises(RunInterrupted):
        run_grug(config)
    run_grug(config)
    rows = {row["step"]: row for row in rows_of(tmp_path) if "train/loss" in row}
    assert [rows[step]["train/skipped_steps"] for step in range(6)] == [0, 1, 1, 2, 2, 2]
    # A schedule counts updates: a step after a skipped one runs at the rate that was not used.
    used = config.optimizer.schedule(6)
    assert [rows[step]["lr"] for step in range(6)] == [
        pytest.approx(float(used(update))) for update in (0, 1, 1, 2, 2, 3)
    ]
    # Strict JSON has no NaN; the row says beside it what the value was.
    assert rows[3]["train/loss"] is None
    # What a skipped step saw was not trained on.
    assert rows[3]["tokens_seen"] == rows[2]["tokens_seen"] < rows[4]["tokens_seen"]
    assert saved_steps(tmp_path)[-1] == 6
    assert rows[5]["train/loss"] < rows[0]["train/loss"]


def test_a_bad_step_may_stop_the_run_with_the_last_good_state_saved(data, tmp_path, monkeypatch):
    spoil_step(monkeypatch, 2)
    with pytest.raises(NonFiniteError, match=r"step 2 gave .*without that step is saved at .*step"):
        run_grug(short_run(data, tmp_path, nonfinite_policy="stop"))
    stopped_at = saved_steps(tmp_path)[-1]
    assert stopped_at in (3, 4)  # the host learns of it one step late
    monkeypatch.undo()
    run_grug(short_run(data, tmp_path, nonfinite_policy="stop"))
    assert saved_steps(tmp_path)[-1] == 6


def test_a_bad_step_leaves_the_state_as_it_was_to_the_bit(one_device_mesh):
    before, _ = step_once(one_device_mesh, 1, ema_beta=0.75, steps=0)
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(weights_of(before))]
    after, metrics = step_once(one_device_mesh, 1, ema_beta=0.75, weight_of_first=math.nan)
    assert math.isnan(metrics["train/loss"])
    for leaf, was in zip(jax.tree.leaves(weights_of(after)), expected, strict=True):
        np.testing.assert_array_equal(leaf, was)
    assert int(after.step) == 1  # the batch is behind us all the same


def test_a_signal_that_comes_while_a_step_is_decided_on_saves_that_step(
    data, tmp_path, monkeypatch
):
    is_due = Checkpointer.is_due

    def interrupted(self: Checkpointer, step: int) -> bool:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return is_due(self, step)

    monkeypatch.setattr(Checkpointer, "is_due", interrupted)
    config = replace(short_run(data, tmp_path), checkpoint=CheckpointConfig(save_interval_s=None))
    with pytest.raises(RunInterrupted, match=r"SIGTERM: the state is saved at .*step-3\b"):
        run_grug(config)
    assert saved_steps(tmp_path) == [3]


def test_samples_are_written_once_each_and_without_an_evaluation_too(data, tmp_path):
    config = tiny.run_config(data, tmp_path, steps=3)
    run_grug(replace(config, eval=None, samples=SamplesConfig(every=1, max_tokens=4)))
    assert {path.name for path in (tmp_path / "samples").iterdir()} == {
        "step-1.txt",
        "step-2.txt",
        "step-3.txt",
    }
    # The end of the run finds the last one written.
    kept = [row["name"] for row in rows_of(tmp_path) if row.get("kind") == "artifact"]
    assert kept == [f"sample-step-{step}" for step in (1, 2, 3)]


def test_a_secret_reaches_no_file_of_the_run(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_tell_anybody")
    config = tiny.run_config(data, tmp_path, steps=3)
    logging = replace(config.logging, wandb=WandbConfig(tags=("hf_do_not_tell_anybody",)))
    run_grug(replace(config, eval=None, logging=logging))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [path for path in files if b"hf_do_not_tell_anybody" in path.read_bytes()] == []


def test_bfloat16_weights_train_and_their_gradient_is_measured_in_float32(one_device_mesh):
    exact, narrow = (
        step_once(one_device_mesh, 1, mp=Precision(params=params))
        for params in ("float32", "bfloat16")
    )
    assert narrow[0].params.lm_head.dtype == jnp.bfloat16
    assert narrow[1]["grad/norm/total"] == pytest.approx(exact[1]["grad/norm/total"], rel=0.02)
    assert narrow[1]["train/loss"] == pytest.approx(exact[1]["train/loss"], rel=0.02)


def weights_of(state: GrugTrainState) -> tuple[object, ...]:
    return state.params, state.opt_state, state.ema_params


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 12}, r"batch_size=12 .*Fix: set train\.batch_size to 16"),
        ({"seq_len": 128}, r"seq_len=128 with model\.max_seq_len=64"),
        ({"load_checkpoint": True}, "no complete checkpoint"),
    ],
)
def test_what_cannot_be_right_is_refused_before_training(data, tmp_path, change, words):
    with pytest.raises((ConfigError, CheckpointError), match=words):
        run_grug(tiny.run_config(data, tmp_path, **change))
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("first_tokens", [2, 0])  # unequal counts; a micro-batch without a token
def test_micro_batches_equal_one_big_batch(eight_device_mesh, first_tokens):
    whole, parts = (step_once(eight_device_mesh, n, first_tokens=first_tokens) for n in (1, 2))
    assert whole[1]["train/loss"] == pytest.approx(parts[1]["train/loss"], rel=1e-6)
    trained = 8 * 15 + 8 * max(first_tokens - 1, 0)
    assert whole[1]["trained_tokens"] == parts[1]["trained_tokens"] == trained
    for a, b in zip(*(jax.tree.leaves(each[0].params) for each in (whole, parts)), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def step_once(
    mesh: jax.sharding.Mesh,
    grad_accum: int,
    *,
    ema_beta: float | None = None,
    steps: int = 1,
    first_tokens: int = 2,
    weight_of_first: float | None = None,
    mp: Precision | None = None,
) -> tuple[GrugTrainState, dict[str, float]]:
    """A step (or none) over the same 16 rows, of which the first 8 hold `first_tokens` each."""
    cfg = GrugModelConfig(
        vocab_size=64, hidden_dim=32, intermediate_dim=64, num_layers=1, num_heads=2,
        num_kv_heads=2, max_seq_len=16,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 64, (16, 16)).astype(np.int32)
    segments = np.zeros((16, 16), np.int32)
    segments[:8, first_tokens:] = -1
    rows = GrugLmExample.from_rows(tokens, segments, eos_id=63)
    if weight_of_first is not None:
        rows.loss_weight[0, 0] = weight_of_first
    batch = jax.tree.map(lambda leaf: leaf.reshape(grad_accum, -1, 16), rows)
    mp, optimizer = mp or Precision(), optax.sgd(1.0)
    with jax.set_mesh(mesh):
        state = jax.jit(
            lambda: initial_state(
                cfg, optimizer=optimizer, mp=mp, key=jax.random.key(0), ema_beta=ema_beta
            )
        )()
        # Blocks start as the identity; with weight on their outputs everything has a gradient.
        params = jax.tree.map(lambda p: p + jnp.asarray(0.01, p.dtype), state.params)
        averaged = None if ema_beta is None else jax.tree.map(jnp.copy, params)
        state = replace(state, params=params, ema_params=averaged)
        step = _make_train_step(optimizer, mp, z_loss_weight=1e-3, ema_beta=ema_beta)
        metrics: dict[str, jax.Array] = {}
        for _ in range(steps):
            state, metrics = step(state, place_batch(batch, mesh, batch_axis=1))
    return state, {name: float(value) for name, value in metrics.items()}


def test_averaged_weights_follow_their_formula(one_device_mesh):
    before, after = (step_once(one_device_mesh, 1, ema_beta=0.75, steps=n)[0] for n in (0, 1))
    leaves = (before.params, after.params, after.ema_params)
    for start, moved, averaged in zip(*map(jax.tree.leaves, leaves), strict=True):
        np.testing.assert_allclose(averaged, 0.75 * start + 0.25 * moved, atol=1e-6)
