"""One process beside the run that reads its record and sends what is new to W&B and TensorBoard.

`metrics.jsonl` is all that the run and this process share. The process may lag, hang or die: the
run neither waits for it nor loses a row. Each sink says itself what it has already, so every row
arrives once, however often the process is killed and started again; `chomp metrics replay` starts
the same process on a record that is complete. The process ends when the run does: a pipe from the
run closes, also when the run is killed, and W&B is then told that it failed.
"""

import fcntl
import importlib.util
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chomp.errors import ChompError, ConfigError
from chomp.storage.files import open_regular, require_links_inside
from chomp.storage.secrets import redacted, without_secrets
from chomp.tracking.logging_config import LoggingConfig, WandbConfig
from chomp.tracking.record import Row, row_of_line
from chomp.tracking.sinks import Sink, TensorBoardSink, WandbSink, WandbStart

# What the end of a run waits for the sinks. The last rows take seconds; a minute spans a slow
# network, and is little beside the wait for the next run of somebody whose job does not end.
FINISH_TIMEOUT_S = 60.0
# What the process says besides, and the lock of the one that may write to the sinks of a run.
SIDECAR_LOG = ".sinks.log"
REPLAY_LOG = ".replay.log"  # the same for sinks that are not the run's own
# From here on somebody at the terminal wonders why the run does not end.
_QUIET_WAIT_S = 3.0
_GRACE_S = 5.0  # for the process to end by itself when its time is over
_RESTART_S = (1.0, 10.0, 60.0)  # after which a killed process is started again, once each
_POLL_S = 0.25
_TIMED_OUT = 75  # exit code
_PACKAGES = str(Path(__file__).parents[2])  # where chomp is imported from, installed or not
_SERVE = "from chomp.tracking.sidecar import serve; serve()"
# What each extra of the package installs.
_MODULES = {"wandb": "wandb", "tensorboard": "tensorboardX"}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SidecarStart:
    """What the process begins with. Plain values: they travel as JSON."""

    record: str  # the metrics file
    log: str
    remedies: Mapping[str, str]  # sink -> the command that sends it the record again
    wandb: WandbStart | None = None
    tensorboard: str | None = None  # the folder of event files
    timeout_s: float | None = FINISH_TIMEOUT_S  # from the end of the run on
    waits_for_others: bool = True  # False: another process on this record sends all there is


# ---- In the run ----------------------------------------------------------------------------------


class Sidecar:
    """The process, started and watched by a thread. Nothing here raises for the sinks' sake.

    `on_address` is called, from that thread, once W&B says where the run is shown. A process that
    is killed is started again, and goes on where its sinks stopped.
    """

    def __init__(
        self, start: SidecarStart, *, on_address: Callable[[str | None], None] = lambda url: None
    ) -> None:
        self._start = start
        self._on_address = on_address
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ending = threading.Event()
        self._is_given_up = threading.Event()
        self.failures: list[str] = []  # what was logged as an error
        self._thread = threading.Thread(target=self._watch, name="sidecar", daemon=True)
        self._thread.start()

    @property
    def process_id(self) -> int | None:
        """The process's id; None before it is there."""
        return None if self._process is None else self._process.pid

    def finish(self) -> None:
        """Wait for the sinks to take the whole record, within limits. May be called twice."""
        with self._lock:
            self._is_ending.set()
            self._close_pipe()
        timeout_s = self._start.timeout_s
        deadline = None if timeout_s is None else time.monotonic() + timeout_s + _GRACE_S
        self._thread.join(_QUIET_WAIT_S)
        if self._thread.is_alive() and deadline is not None:
            titles = " and ".join(self._start.remedies)
            _logger.warning("waiting up to %.0f s for %s to take the last rows", timeout_s, titles)
        self._thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.stop()
            self._fail(f"did not finish within {timeout_s:.0f} s and is left behind")

    def stop(self) -> None:
        """Kill the process at once; the next one on this record goes on where it stopped."""
        with self._lock:
            self._is_given_up.set()
            if self._process is not None and self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # with W&B's own process

    def _watch(self) -> None:
        """Keep one process running until the run ends, and hear what it says."""
        for delay_s in (*_RESTART_S, None):
            with self._lock:
                if self._is_given_up.is_set():
                    return
                try:
                    self._process = process = self._spawn()
                except (OSError, ChompError) as error:
                    self._fail(f"could not be started: {error}")
                    return
                if self._is_ending.is_set():
                    self._close_pipe()
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    with suppress(ValueError):  # killed inside a line
                        self._hear(json.loads(line))
            code = process.wait()
            with self._lock:
                self._close_pipe()
            if self._is_given_up.is_set():
                return
            if code == _TIMED_OUT:
                self._fail(f"did not finish within {self._start.timeout_s:.0f} s")
            elif code > 0 and not self.failures:
                self._fail(f"ended with code {code}; {self._start.log} says why")
            if code >= 0:
                return
            if delay_s is not None:
                titles = " and ".join(self._start.remedies)
                _logger.warning(
                    "the process that sends the record to %s was killed by signal %d and is "
                    "started again; no row is lost",
                    *(titles, -code),
                )
                self._is_ending.wait(delay_s)
        self._fail("was killed again and again")

    def _spawn(self) -> subprocess.Popen[bytes]:
        paths = filter(None, [_PACKAGES, os.environ.get("PYTHONPATH")])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if self._start.wandb is not None and self._start.wandb.mode is not None:
            # W&B's telemetry knows the mode from here alone. Otherwise an offline run waits at its
            # end for an answer of the server: up to 10 s for each request.
            environment["WANDB_MODE"] = self._start.wandb.mode
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        # The description goes by a file: a pipe could be full, and the run would wait.
        with (
            tempfile.TemporaryFile() as description,
            open(open_regular(self._start.log, flags, 0o644), "ab") as log,
        ):
            description.write(json.dumps(asdict(self._start)).encode())
            description.seek(0)
            return subprocess.Popen(
                # -P: the current folder holds a folder named wandb once W&B was there.
                [sys.executable, "-P", "-c", _SERVE, str(description.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[description.fileno()],
                env=environment,
                start_new_session=True,  # Ctrl-C is for the run, which then says what it still logs
            )

    def _hear(self, said: Mapping[str, Any]) -> None:
        if "address" in said:
            self._on_address(said["address"])
        else:
            title, reason = said["sink"], said["failure"]
            self.failures.append(f"{title}: {reason}")
            _logger.error(
                "%s failed: %s. The run goes on and the record keeps every row. To send the "
                "record again: %s",
                *(title, reason, self._start.remedies[title]),
            )

    def _fail(self, what: str) -> None:
        remedies = self._start.remedies
        self.failures.append(what)
        _logger.error(
            "the process that sends the record to %s %s. To send the record again: %s",
            *(" and ".join(remedies), what, "; ".join(remedies.values())),
        )

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


def start_sidecar(
    record: str,
    *,
    folder: str,
    wandb: WandbStart | None = None,
    tensorboard: str | None = None,
    on_address: Callable[[str | None], None] = lambda url: None,
    timeout_s: float | None = FINISH_TIMEOUT_S,
    log: str = SIDECAR_LOG,
    waits_for_others: bool = True,
) -> Sidecar | None:
    """The process that sends a run's record to the sinks that are given; None where none is.

    `folder` is the run folder, `tensorboard` the name of a folder in it, and `log` that of a file.
    """
    remedies = {}
    if wandb is not None:
        remedies["W&B"] = f"chomp metrics replay {folder} --to wandb --id {wandb.run_id}"
    if tensorboard is not None:
        require_links_inside(folder, [tensorboard])
        remedies["TensorBoard"] = f"chomp metrics replay {folder} --to tensorboard"
    if not remedies:
        return None
    start = SidecarStart(
        record=record,
        log=str(Path(folder) / log),
        remedies=remedies,
        wandb=wandb,
        tensorboard=None if tensorboard is None else str(Path(folder) / tensorboard),
        timeout_s=timeout_s,
        waits_for_others=waits_for_others,
    )
    return Sidecar(start, on_address=on_address)


def wandb_start(
    config: LoggingConfig,
    *,
    name: str,
    run_id: str,
    settings: Mapping[str, Any],
    attempt: int = 1,
    config_file: str | None = None,
) -> WandbStart:
    """How the W&B run of a run begins; without secrets. `settings` is the run's resolved config."""
    wandb = config.wandb
    return WandbStart(
        run_id=run_id,
        name=redacted(wandb.run_name or name),
        project=redacted(wandb.project or config.project),
        entity=None if wandb.entity is None else redacted(wandb.entity),
        mode=wandb.mode,
        tags=[redacted(tag) for tag in wandb.tags],
        config=without_secrets(dict(settings)),
        attempt=attempt,
        process_id=os.getpid(),
        config_file=config_file,
    )


def wants_wandb(config: WandbConfig) -> bool:
    """Whether rows go to W&B. Raises `ConfigError` where it is asked for and not installed."""
    if config.mode == "disabled" or config.enabled is False:
        return False
    if config.enabled is None and not os.environ.get("WANDB_API_KEY"):
        return False
    if is_installed("wandb"):
        return True
    if config.enabled is None:
        _logger.warning(
            "WANDB_API_KEY is set, but wandb is not installed: nothing is sent to W&B. Install it "
            "with pip install 'chomp[wandb]', or set logging.wandb.enabled=false"
        )
        return False
    raise not_installed("wandb", "logging.wandb.enabled=true")


def require_installed(config: LoggingConfig) -> None:
    """Raise `ConfigError` for a sink that is asked for and not installed, before a run begins."""
    wants_wandb(config.wandb)
    if config.tensorboard.enabled and not is_installed("tensorboard"):
        raise not_installed("tensorboard", "logging.tensorboard.enabled=true")


def is_installed(extra: str) -> bool:
    """Whether the package that an extra of chomp installs is there; it is not imported."""
    spec = importlib.util.find_spec(_MODULES[extra])
    # W&B's own files lie in ./wandb, which Python takes for a package without a file.
    return spec is not None and spec.origin is not None


def not_installed(extra: str, asked_by: str) -> ConfigError:
    """The error to raise where a package is asked for that is not installed."""
    return ConfigError(
        f"{asked_by}, but {_MODULES[extra]} is not installed",
        allowed=f"an environment with chomp's extra {extra!r}",
        fix=f"pip install 'chomp[{extra}]', or uv run --extra {extra}",
    )


def new_wandb_id(name: str) -> str:
    """A key for a run at W&B that no other has, and that begins with its name."""
    readable = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return f"{readable[:48]}-{secrets.token_hex(4)}"


# ---- In the process ------------------------------------------------------------------------------


def serve() -> None:
    """Send the record to every sink, until the run has ended and nothing is left."""
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        fields = json.load(file)
    wandb = fields.pop("wandb")
    start = SidecarStart(**fields, wandb=None if wandb is None else WandbStart(**wandb))
    answers = os.fdopen(os.dup(1), "w")

    def say(**words: Any) -> None:
        with suppress(OSError):  # a run that was killed hears nothing
            print(json.dumps(words), file=answers, flush=True)

    os.dup2(2, 1)  # whatever W&B prints is no answer of ours
    with suppress(OSError):
        os.nice(10)  # it can wait, and training cannot
    has_ended = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(start, has_ended), daemon=True).start()
    # One process for each run. W&B's own process has this file too: as long as it may still write
    # what a killed process gave it, nobody can tell what is missing.
    try:
        fcntl.flock(2, fcntl.LOCK_EX | (0 if start.waits_for_others else fcntl.LOCK_NB))
    except BlockingIOError:
        return
    except OSError:  # a file system without locks: rows may come twice, and none is lost
        traceback.print_exc()

    failed = threading.Event()

    def send(title: str, open_sink: Callable[[], Sink]) -> None:
        try:
            sink = open_sink()
            if isinstance(sink, WandbSink):
                say(address=sink.url)
            try:
                for row in follow(start.record, has_ended):
                    sink.take(row)
            finally:
                sink.finish()
        except BaseException as error:  # SystemExit too: another sink has not failed
            failed.set()
            text = redacted(traceback.format_exc()).strip()
            print(text, file=sys.stderr, flush=True)
            reason = redacted(str(error)) if isinstance(error, ChompError) else text
            say(sink=title, failure=reason)

    threads = []
    if (folder := start.tensorboard) is not None:
        arguments = ("TensorBoard", lambda: TensorBoardSink(folder))
        threads.append(threading.Thread(target=send, args=arguments))
        threads[0].start()
    if (begun := start.wandb) is not None:
        send("W&B", lambda: WandbSink(begun, folder=Path(start.record).parent))
    for thread in threads:
        thread.join()
    sys.exit(1 if failed.is_set() else 0)


def follow(path: str, has_ended: threading.Event) -> Iterator[Row | None]:
    """Every line of a record, as it is written, to the last one after `has_ended` is set.

    None for a damaged line. A last line that cannot be read may be one that is being written, or
    that the next attempt will move aside: it is not passed before another one follows.
    """
    with open(open_regular(path), "rb") as file:
        position = 0
        while True:
            is_last_look = has_ended.is_set()  # before reading: then nothing is written after it
            file.seek(position)
            while line := file.readline():
                row = row_of_line(line)
                if row is None and position + len(line) >= os.fstat(file.fileno()).st_size:
                    break
                position += len(line)
                yield row
            if is_last_look:
                return
            has_ended.wait(_POLL_S)


def _wait_for_the_end(start: SidecarStart, has_ended: threading.Event) -> None:
    # To the end of the run, whatever ends it. Not by `sys.stdin`: Python aborts (signal 6) if a
    # daemon thread holds the lock of that when the process ends first.
    while os.read(0, 1024):
        pass
    has_ended.set()
    if start.timeout_s is not None:
        time.sleep(start.timeout_s)
        os._exit(_TIMED_OUT)
