"""The processes of a run: how one joins the others, talks to them, and leaves them when it fails.

They talk over the key-value store that JAX starts them with: small values and meeting points, never
arrays, so nothing here waits for a step or makes one wait. With a single process all of it is a
no-op. Every process makes the same calls of a name in the same order; calls from another thread
have names of their own.

Left to itself, a process that fails alone waits at its exit for the others (300 s), while they wait
for it inside a step. Here it leaves at once: connections close, and the others fail too. Where
nothing closes (a machine is gone, or a save waits for its part), JAX ends the others after 100 s
without a sign of life, or after CHOMP_HEARTBEAT_S.
"""

import atexit
import errno
import json
import logging
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

from chomp.errors import ConfigError, LaunchError, RunInterrupted, private_names

# Longer than any compile or checkpoint that others may rightly be busy with.
TIMEOUT_S = 600.0

ADDRESS = "JAX_COORDINATOR_ADDRESS"
BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
HEARTBEAT = "CHOMP_HEARTBEAT_S"
# A file in which a launcher wants to find the address, if process 0 found it taken.
TAKEN_FILE = "CHOMP_ADDRESS_TAKEN_FILE"
_PORT = "JAX_COORDINATOR_PORT"
# What a job was given; set in a batch script and in a shell of `salloc` as well.
_SLURM_JOB_COUNT = "SLURM_NTASKS"
# The processes that `srun` started: 1 in a shell that it started.
_SLURM_COUNT = "SLURM_STEP_NUM_TASKS"
# What `srun` sets for each of its processes, and JAX reads.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID", _SLURM_JOB_COUNT)
# The range from which JAX takes a port for SLURM's jobs: above that of outgoing connections.
_SLURM_PORTS = range(61440, 65536)
# Steps of a job whose ports come before those of the next job; odd, so that all ports are used.
_STEPS_APART = 61

# The others lose their connections when process 0 leaves, so it waits this long for them.
_LAST_WORDS_S = 3.0
_LEAVING = "leaving"
# Process 0 may be this many uses of a name ahead of the others; in steps it is at most two.
_KEPT_USES = 64
_ANSWER = "answer"

log = logging.getLogger(__name__)

_uses: Counter[str] = Counter()
_uses_lock = threading.Lock()
_exit_code: int | None = None


class CoordinatorAddressTaken(LaunchError):
    """Another program listens where process 0 is to wait for the others."""

    exit_code = 98  # the number of EADDRINUSE


# ---- Joining ---------------------------------------------------------------------------------


def join_processes(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process is now one of several, as the environment (or a launcher) says.

    JAX_COORDINATOR_ADDRESS (host and port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID make
    it one, or else SLURM's `srun`, if it started more than one; to be called before JAX looks for
    devices. Waits for the others for up to 300 s. A launcher that called
    `jax.distributed.initialize` itself has done all this.
    """
    if jax.distributed.is_initialized():
        return jax.process_count() > 1
    environ = os.environ if environ is None else environ
    given = {name: environ[name] for name in (ADDRESS, COUNT, INDEX) if environ.get(name)}
    options: dict[str, Any] = {}
    # The address alone is not enough: clusters that JAX knows by itself set it too.
    if COUNT in given or INDEX in given:
        try:
            count, index = int(given[COUNT]), int(given[INDEX])
        except (KeyError, ValueError):
            count, index = 0, 0
        if ADDRESS not in given or not 0 <= index < count:
            raise ConfigError(
                ", ".join(f"{name}={given.get(name, '')}" for name in (ADDRESS, COUNT, INDEX)),
                allowed="host:port of process 0, the number of processes, and an index below it",
                fix="set all three in every process, or none of them to train with one",
            )
        address = given[ADDRESS]
    elif _is_of_srun(environ):
        address, count = environ.get(ADDRESS) or _slurm_address(environ), int(environ[_SLURM_COUNT])
        index = int(environ["SLURM_PROCID"])
        options = {"cluster_detection_method": "slurm", "local_device_ids": _own_gpus(environ)}
    else:
        return False
    if count == 1:
        return False
    heartbeat = environ.get(HEARTBEAT, "100")
    if not heartbeat.isdigit() or int(heartbeat) == 0:
        raise ConfigError(
            f"{HEARTBEAT}={heartbeat}",
            allowed="whole seconds, above 0",
            fix="100 forgives a machine that stalls for a while; 10 is for tests",
        )
    # Where JAX listens: at all addresses of this machine, unless one is set. "::" is all of them,
    # and "0.0.0.0" where there is no IPv6.
    bound = environ.get(BIND_ADDRESS) or f"[::]:{address.rpartition(':')[2]}"
    host, _, port = bound.rpartition(":")
    hosts = ("::", "0.0.0.0") if host == "[::]" else (host.strip("[]"),)
    if index == 0 and any(_is_taken(each, port) for each in hosts):
        # JAX 0.10.2 would end with a segmentation fault, or share the port with another run of
        # this user, so that processes of both meet there.
        if environ.get(TAKEN_FILE):
            # If this fails, the launcher only does not try another address.
            with suppress(OSError):
                Path(environ[TAKEN_FILE]).write_text(address)
        raise CoordinatorAddressTaken(
            f"process 0 is to wait for the others at {bound}, and another program listens there",
            allowed="a port of its own for each run",
            fix=f"choose another one in {ADDRESS} (under SLURM in {_PORT}), or end that "
            "program (ss -ltnp names it)",
        )
    jax.distributed.initialize(
        address,
        num_processes=count,
        process_id=index,
        heartbeat_timeout_seconds=int(heartbeat),
        **options,
    )
    log.info("process %d of %d%s", index, count, ", by SLURM's srun" if options else "")
    return True


def _is_taken(host: str, port: str) -> bool:
    """Whether another program listens there; JAX reports any other problem itself."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # As JAX does: connections of a run that has ended linger for a minute, harmlessly.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    except (OSError, ValueError) as error:
        return getattr(error, "errno", None) == errno.EADDRINUSE
    return False


def _is_of_srun(environ: Mapping[str, str]) -> bool:
    """Whether `srun` started this process as one of several."""
    in_job, in_step = environ.get(_SLURM_JOB_COUNT, ""), environ.get(_SLURM_COUNT, "")
    if in_step.isdigit() and int(in_step) > 1 and all(environ.get(name) for name in _SLURM):
        return True
    if in_job.isdigit() and int(in_job) > 1:
        # `salloc`, and a batch script by itself: one process, whatever the job was given.
        log.warning(
            "%s=%s, but this process is none of several that srun started (%s=%s): it runs alone",
            *(_SLURM_JOB_COUNT, in_job, _SLURM_COUNT, in_step),
        )
    return False


def _slurm_address(environ: Mapping[str, str]) -> str:
    """Where the processes of an `srun` meet: its first node, and a port by its job and its step.

    JAX would take the port by the job alone, and processes of two steps at once would meet there.
    """
    nodes = environ["SLURM_STEP_NODELIST"]
    # Of each bracket the first: "gpu[07-09,12],login" begins with gpu07.
    first = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes).partition(",")[0]
    job, step = int(environ["SLURM_JOB_ID"]), int(environ.get("SLURM_STEP_ID") or 0)
    port = _SLURM_PORTS[(job * _STEPS_APART + step) % len(_SLURM_PORTS)]
    return f"{first}:{environ.get(_PORT) or port}"


def _own_gpus(environ: Mapping[str, str]) -> list[int] | None:
    """All GPUs that SLURM shows this process, if it shows them to no other; None: JAX decides.

    JAX takes one, by the number of the process on its machine. That is right where the processes of
    a machine see the same ones, and leaves GPUs idle (or finds none) where each sees its own.
    """
    if environ.get("JAX_LOCAL_DEVICE_IDS"):  # set by the user; JAX reads it
        return None
    shown = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    is_alone = re.fullmatch(r"1(\(x\d+\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    is_own = is_alone or "SLURM_GPUS_PER_TASK" in environ
    return [*range(len(shown))] if shown and is_own else None


# ---- Talking ---------------------------------------------------------------------------------


def is_first() -> bool:
    """Whether this is process 0, which alone writes files that a run has one of."""
    return jax.process_index() == 0


def wait_for_all(name: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Return when every process has come to the meeting point `name`.

    Raises `LaunchError` after `timeout_s`, naming the processes that did not come.
    """
    all_gather(name, None, timeout_s=timeout_s)


def broadcast(name: str, value: Any, *, timeout_s: float = TIMEOUT_S) -> Any:
    """Process 0's `value` (plain, as JSON has it), in every process.

    Process 0 waits for the others at every 64th use of a name only; they raise `LaunchError` after
    `timeout_s` without an answer.
    """
    if jax.process_count() > 1:
        use = _Use(name, timeout_s)
        if use.number % _KEPT_USES == 0:
            # Process 0 forgets what is that many uses ago: by then all must have read it.
            wait_for_all(f"{name}, in step", timeout_s=timeout_s)
        if not is_first():
            return use.wait_for(_ANSWER, [0])
        use.set(_ANSWER, value)
        use.forget(_KEPT_USES)
    return json.loads(json.dumps(value))


def all_gather(name: str, value: Any, *, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """The values (plain, as JSON has them) of all processes, by process index.

    Process 0 collects them and answers the rest, so each of N processes makes a few calls and not
    N. Raises `LaunchError` after `timeout_s`, in all that came, naming those that did not.
    """
    everyone = range(jax.process_count())
    if len(everyone) == 1:
        return [json.loads(json.dumps(value))]
    json.dumps(value)  # what JSON cannot hold raises before the use is counted
    use = _Use(name, timeout_s)
    use.set(jax.process_index(), value)
    if not is_first():
        answer = use.wait_for(_ANSWER, everyone)
        if "error" in answer:
            raise LaunchError(**answer["error"])
        gathered: list[Any] = answer["values"]
        return gathered
    try:
        values = [use.wait_for(index, everyone) for index in everyone]
    except LaunchError as error:
        # So that those who came need not wait as long again, and raise the same.
        parts = {"given": error.given, "allowed": error.allowed, "fix": error.fix}
        use.set(_ANSWER, {"error": parts})
        raise
    use.set(_ANSWER, {"values": values})
    use.forget(1)  # everyone is here, so everyone has read the answer of the last time
    return values


@contextmanager
def raise_together(name: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """If the block fails in one process, all processes raise when they leave it.

    A process whose own part failed raises its own error; the others raise `LaunchError` with what
    the failed ones said. For blocks in which no process waits for another.
    """
    try:
        yield
    except Exception as error:
        all_gather(name, f"{type(error).__name__}: {error}", timeout_s=timeout_s)
        raise
    errors = all_gather(name, None, timeout_s=timeout_s)
    failed = [f"process {index}: {text}" for index, text in enumerate(errors) if text is not None]
    if failed:
        raise LaunchError(
            f"{name} failed elsewhere:\n  " + "\n  ".join(failed) + "\n",
            allowed="a run that can go on in all of its processes",
            fix="see what those processes say, and start all of them again",
        )


def post(name: str, value: Any) -> None:
    """Leave a value (plain, as JSON has it) for the others to find, instead of the one before."""
    key = f"chomp/{name}/posts/{jax.process_index()}"
    _client().key_value_set(key, json.dumps(value), allow_overwrite=True)


def read_posts(name: str) -> dict[int, Any]:
    """What processes have posted under a name until now, by process index; waits for nobody."""
    found = _client().key_value_dir_get(f"chomp/{name}/posts/")
    return {int(key.rpartition("/")[2]): json.loads(text) for key, text in found}


class _Use:
    """One use of a name, which has keys of its own, and how long it waits for them."""

    def __init__(self, name: str, timeout_s: float) -> None:
        with _uses_lock:
            _uses[name] += 1
            self.number = _uses[name]
        self._name, self._timeout_s = name, timeout_s
        self._deadline: float | None = None  # from the first wait on
        self._folder = f"chomp/{name}/{self.number}"

    def set(self, part: object, value: Any) -> None:
        """Put a value where the others look for it."""
        _client().key_value_set(f"{self._folder}/{part}", json.dumps(value))

    def wait_for(self, part: object, expected: Sequence[int]) -> Any:
        """A value, once it is there; the error names the expected processes that did not come."""
        where = f"process {jax.process_index()} of {jax.process_count()}"
        self._deadline = self._deadline or time.monotonic() + self._timeout_s
        left_ms = max(1, round(1000 * (self._deadline - time.monotonic())))
        try:
            return json.loads(_client().blocking_key_value_get(f"{self._folder}/{part}", left_ms))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise LaunchError(
                    f"{where} at {self._name!r} lost touch with the others: {error}",
                    allowed="processes that all run until the end",
                    fix="see how the others ended, and start all of them again",
                ) from error
            keys = _client().key_value_dir_get(f"{self._folder}/")
            came = {key.rpartition("/")[2] for key, _ in keys}
            missing = [str(index) for index in expected if str(index) not in came]
            # All may have come, and process 0 not have answered in time.
            who = f"process {', '.join(missing)}" if missing else "an answer of process 0"
            raise LaunchError(
                f"{where} waited {self._timeout_s:g} s at {self._name!r} for {who}",
                allowed="processes that come to the same points within that time",
                fix="see how the missing ones ended, and start all of them again",
            ) from error

    def forget(self, uses_ago: int) -> None:
        """Take an earlier use out of the store, which process 0 holds in memory."""
        _client().key_value_delete(f"chomp/{self._name}/{self.number - uses_ago}")


def _client() -> Any:
    with private_names("jax"):
        from jax._src import distributed  # noqa: PLC0415 (the client has no public name)

        client = distributed.global_state.client
    if client is None:
        raise LaunchError(
            f"jax.distributed is not initialized, with {jax.process_count()} processes",
            allowed="processes that call jax.distributed.initialize before all else",
            fix="set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each",
        )
    return client


# ---- Leaving ---------------------------------------------------------------------------------


@contextmanager
def leave_on_error() -> Iterator[None]:
    """A process that fails inside will end, when it ends, without waiting for the others.

    Its exit code is the error's. An interruption, which all processes agree on, is no failure. A
    run of one process is left alone.
    """
    global _exit_code
    try:
        yield
    except RunInterrupted:
        raise
    except BaseException as error:
        if jax.process_count() > 1:
            if _exit_code is None:
                # Registered after JAX's own, which would wait for the others, so called before it.
                atexit.register(_leave)
            usual = 130 if isinstance(error, KeyboardInterrupt) else 1
            _exit_code = getattr(error, "exit_code", usual)
        raise


def _leave() -> None:
    assert _exit_code is not None, "registered where the exit code is set"
    try:
        if is_first():
            deadline = time.monotonic() + _LAST_WORDS_S
            for index in range(1, jax.process_count()):
                left_ms = round(1000 * (deadline - time.monotonic()))
                key = f"chomp/{_LEAVING}/posts/{index}"
                with suppress(jax.errors.JaxRuntimeError):
                    _client().blocking_key_value_get(key, max(1, left_ms))
        else:
            post(_LEAVING, _exit_code)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)
