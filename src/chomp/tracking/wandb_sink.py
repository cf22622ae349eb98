"""Weights & Biases as a tracker: one W&B run for a run folder, in a process of its own.

W&B refuses a step below its newest, and a resumed run repeats steps. So rows are logged on an axis
of our own, `global_step`, with their `attempt` beside it, and the overlap shows as two lines. W&B's
own step counts rows over all attempts: offline it would begin at 0 in each, and rows of the next
one would take the place of those before it when they are sent.

W&B takes over `sys.exit`, asks for keys at the terminal, and waits for its service when the
interpreter ends: with a service that hangs, a process that has W&B in it never ends. The process
here is spoken to through a pipe and can be killed. When the run is killed, the pipe ends, and the
process marks the W&B run as failed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import IO, Any

from chomp.errors import LaunchError
from chomp.tracking.metrics import GLOBAL_STEP, RUN_OUTCOME
from chomp.tracking.record import histograms_of
from chomp.tracking.run_files import FINISHED, PIECE_FINISHED
from chomp.tracking.tracker import MetricValue, flat_metrics

# What W&B itself waits for an upload at the end, less than the run would wait for it: what is left
# then lies in W&B's own folder, and its `wandb sync` sends it.
_UPLOAD_TIMEOUT_S = 45.0
_MAX_ARTIFACT_NAME = 128
_PACKAGES = str(Path(__file__).parents[2])  # where chomp is imported from, installed or not
_SERVE = "from chomp.tracking.wandb_sink import serve; serve()"
_TOLD_BYTES = 2000  # the last of what the process said when it failed
_KILL_TIMEOUT_S = 5.0  # a killed process is gone at once, unless a disk holds it


@dataclass(frozen=True, kw_only=True)
class WandbStart:
    """All that a W&B run begins with. Plain values: it travels to another process as JSON."""

    run_id: str  # W&B's key of the run: the same in every attempt
    name: str
    project: str
    entity: str | None = None
    mode: str | None = None  # None: WANDB_MODE, or online
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)  # without secrets
    attempt: int = 1
    process_id: int | None = None  # whose memory and load W&B shows
    rows_before: int = 0  # of earlier attempts


class WandbSink:
    """A W&B run, made or continued at once; raises what `wandb.init` raises.

    For a process of its own (`WandbProcess`): W&B hooks itself into the exit of the one it is in.
    """

    def __init__(self, start: WandbStart) -> None:
        import wandb  # noqa: PLC0415  # an extra, and half a second

        self._attempt, self._rows_before = start.attempt, start.rows_before
        self._outcome: object = None
        if (start.mode or os.environ.get("WANDB_MODE", "online")) == "online":
            _require_login()
        settings = wandb.Settings(console="off", silent=True, finish_timeout=_UPLOAD_TIMEOUT_S)
        if start.process_id is not None:
            settings.x_stats_pid = start.process_id
        self._run = wandb.init(
            id=start.run_id,
            name=start.name,
            project=start.project,
            entity=start.entity,
            mode=start.mode,  # type: ignore[arg-type]
            tags=start.tags,
            config=start.config,
            resume="allow",
            allow_val_change=True,  # a resumed run may have other cosmetic settings
            settings=settings,
        )
        self._run.define_metric(GLOBAL_STEP, hidden=True)
        self._run.define_metric("*", step_metric=GLOBAL_STEP)

    @property
    def url(self) -> str | None:
        """Where the run is shown; None offline."""
        return self._run.url

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Log the row; an attempt in it, as in a record's row, stands."""
        import wandb  # noqa: PLC0415

        plain = flat_metrics(metrics)
        row: dict[str, Any] = {"attempt": self._attempt, **plain, GLOBAL_STEP: step}
        for name, found in histograms_of(plain).items():
            bins: Any = (found.counts, found.edges)  # lists do as well as the arrays it declares
            row[name] = wandb.Histogram(np_histogram=bins)
        number = max(self._run.step, self._rows_before)  # online, W&B may know of more
        kept = {key: value for key, value in row.items() if value is not None}
        self._run.log(kept, step=number, commit=True)

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Set values of the run's summary."""
        values = flat_metrics(metrics)
        self._outcome = values.get(RUN_OUTCOME, self._outcome)
        self._run.summary.update(values)

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Upload the file as an artifact of type `kind`, under a name with the run's id in it."""
        import wandb  # noqa: PLC0415

        artifact = wandb.Artifact(_artifact_name(name, self._run.id), type=kind)
        artifact.add_file(str(Path(path)))
        self._run.log_artifact(artifact)

    def finish(self) -> None:
        """Upload what is left, and mark the run as failed unless its summary says it ended well."""
        self._run.finish(exit_code=0 if self._outcome in (FINISHED, PIECE_FINISHED) else 1)


def _require_login() -> None:
    import wandb  # noqa: PLC0415

    # W&B would ask for a key at the terminal, in the middle of a run.
    if not wandb.login(prompt=False, verify=False):
        raise LaunchError(
            "logging.wandb is enabled, but there is no W&B login",
            allowed="an API key, or mode offline",
            fix="set WANDB_API_KEY, run `wandb login`, or set logging.wandb.mode=offline",
        )


def _artifact_name(name: str, run_id: str) -> str:
    """W&B's artifacts share one namespace in a project, and take few characters in a name."""
    return re.sub(r"[^\w.-]", "-", f"{name}-{run_id}")[-_MAX_ARTIFACT_NAME:]


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
