"""The summary of a trace that the profiler wrote: a few steps of a small model on a CPU."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from chomp.kernels.attention import AttentionMask, attention
from chomp.kernels.loss import linear_cross_entropy
from chomp.report.trace import TraceSummary, summary_of_run
from chomp.training import LoopClock, ProfilerConfig
from chomp.training.profiler import traced_steps

STEPS = range(2, 5)


def loss_of(weights: dict[str, jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
    """A layer of attention, a product of its own, and the loss."""
    heads = (x @ weights["in"]).reshape(2, 64, 4, 8)
    mixed = attention(heads, heads, heads, AttentionMask.causal()).reshape(2, 64, 32)
    hidden = jnp.tanh(mixed @ weights["out"])
    return linear_cross_entropy(hidden, weights["head"], labels, jnp.ones((2, 64)))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder with a trace of three steps."""
    folder = tmp_path_factory.mktemp("run")
    config = ProfilerConfig(enabled=True, start_step=STEPS.start, num_steps=len(STEPS))
    clock = LoopClock()
    trainer = SimpleNamespace(profiler=config, steps=6, log_dir=None)
    run = SimpleNamespace(trainer=trainer, output_path=str(folder), run_id="r")
    gradient = jax.jit(jax.grad(loss_of))
    weights = {"in": jnp.ones((16, 32)), "out": jnp.ones((32, 16)), "head": jnp.ones((16, 512))}
    for _ in traced_steps(run, clock, start_step=0):
        with clock.phase("loading"):
            x, labels = jnp.ones((2, 64, 16)), jnp.zeros((2, 64), jnp.int32)
        jax.block_until_ready(gradient(weights, x, labels))
    return folder


@pytest.fixture(scope="module")
def summary(run: Path) -> TraceSummary:
    return summary_of_run(run, None)


def test_steps_phases_and_the_device_are_those_of_the_run(summary):
    assert summary.steps == tuple(STEPS)
    assert summary.device == "CPU 0"
    assert {row.name for row in summary.phases} == {"step", "loading"}
    assert sum(row.ms for row in summary.phases) <= summary.total_ms * (1 + 1e-9)


def test_times_are_those_that_the_profilers_other_file_tells(run, summary):
    (path,) = run.rglob("*.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    steps = [event for event in events if event.get("name") == "train"]
    start, end = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    assert summary.total_ms == pytest.approx((end - start) / 1e3, rel=1e-2)
    runs = sum("hlo_op" in event.get("args", {}) for event in events)
    assert sum(row.count for row in summary.operations) == runs > 0


def test_attention_and_loss_are_told_apart_forward_and_backward(summary):
    found = {row.name: row.ms for row in summary.categories}
    assert min(found["attention"], found["loss"], found["matmul"]) > 0
    assert sum(found.values()) == pytest.approx(summary.busy_ms)
    assert 0 < summary.busy_ms <= summary.total_ms
    places = [row.place for row in summary.operations if row.category == "attention"]
    assert any("transpose(jvp(attention))" in place for place in places)
    assert any(place.startswith("jvp(attention)") for place in places)
    assert not any("cannot be told apart" in note for note in summary.notes)
