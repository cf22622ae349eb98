"""Processes that live a part of a run: forks of one that has done the imports, or from scratch.

Imports take seconds, and a run that is killed twenty times would do them twenty times.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO

from chomp.cli.given_config import GivenConfig
from chomp.errors import LaunchError, message

DEVICE_COUNT = "JAX_NUM_CPU_DEVICES"
# By its name, as a program: it imports JAX, and the command that uses this.
PARENT = "chomp.cli.verify_parent"


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a config says about its run, and under which names the run keeps things."""

    steps: int
    has_keep_policies: bool  # permanent checkpoints by a list of policies, not by one number
    record: str
    checkpoints: str
    metadata: str
    unfinished: str
    can_fork: bool


@dataclass(frozen=True)
class Started:
    """A process that was started, the first of a group of its own."""

    pid: int
    wait: Callable[[float], int | None]  # up to so many seconds; the exit code once it has ended

    def kill(self) -> None:
        """End it and whatever it started by SIGKILL, at once; nothing if it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def started_from_scratch(
    words: Sequence[str], *, log: str, environment: Mapping[str, str]
) -> Started:
    """`chomp WORDS...` as anybody would start it; what it says goes to a file."""
    with open(log, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "chomp", *words],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )

    def wait(timeout_s: float) -> int | None:
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    return Started(process.pid, wait)


class Forks:
    """Starts `chomp` commands about one config, each a fork of a process that has loaded it."""

    def __init__(self, given: GivenConfig, *, environment: Mapping[str, str]) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", PARENT, json.dumps(asdict(given))],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that `select` and `readline` see the same
            start_new_session=True,  # Ctrl-C is for the command that uses this
        )

    def facts(self) -> RunFacts:
        """What the config says; waits for the imports. Raises what is wrong with the config."""
        told = json.loads(self._line())
        if "error" in told:
            error = LaunchError(told["error"])
            error.exit_code = told["exit_code"]
            raise error
        return RunFacts(**told)

    def start(self, words: Sequence[str], *, log: str, environment: Mapping[str, str]) -> Started:
        """`chomp WORDS...` in a fork; what it says goes to a file. One at a time."""
        wish = {"words": list(words), "log": log, "environment": dict(environment)}
        _pipe(self._parent.stdin).write(json.dumps(wish).encode() + b"\n")

        def wait(timeout_s: float) -> int | None:
            ready, _, _ = select.select([_pipe(self._parent.stdout)], [], [], timeout_s)
            return int(self._line()) if ready else None

        return Started(int(self._line()), wait)

    def close(self) -> None:
        """End the parent of the forks, whatever it is at; the last of them must have ended."""
        self._parent.kill()
        self._parent.wait()
        _pipe(self._parent.stdin).close()
        _pipe(self._parent.stdout).close()

    def _line(self) -> bytes:
        line = _pipe(self._parent.stdout).readline()
        if not line:
            raise LaunchError(
                message(
                    given="the process that was to start the runs has ended",
                    allowed="a launch file that can be loaded",
                    fix="see its own words above",
                )
            )
        return line


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None, "it was asked for when the process was started"
    return end
