"""Rows of the record: none lost, none early, and their times add up to the clock on the wall."""

import math
import time
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from chomp.data import BatchSchedule, LmDataConfig, Mixture, TrainDataset, TrainLoader
from chomp.errors import NonFiniteError
from chomp.tracking import JsonlTracker, Row, read_metrics, summary_of
from chomp.training import (
    TRAINED_TOKENS,
    LoopClock,
    NonFiniteGuard,
    StepLog,
    WatchConfig,
    build_tagged_eval_callback,
)

SEQ_LEN, EXAMPLES = 8, 6
FLOPS_PER_TOKEN = 100.0
PHASES = ("loading_time", "hook_time", "checkpoint_time", "compile_time")


class NoTokens(TrainDataset):
    """A dataset of which only the numbers are asked: 6 examples a step, all of one component."""

    def __init__(self) -> None:
        self.config = LmDataConfig()
        self.batches = BatchSchedule(3, grad_accum=2)
        self.mixture = Mixture({"only": 1.0})
        self.components = {}
        self.seq_len = SEQ_LEN


def run_config(*, steps: int, log_every: int, watch: WatchConfig | None) -> SimpleNamespace:
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
            precision="params=float32,compute=float32",
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
            steps=given["total_steps"], log_every=given["log_every"], watch=given.get("watch")
        )
        self.log = StepLog(
            config,
            TrainLoader(NoTokens(), mesh),
            self.tracker,
            clock=self.clock,
            guard=self.guard,
            steps=range(given["start_step"], given["total_steps"]),
            parameter_count=12,
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


@pytest.fixture
def loop(tmp_path, one_device_mesh):
    loops: list[Loop] = []

    def start(**settings) -> Loop:
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
    summary = summary_of(read_metrics(run.path))
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
    summary = summary_of(read_metrics(run.path))
    assert summary["throughput/flops_per_token_analytic"] == pytest.approx(FLOPS_PER_TOKEN)
    assert summary["throughput/flops_per_example_analytic"] == pytest.approx(per_example)


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
