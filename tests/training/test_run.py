"""The run around a loop: hooks in their time, metrics of one's own, and what a mistake costs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from chomp import training
from chomp.checkpoint import CheckpointConfig, list_checkpoints
from chomp.data import LmDataConfig
from chomp.errors import ChompError, ConfigError, HookError, NonFiniteError, RunInterrupted
from chomp.tracking import Row, latest_rows, read_metrics, summary_of
from experiments.grug.base import train
from experiments.grug.base.train import GrugRunConfig
from tests import tiny

STEPS = 6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> LmDataConfig:
    return tiny.build_data(tmp_path_factory.mktemp("tiny-data"))


def config_of(data: LmDataConfig, folder: Path, **trainer: Any) -> GrugRunConfig:
    config = tiny.run_config(data, folder, **{"steps": STEPS, **trainer})
    return replace(config, eval=None, checkpoint=CheckpointConfig(save_interval_s=None))


def loop(
    config: GrugRunConfig,
    add_hooks: Callable[[training.Run], None] = lambda run: None,
    extra: Callable[[dict[str, Any]], dict[str, Any]] = lambda metrics: metrics,
) -> None:
    """Base's loop, with hooks of one's own, and with what a step returns changed."""
    with training.open_run(config, template=train.__file__, fresh_state=train.fresh_state) as run:
        step = run.compile(train.train_step_of(run.config))
        add_hooks(run)
        state = run.state
        for _, batch in run.batches():
            state, metrics = step(state, batch)
            run.after_step(state, extra(dict(metrics)))
        run.finish(state)


def rows_of(folder: Path) -> list[Row]:
    return latest_rows(read_metrics(folder / "metrics.jsonl"))


@pytest.fixture(scope="module")
def unbroken(data: LmDataConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without hooks."""
    folder = tmp_path_factory.mktemp("unbroken")
    loop(config_of(data, folder))
    return folder


def test_hooks_are_called_in_their_time_with_the_state_of_that_step(data, tmp_path):
    calls: list[tuple[str, int, int]] = []

    def note(name: str) -> training.Hook:
        return lambda state, completed: calls.append((name, completed, int(state.step)))

    def add(run: training.Run) -> None:
        run.every(4, note("every 4"))
        run.every(3, note("every 3, at the end"), at_end=True)
        run.every(None, note("at the end"), at_end=True)
        run.every(None, note("never"))

    loop(config_of(data, tmp_path), add)
    assert calls == [
        ("every 3, at the end", 3, 3),
        ("every 4", 4, 4),
        ("every 3, at the end", 6, 6),  # once, after the last save
        ("at the end", 6, 6),
    ]


def test_any_metric_of_a_step_and_of_a_hook_is_in_the_record(data, tmp_path, unbroken):
    def with_more(metrics: dict[str, Any]) -> dict[str, Any]:
        return metrics | {"train/z_loss": metrics["train/loss"] * 0 + 0.25}

    def add(run: training.Run) -> None:
        run.every(2, lambda state, completed: run.log({"my/norm": 0.5 * completed}))

    loop(config_of(data, tmp_path), add, with_more)
    rows = rows_of(tmp_path)
    assert [row["train/z_loss"] for row in rows] == [0.25] * STEPS
    assert [(row["step"], row["my/norm"]) for row in rows if "my/norm" in row] == [
        (1, 1.0),
        (3, 2.0),
        (5, 3.0),
    ]
    assert tiny.losses(tmp_path) == tiny.losses(unbroken)


def test_a_hook_that_raises_is_named_and_costs_no_step(data, tmp_path, unbroken, caplog):
    def measure(state: Any, completed: int) -> float:
        return 1.0 / (completed - 4)

    with pytest.raises(HookError) as failed:
        loop(config_of(data, tmp_path), lambda run: run.every(2, measure))
    error = failed.value
    assert (error.hook, type(error.__cause__)) == ("measure", ZeroDivisionError)
    assert "measure after 4 steps: ZeroDivisionError" in error.given
    assert "step-4" in error.fix
    assert "1.0 / (completed - 4)" in caplog.text  # where it happened
    assert [found.metadata.step for found in list_checkpoints(str(tmp_path / "checkpoints"))] == [4]
    assert summary_of(read_metrics(tmp_path / "metrics.jsonl"))["run/outcome"] == "HookError"
    loop(config_of(data, tmp_path))  # corrected
    assert tiny.receipt(tmp_path, STEPS) == tiny.receipt(unbroken, STEPS)


def test_a_hook_that_raises_at_the_end_leaves_the_last_state_saved(data, tmp_path, unbroken):
    def measure(state: Any, completed: int) -> None:
        raise OSError("no room")

    with pytest.raises(HookError) as failed:
        loop(config_of(data, tmp_path), lambda run: run.every(None, measure, at_end=True))
    assert f"step-{STEPS}" in failed.value.fix
    assert tiny.receipt(tmp_path, STEPS) == tiny.receipt(unbroken, STEPS)


@pytest.mark.parametrize(
    "stop", [RunInterrupted("asked to", exit_code=75), NonFiniteError("a loss of nan")]
)
def test_a_hook_may_end_the_run_on_purpose(data, tmp_path, stop: ChompError):
    def end(state: Any, completed: int) -> None:
        raise stop

    with pytest.raises(type(stop)):
        loop(config_of(data, tmp_path), lambda run: run.every(2, end))


def test_after_max_steps_the_state_is_saved_and_the_run_stops_wherever_it_began(
    data, tmp_path, unbroken
):
    for start in (0, 2, 4):
        if start < 4:
            with pytest.raises(RunInterrupted, match=f"--max-steps: .*step-{start + 2}") as ended:
                loop(config_of(data, tmp_path, max_steps=2))
            assert ended.value.exit_code == 0
        else:
            loop(config_of(data, tmp_path, max_steps=2))  # the last piece ends as any run
        found = list_checkpoints(str(tmp_path / "checkpoints"))
        assert found[-1].metadata.step == start + 2
    assert tiny.receipt(tmp_path, STEPS) == tiny.receipt(unbroken, STEPS)


@pytest.mark.parametrize("steps", [0, -5])
def test_a_period_that_is_no_number_of_steps_is_refused(data, tmp_path, steps: int):
    with pytest.raises(ConfigError) as refused:
        loop(config_of(data, tmp_path), lambda run: run.every(steps, lambda state, completed: None))
    assert f"every({steps}" in refused.value.given


def test_a_loop_that_forgets_after_step_is_told(data, tmp_path):
    config = config_of(data, tmp_path)
    with (
        training.open_run(config, template=train.__file__, fresh_state=train.fresh_state) as run,
        pytest.raises(ChompError) as refused,
    ):
        for _ in run.batches():
            pass
    assert "after_step(0)" in refused.value.given
    assert "run.after_step" in refused.value.allowed


def test_a_loss_that_goes_missing_in_the_loop_is_refused(data, tmp_path):
    def without_loss(metrics: dict[str, Any]) -> dict[str, Any]:
        return {"my/own": jnp.float32(1)}

    with pytest.raises(ChompError) as refused:
        loop(config_of(data, tmp_path), extra=without_loss)
    assert "train/loss" in refused.value.allowed
