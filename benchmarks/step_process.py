"""A training step in a process of its own, which takes steps when it is asked to and times them.

Ours and the peer's never share a process: memory, threads and time to the first step are each
side's own. Requests and answers are lines of JSON. Standard library only: the peer's interpreter
may have nothing else.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def serve(report: Mapping[str, Any], take_steps: Callable[[str, int], None]) -> None:
    """The process's own side: say how the start went, then take steps until nobody asks.

    `take_steps(way, count)` comes back when all of them are done.
    """
    print(json.dumps(report), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        take_steps(request["way"], request["steps"])
        seconds = (time.perf_counter() - begin) / request["steps"]
        print(json.dumps({"seconds": seconds}), flush=True)


class StepProcess:
    """A process that serves steps; `report` is what it said of its start."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=dict(environment),
        )
        self.report = self._answer()

    def __enter__(self) -> "StepProcess":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def seconds(self, way: str, steps: int) -> float:
        """Mean seconds of a step over `steps` steps of one way."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"way": way, "steps": steps}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print what they like before
                return json.loads(line)
        # What went wrong is on the console already: its errors are ours.
        raise SystemExit(f"{' '.join(self._command)} ended with code {self._process.wait()}")


def clean_environment(caches: str) -> dict[str, str]:
    """This process's environment, but compilers find nothing of an earlier run."""
    return os.environ | {
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
        "TRITON_CACHE_DIR": f"{caches}/triton",
    }
