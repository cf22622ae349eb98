"""Rows of the record: none lost, none early, and their times add up to the clock on the wall."""

import logging
import math
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from chomp.data import BatchSchedule, LmDataConfig, Mixture, TrainDataset, TrainLoader
from chomp.errors import NonFiniteError
from chomp.tracking import JsonlTracker, Row, metrics, read_metrics, summary_of
from chomp.training import (
    TRAINED_TOKENS,
    LoopClock,
    NonFiniteGuard,
    StepLog,
    WatchConfig,
    build_tagged_eval_callback,
)

SEQ_LEN, EXAMPLES, DEVICES = 8, 6, 4
FLOPS_PER_TOKEN = 100.0
PHASES = ("loading_time", "hook_time", "checkpoint_time", "compile_time")


class NoTokens(TrainDataset):
    """A dataset of which only the numbers are asked, all of one component."""

    def __init__(self, batches: BatchSchedule) -> None:
        self.config = LmDataConfig()
        self.batches = batches
        self.mixture = Mixture({"only": 1.0})
        self.components = {}
        self.stores, self.streams = {}, {}
        self.seq_len = SEQ_LEN


def run_config(
    *, steps: int, log_every: int, watch: WatchConfig | None, dtype: str
) -> SimpleNamespace:
    """The part of a run config that says what is logged."""
    rates = SimpleNamespace(
        hyperparameters=lambda _: lambda step: {"optim/learning_rate": 0.5 / (step + 1)}
    )
    return SimpleNamespace(
        model=SimpleNamespace(flops_per_token=lambda seq_len: FLOPS_PER_TOKEN),
        optimizer=rates,
        trainer=SimpleNamespace(
            steps=steps,
            seq_len=SEQ_LEN,
            precision=f"params=float32,compute={dtype}",
            log_every=log_every,
            watch=watch,
        ),
    )


class Loop:
    """A loop without a model: real clock, real record, metrics as a step returns them."""

    def __init__(self, folder: Path, mesh, **settings) -> None:
        self.path = folder / "metrics.jsonl"
        self.clock = LoopClock()
        self.tracker = JsonlTracker(self.path, attempt=1)
        given = {"start_step": 0, "total_steps": 7, "log_every": 1, "policy": "raise"} | settings
        self.guard = NonFiniteGuard(given["policy"])
        config = run_config(
            steps=given["total_steps"],
            log_every=given["log_every"],
            watch=given.get("watch"),
            dtype=given.get("dtype", "float32"),
        )
        batches = given.get("batches", BatchSchedule(3, grad_accum=2))  # 6 examples a step
        loader = TrainLoader(NoTokens(batches), mesh)
        if "device_kind" in given:  # hardware that no test has
            device = SimpleNamespace(device_kind=given["device_kind"])
            loader.mesh = SimpleNamespace(devices=np.full((1, DEVICES, 1, 1), device))
        run = SimpleNamespace(
            config=config,
            loader=loader,
            tracker=self.tracker,
            clock=self.clock,
            state=SimpleNamespace(params=jnp.zeros(12)),
        )
        self.log = StepLog(
            run,
            guard=self.guard,
            steps=range(given["start_step"], given["total_steps"]),
            tokens_seen=given.get("tokens_seen", 0),
        )

    def add(
        self,
        step: int,
        *,
        loss: float | None = None,
        norm: float = 1.0,
        tokens: float = 10.0,
        own: float = 0.0,
    ) -> None:
        loss = 5.0 - step if loss is None else loss
        self.log.add(
            step,
            {
                "train/loss": jnp.float32(loss),
                "grad/norm/total": jnp.float32(norm),
                "train/own": jnp.float32(own),
                TRAINED_TOKENS: jnp.float32(tokens),
            },
        )

    def add_all(self, losses: dict[int, float]) -> None:
        for step, loss in losses.items():
            self.add(step, loss=loss)

    def rows(self) -> list[Row]:
        return [row for row in read_metrics(self.path) if "kind" not in row]

    def summary(self) -> Row:
        return summary_of(read_metrics(self.path))


@pytest.fixture
def loop(tmp_path, one_device_mesh, monkeypatch):
    loops: list[Loop] = []

    def start(*, measured: float | None = None, **settings) -> Loop:
        if "device_kind" in settings:
            name = "chomp.training.step_log.measured_flops_per_device"
            monkeypatch.setattr(name, lambda devices, dtype: measured)
        loops.append(Loop(tmp_path, one_device_mesh, **settings))
        return loops[-1]

    yield start
    for started in loops:
        started.tracker.finish()


@pytest.mark.parametrize(
    ("log_every", "start", "logged"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5, 6]),
        (3, 0, [2, 5, 6]),  # after 3 and 6 completed steps, and the last
        (7, 0, [6]),
        (100, 0, [6]),
        (2, 3, [3, 5, 6]),
    ],
)
def test_a_row_for_every_period_of_completed_steps_and_for_the_last(loop, log_every, start, logged):
    run = loop(log_every=log_every, start_step=start)
    for step in range(start, 7):
        run.add(step)
    run.log.flush()
    rows = run.rows()
    assert [row["step"] for row in rows] == logged
    assert [row["train/loss"] for row in rows] == [5.0 - step for step in logged]
    assert [row["lr"] for row in rows] == [0.5 / (step + 1) for step in logged]
    assert rows[-1]["run_progress"] == 1.0


def test_no_row_is_lost_or_doubled_whenever_the_log_is_flushed(loop):
    run = loop(total_steps=9)
    for step in range(9):
        run.add(step)
        if step % 4 == 2:
            run.log.flush()
            assert [row["step"] for row in run.rows()] == list(range(step + 1))
    run.log.flush()
    run.log.flush()
    assert [row["step"] for row in run.rows()] == list(range(9))


def test_a_row_is_at_most_one_step_late(loop):
    run = loop()
    for step in range(7):
        run.add(step)
        assert len(run.rows()) >= step


def test_tokens_of_every_step_count_whether_it_is_logged_or_not(loop):
    run = loop(log_every=3, tokens_seen=1000)
    for step in range(7):
        run.add(step, tokens=10.0 + step)
    run.log.flush()
    assert [row["tokens_seen"] for row in run.rows()] == [1033, 1075, 1091]
    assert run.log.tokens_seen == 1091
    for row, steps, trained in zip(run.rows(), (3, 3, 1), (33, 42, 16), strict=True):
        spent = row["throughput/duration"] * steps
        assert row["tokens_per_sec"] * spent == pytest.approx(trained, rel=1e-6)


def test_an_evaluation_carries_its_steps_numbers_where_no_row_does(loop):
    run = loop(log_every=3)
    evaluate = build_tagged_eval_callback({}, run.tracker, run.log.unlogged)
    for step in range(4):
        run.add(step)
        if step in (1, 2):
            run.log.flush()
            evaluate({}, step + 1)
    rows = run.rows()
    assert [row["step"] for row in rows] == [1, 2, 2]
    for row in rows[:2]:
        step = row["step"]
        assert (row["loss"], row["lr"], row["tokens_seen"]) == (
            5.0 - step,
            0.5 / (step + 1),
            10 * (step + 1),
        )
    assert "loss" not in rows[2]  # the row before it has them


def test_the_closing_summary_has_the_speed_by_positions_and_by_trained_tokens(loop):
    run = loop(tokens_seen=1000)
    for step in range(7):
        run.add(step)
    run.log.flush()
    run.log.close()
    summary = run.summary()
    seconds = summary["run/seconds"]
    assert summary["run/tokens_per_sec"] * seconds == pytest.approx(70)
    assert summary["run/tokens_per_second"] * seconds == pytest.approx(7 * EXAMPLES * SEQ_LEN)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_and_leaves_no_row(loop, loss):
    run = loop(log_every=5)
    run.add(0)
    run.log.flush()
    with pytest.raises(NonFiniteError, match=r"step 1 gave train/loss=(nan|inf).*Fix: lower"):
        run.add_all({1: loss, 2: 1.0})
    assert run.rows() == []
    assert run.log.tokens_seen == 10


@pytest.mark.parametrize(
    ("bad", "is_skipped"),
    [({"loss": math.nan}, True), ({"norm": math.inf}, True), ({"own": math.nan}, False)],
)
def test_a_step_is_skipped_for_what_the_device_skips_it_for_and_nothing_else(loop, bad, is_skipped):
    run = loop(policy="skip")
    for step in range(7):
        run.add(step, **(bad if step == 2 else {}))
    run.log.flush()
    rows = run.rows()
    assert [row["train/skipped_steps"] for row in rows] == [0, 0] + [int(is_skipped)] * 5
    # The schedule counts updates: after a skipped one it is a step behind.
    assert rows[-1]["lr"] == 0.5 / (7 - is_skipped)
    assert run.log.tokens_seen == 70 - 10 * is_skipped
    if not is_skipped:
        assert rows[2]["train/own"] is None
        assert rows[2]["train/own/nonfinite"] == "nan"


def test_times_of_rows_sum_to_the_wall_clock(loop):
    before = time.perf_counter()
    run = loop()
    after = time.perf_counter()
    for step in range(7):
        with run.clock.phase("loading"):
            work()
        if step == 0:
            with run.clock.phase("compile"):
                work()
        work()
        last = time.perf_counter()
        run.add(step)
        run.log.flush()
    rows, end = run.rows(), time.perf_counter()
    counted = sum(
        row["throughput/duration"] + sum(row[f"throughput/{name}"] for name in PHASES)
        for row in rows
    )
    # What is not in a row: making the loop, and writing the last row.
    assert end - before >= counted >= last - after
    assert all(row["throughput/loading_time"] > 0 for row in rows)
    assert ["first_step_compile_time_s" in row for row in rows] == [True] + [False] * 6


def test_throughput_follows_from_the_duration_of_a_step(loop):
    run = loop(log_every=7)
    for step in range(7):
        work()
        run.add(step)
    run.log.flush()
    (row,) = run.rows()
    duration = row["throughput/duration"]
    per_example = 3 * SEQ_LEN * FLOPS_PER_TOKEN
    assert row["throughput/examples_per_second"] == pytest.approx(EXAMPLES / duration)
    assert row["throughput/tokens_per_second"] == pytest.approx(EXAMPLES * SEQ_LEN / duration)
    assert row["throughput/total_tokens"] == 7 * EXAMPLES * SEQ_LEN
    assert row["throughput/total_gflops"] == pytest.approx(7 * EXAMPLES * per_example / 1e9)
    summary = run.summary()
    assert summary["throughput/flops_per_token_analytic"] == pytest.approx(FLOPS_PER_TOKEN)
    assert summary["throughput/flops_per_example_analytic"] == pytest.approx(per_example)


@pytest.mark.parametrize(("dtype", "peak"), [("bfloat16", 989.5e12), ("float32", 494.7e12)])
def test_mfu_is_in_percent_of_the_peak_of_all_devices_for_the_dtype_in_use(loop, dtype, peak):
    run = loop(device_kind="NVIDIA H200", dtype=dtype)
    summary = run.summary()
    assert summary["throughput/device_kind"] == "NVIDIA H200"
    assert summary["throughput/theoretical_flops_per_device"] == peak
    assert summary["throughput/theoretical_flops"] == peak * DEVICES
    assert summary[metrics.PARAMETER_COUNT] == 12
    run.add(0)
    run.log.flush()
    (row,) = run.rows()
    flops = row["throughput/gflops_per_second"] * 1e9
    assert row["throughput/mfu"] == pytest.approx(100 * flops / (peak * DEVICES))
    rate = row["throughput/examples_per_second"]
    assert flops == pytest.approx(3 * FLOPS_PER_TOKEN * SEQ_LEN * rate, rel=1e-9)


def test_a_measured_ceiling_has_its_own_mfu(loop):
    run = loop(device_kind="NVIDIA H200", dtype="bfloat16", measured=989.5e12 / 2)
    run.add(0)
    run.log.flush()
    assert run.summary()["throughput/measured_flops_per_device"] == 989.5e12 / 2
    (row,) = run.rows()
    assert row["throughput/mfu_of_measured"] == pytest.approx(2 * row["throughput/mfu"])


@pytest.mark.parametrize(
    ("kind", "dtype", "reason"),
    [
        ("cpu", "bfloat16", "'cpu' has no known peak for bfloat16"),
        ("TPU v4", "float32", "'TPU v4' has no known peak for float32, only for bfloat16"),
    ],
)
def test_without_a_known_peak_the_log_says_why_and_nothing_is_made_up(
    loop, caplog, kind, dtype, reason
):
    with caplog.at_level(logging.INFO, logger="chomp"):
        run = loop(device_kind=kind, dtype=dtype, total_steps=2)
        for step in range(2):
            run.add(step)
        run.log.flush()
        run.log.close()
    assert [record.message.endswith(reason) for record in caplog.records] == [True]
    found = run.summary() | run.rows()[0] | run.rows()[1]
    assert not any("mfu" in key or "theoretical" in key for key in found)
    assert found["throughput/device_kind"] == kind
    assert found["throughput/gflops_per_second"] > 0


def test_tokens_per_wall_second_count_all_the_time_there_was(loop):
    run = loop(log_every=3, total_steps=7, batches=BatchSchedule(((0, 2), (3, 6))))
    for step in range(7):
        with run.clock.phase("loading"):
            work()
        with run.clock.phase("compile"):
            work()
        run.add(step)
    run.log.flush()
    for row, steps, examples in zip(run.rows(), (3, 3, 1), (6, 18, 6), strict=True):
        other = sum(row[f"throughput/{name}"] for name in PHASES)
        wall = row["throughput/duration"] * steps + other
        rate = row["throughput/tokens_per_second_wall"]
        assert rate * wall == pytest.approx(examples * SEQ_LEN, rel=1e-6)
        assert row["throughput/tokens_per_second"] > rate


@pytest.mark.parametrize("rows", [1, 20, 600])
def test_the_closing_percentiles_are_of_the_last_500_rows(loop, rows):
    run = loop(device_kind="NVIDIA L4", dtype="bfloat16", total_steps=rows)
    for step in range(rows):
        run.add(step)
    run.log.flush()
    run.log.close()
    seen = [row["throughput/mfu"] for row in run.rows()][-500:]
    summary = run.summary()
    closing = {key: summary[key] for key in summary if "mfu" in key}
    low, middle, high = np.percentile(seen, (10, 50, 90))
    assert closing == pytest.approx(
        {
            metrics.P10_MFU: low,
            metrics.P50_MFU: middle,
            metrics.P90_MFU: high,
            metrics.MEAN_MFU: np.mean(seen),
        }
    )


def work() -> None:
    """Something that takes a few hundred microseconds."""
    sum(range(20_000))


def test_phases_of_a_clock_sum_to_the_time_between_readings():
    before = time.perf_counter()
    clock = LoopClock()
    after = time.perf_counter()
    for _ in range(3):
        work()
        with clock.phase("loading"):
            work()
        with clock.phase("eval"):
            work()
        early = time.perf_counter()
        seconds = clock.read()
        late = time.perf_counter()
        assert early - after <= sum(seconds.values()) <= late - before
        assert all(seconds[name] > 0 for name in ("step", "loading", "eval"))
        assert seconds["checkpoint"] == seconds["compile"] == seconds["hook"] == 0
        before, after = early, late


def test_a_phase_inside_another_is_counted_once():
    start = time.perf_counter()
    clock = LoopClock()
    with clock.phase("eval"):
        work()
        with clock.phase("loading"):
            work()
        work()
    seconds = clock.read()
    assert min(seconds["eval"], seconds["loading"]) > 0
    assert sum(seconds.values()) <= time.perf_counter() - start


def test_a_clock_read_inside_a_phase_goes_on_with_that_phase():
    clock = LoopClock()
    with clock.phase("checkpoint"):
        work()
        first = clock.read()
        work()
    second = clock.read()
    assert first["checkpoint"] > 0
    assert second["checkpoint"] > 0
    assert second["step"] >= 0


def test_a_phase_that_fails_still_counts():
    clock = LoopClock()
    with pytest.raises(ZeroDivisionError), clock.phase("hook"):
        _ = sum(range(20_000)) / 0
    assert clock.read()["hook"] > 0
