"""Traces: the steps that were asked for, whatever becomes of the run, and none otherwise."""

import gzip
import json
import logging
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from chomp.errors import ConfigError
from chomp.training import LoopClock
from chomp.training.profiler import ProfilerConfig, profiler_folder, traced_steps

WINDOW = ProfilerConfig(enabled=True, start_step=2, num_steps=2)


def run_config(config: ProfilerConfig, folder: Path, *, total: int) -> SimpleNamespace:
    """The part of a run config that says what is traced, and where."""
    trainer = SimpleNamespace(profiler=config, steps=total, log_dir=None)
    return SimpleNamespace(trainer=trainer, output_path=str(folder), run_id="run")


class Failure(Exception):
    """Something that ends a loop."""


def run(config, folder: Path, *, steps: range, total: int, fails_at: int | None = None) -> None:
    """A loop with the phases of a real one."""
    clock = LoopClock()
    run = run_config(config, folder, total=total)
    with closing(traced_steps(run, clock, start_step=steps.start)) as taken:
        for step in taken:
            with clock.phase("loading"):
                batch = jnp.full((4, 4), step, jnp.float32)
            if step == fails_at:
                raise Failure
            jnp.tanh(batch)
            with clock.phase("checkpoint"):
                pass
            if step == steps[-1]:
                break


def events(folder: Path) -> list[dict]:
    """Events of the one trace in the folder."""
    (path,) = folder.rglob("*.trace.json.gz")
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]


def steps_in_trace(folder: Path) -> list[int]:
    return [int(e["args"]["step_num"]) for e in events(folder) if e.get("name") == "train"]


def test_the_trace_holds_the_steps_of_the_window_and_their_phases(tmp_path):
    run(WINDOW, tmp_path, steps=range(6), total=6)
    assert steps_in_trace(tmp_path) == [2, 3]
    found = Counter(event.get("name") for event in events(tmp_path))
    assert (found["loading"], found["checkpoint"]) == (2, 2)
    assert any("tanh" in str(name) for name in found)  # what the device did


@pytest.mark.parametrize(
    ("steps", "total", "fails_at", "traced"),
    [
        (range(3), 3, None, [2]),  # the run is shorter than the window
        (range(3, 6), 6, None, [3]),  # resumed within it
        (range(6), 6, 3, [2, 3]),  # a step fails
        (range(3), 9, None, [2]),  # stopped early
    ],
)
def test_a_trace_is_written_however_the_loop_ends(tmp_path, steps, total, fails_at, traced):
    if fails_at is None:
        run(WINDOW, tmp_path, steps=steps, total=total)
    else:
        with pytest.raises(Failure):
            run(WINDOW, tmp_path, steps=steps, total=total, fails_at=fails_at)
    assert steps_in_trace(tmp_path) == traced


def test_without_a_profiler_a_loop_leaves_no_trace(tmp_path):
    run(ProfilerConfig(start_step=0), tmp_path, steps=range(6), total=6)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("start", "total", "window"),
    [
        (0, 100, range(5, 30)),
        (0, 12, range(5, 12)),
        (0, 5, range(5, 5)),
        (0, 3, range(5, 5)),
        (10, 100, range(10, 30)),
        (30, 100, range(30, 30)),
    ],
)
def test_the_window_is_cut_to_the_steps_that_are_to_be_done(start, total, window):
    assert ProfilerConfig(enabled=True).window(start, total) == window
    assert not ProfilerConfig().window(start, total)


def test_a_window_that_the_run_never_reaches_is_told_at_the_start(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="chomp"):
        run(WINDOW, tmp_path, steps=range(2), total=2)
    assert "no step will be traced" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_made_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "file").touch()
    run(WINDOW, tmp_path / "file", steps=range(6), total=6)
    assert "the profiler did not start" in caplog.text
    caplog.clear()
    with jax.profiler.trace(tmp_path / "other"):  # there can be only one
        run(WINDOW, tmp_path / "mine", steps=range(6), total=6)
    assert "the profiler did not start" in caplog.text
    assert not list((tmp_path / "mine").rglob("*.json.gz"))
    run(WINDOW, tmp_path / "mine", steps=range(6), total=6)
    assert steps_in_trace(tmp_path / "mine") == [2, 3]


def test_the_time_of_writing_a_trace_is_no_time_of_a_step(tmp_path):
    clock = LoopClock()
    assert list(traced_steps(run_config(WINDOW, tmp_path, total=9), clock, start_step=0)) == [
        *range(9)
    ]
    assert clock.read()["hook"] > 0


def test_traces_lie_in_the_run_folder_or_by_run_in_a_log_folder():
    assert profiler_folder("out/a", run_id="r") == "out/a/profiler"
    assert profiler_folder("out/a", run_id="r", log_dir="logs") == "logs/r/profiler"
    with pytest.raises(ConfigError, match=r"gs://b/r/profiler.*Fix: set train\.log_dir"):
        profiler_folder("out/a", run_id="r", log_dir="gs://b")
