"""The W&B sink in a process of its own, which is spoken to through a pipe.

W&B takes over `sys.exit`, asks for keys at the terminal, and waits for its service when the
interpreter ends: with a service that hangs, a process that has W&B in it never ends. This one can
be killed. When the run is killed, the pipe ends, and the process marks the W&B run as failed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any

from chomp.errors import LaunchError
from chomp.tracking.protocol import MetricValue, flat_metrics
from chomp.tracking.wandb_sink import WandbSink, WandbStart

_SERVE = "from chomp.tracking.wandb_process import serve; serve()"
_PACKAGES = str(Path(__file__).parents[2])  # where chomp is imported from, installed or not
_TOLD_BYTES = 2000  # the last of what the process said when it failed
_KILL_TIMEOUT_S = 5.0  # a killed process is gone at once, unless a disk holds it


@dataclass(frozen=True)
class _End:
    """How the process ended, and its last words."""

    code: int
    said: str


class WandbProcess:
    """A tracker that hands every call to a `WandbSink` in another process.

    The first call waits until W&B has begun and then gives `on_open` the run's address. A process
    that ended raises `LaunchError` with what it said.
    """

    def __init__(
        self, start: WandbStart, *, on_open: Callable[[str | None], None] = lambda url: None
    ) -> None:
        self._on_open = on_open
        self._is_open = False
        self._end: _End | None = None
        self._ending = threading.Lock()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed once it has ended
        paths = filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if start.mode is not None:
            # W&B's telemetry knows the mode from here alone. Otherwise an offline run waits at its
            # end for an answer of the server: up to 10 s for each request.
            environment["WANDB_MODE"] = start.mode
        self._process = subprocess.Popen(
            # -P: the current folder holds a folder named wandb as soon as W&B was there once.
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the run, which then says what it still logs
        )
        self._send({"start": asdict(start)})

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Hand over the row."""
        self._call("log", flat_metrics(metrics), step=step)

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Hand over the values."""
        self._call("log_summary", flat_metrics(metrics))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Hand over where the file is; the process reads it."""
        self._call("log_artifact", os.path.abspath(path), name=name, kind=kind)

    def finish(self) -> None:
        """Wait until W&B has taken everything and its process has ended; raises if it failed."""
        if self._end is not None:
            return
        self._call("finish")
        if self._ended().code != 0:
            raise self._failure()

    def abandon(self) -> None:
        """Kill the process. May be called at any time, by any thread: what waits for it fails."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_TIMEOUT_S)

    def _call(self, method: str, *arguments: Any, **keywords: Any) -> None:
        if not self._is_open:
            self._is_open = True
            self._on_open(self._address())
        self._send({"method": method, "arguments": arguments, "keywords": keywords})

    def _address(self) -> str | None:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._failure()
        return json.loads(line)["url"]

    def _send(self, words: Mapping[str, Any]) -> None:
        stdin = self._process.stdin
        # Asked, since the pipe does not always tell: W&B's own process has it as well, and may live
        # for a moment longer.
        if stdin is None or self._process.poll() is not None:
            raise self._failure()
        line = memoryview(json.dumps(words).encode() + b"\n")  # NaN too: Python is at both ends
        try:
            while line:
                line = line[stdin.write(line) :]
        except (BrokenPipeError, ValueError) as error:
            # A ValueError is a pipe that another thread has closed, on its way to the end.
            raise self._failure() from error

    def _failure(self) -> LaunchError:
        end = self._ended()
        return LaunchError(f"the W&B process ended with code {end.code}: {end.said}")

    def _ended(self) -> _End:
        """How the process ended, once it has; its pipe is closed first, which makes it end."""
        with self._ending:
            if self._end is None:
                for pipe in (self._process.stdin, self._process.stdout):
                    assert pipe is not None
                    pipe.close()
                code = self._process.wait()
                with self._said as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - _TOLD_BYTES))
                    said = file.read().decode(errors="replace").strip()
                self._end = _End(code, said or "it said nothing")
            return self._end


def serve() -> None:
    """What the process does: make the sink, then every call that comes in, to the end."""
    words = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever W&B prints is no answer of ours
    _answer_calls(words, answers)


def _answer_calls(words: IO[bytes], answers: IO[str]) -> None:
    sink = WandbSink(WandbStart(**json.loads(words.readline())["start"]))
    print(json.dumps({"url": sink.url}), file=answers, flush=True)
    failures = 0
    for line in words:
        if not line.endswith(b"\n"):
            break  # the run was killed while it wrote this
        call = json.loads(line)
        if call["method"] == "finish":
            break
        try:
            getattr(sink, call["method"])(*call["arguments"], **call["keywords"])
        except Exception:  # later rows are still tried
            failures += 1
            if failures == 1:
                traceback.print_exc()
    sink.finish()
    if failures:
        sys.exit(f"{failures} rows failed, the first as above")
