"""Shared by the executor tests: plans, runs, and real processes to kill."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from executor_samples import run_here

from chomp.executor import ExecutorStep, PlannedStep, StepFailure, plan_steps, run_plan

Snapshot = dict[str, tuple[int, bytes]]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Where outputs go; not there yet."""
    return str(tmp_path / "outputs")


@pytest.fixture
def planned(prefix: str) -> Callable[..., list[PlannedStep]]:
    """Plans steps below the prefix."""
    return lambda *steps, force=(): plan_steps(steps, prefix=prefix, force=force)


@pytest.fixture
def ran(prefix: str) -> Callable[..., list[StepFailure]]:
    """Plans steps below the prefix and runs the plan in this process."""

    def run(*steps: ExecutorStep, force: tuple[str, ...] = ()) -> list[StepFailure]:
        plan = plan_steps(steps, prefix=prefix, force=force)
        return run_plan(plan, run_here)

    return run


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[], Snapshot]:
    """Every file and folder below the test's own folder, with its time and its content."""

    def take() -> Snapshot:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in tmp_path.rglob("*")
        }

    return take


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python process from source text; all of them are dead when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start_process(source: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        return process

    yield start_process
    for process in started:
        process.kill()
        process.communicate()
