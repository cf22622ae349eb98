"""Shared by the storage tests: places to write in, and real processes to kill."""

import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from places import put_folder


@pytest.fixture
def memory_root() -> Iterator[str]:
    """An empty folder in the memory filesystem."""
    root = f"memory://{uuid.uuid4().hex}"
    put_folder(root)
    yield root
    fsspec.filesystem("memory").rm(root, recursive=True)


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path, memory_root: str) -> str:
    """An empty folder to read from, once local and once in memory."""
    return str(tmp_path) if request.param == "local" else memory_root


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python process from source text; all of them are dead when the test ends."""
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def start_process(source: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield start_process
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Polls a condition until it holds, and fails after a bounded time."""

    def poll(condition: Callable[[], bool], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true in time"
            time.sleep(0.005)

    return poll
