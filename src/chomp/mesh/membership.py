"""How a process joins the others of its run, and how it leaves them when it fails.

Left to itself, a process that fails alone waits at its exit for the others (300 s), while they wait
for it inside a step. Here it leaves at once: connections close, and the others fail too. Where
nothing closes (a machine is gone, or a save waits for its part), JAX ends the others after 100 s
without a sign of life, or after CHOMP_HEARTBEAT_S.
"""

import atexit
import errno
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import jax

from chomp.errors import ConfigError, LaunchError, RunInterrupted, require
from chomp.mesh.processes import is_first, post, wait_for_posts

ADDRESS = "JAX_COORDINATOR_ADDRESS"
BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
HEARTBEAT = "CHOMP_HEARTBEAT_S"
# A file in which a launcher wants to find the address, if process 0 found it taken.
TAKEN_FILE = "CHOMP_ADDRESS_TAKEN_FILE"
_PORT = "JAX_COORDINATOR_PORT"
# What a job was given; a batch script and a shell of `salloc` have it as well.
_SLURM_JOB_COUNT = "SLURM_NTASKS"
# What `srun` started, which alone tells how many there are: 1 in a shell that it started.
_SLURM_COUNT = "SLURM_STEP_NUM_TASKS"
# What `srun` tells each of its processes, and JAX asks for.
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID", _SLURM_JOB_COUNT)
_SLURM_STEP = "SLURM_STEP_ID"
_GPUS_EACH = "SLURM_GPUS_PER_TASK"
# The range from which JAX takes a port for SLURM's jobs: above that of outgoing connections.
_SLURM_PORTS = range(61440, 65536)
# Steps of a job whose ports come before those of the next job; odd, so that all ports are used.
_STEPS_APART = 61
# The others lose their connections with process 0, so it leaves last; but not much later.
_LAST_WORDS_S = 3.0
_LEAVING = "leaving"

log = logging.getLogger(__name__)

_exit_code: int | None = None


class CoordinatorAddressTaken(LaunchError):
    """Another program listens where process 0 is to wait for the others."""

    exit_code = 98  # the number of EADDRINUSE


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
    # The address alone is no wish of ours: clusters that JAX knows by itself set it.
    if COUNT not in given and INDEX not in given:
        return _joined_by_slurm(environ)
    count, index = _placed(given)
    if count > 1:
        if index == 0:
            _require_free(given[ADDRESS], environ)
        jax.distributed.initialize(
            given[ADDRESS],
            num_processes=count,
            process_id=index,
            heartbeat_timeout_seconds=_heartbeat_s(environ),
        )
        log.info("process %d of %d", index, count)
    return count > 1


@contextmanager
def leaving_on_error() -> Iterator[None]:
    """A process that fails inside will end, when it ends, without waiting for the others.

    Its exit code is the error's. An interruption, which all processes agree on, is no failure. A
    run of one process is left alone.
    """
    try:
        yield
    except RunInterrupted:
        raise
    except BaseException as error:
        if jax.process_count() > 1:
            _leave_at_exit(error)
        raise


def _joined_by_slurm(environ: Mapping[str, str]) -> bool:
    """Join the other processes of an `srun`; False where there are none."""
    given, count = environ.get(_SLURM_JOB_COUNT, ""), environ.get(_SLURM_COUNT, "")
    if not _is_several(count) or not all(environ.get(name) for name in _SLURM):
        if _is_several(given):
            # `salloc`, and a batch script by itself: one process, whatever the job was given.
            log.warning(
                "%s=%s, but this process is none of several that srun started (%s=%s): it runs "
                "alone",
                _SLURM_JOB_COUNT,
                given,
                _SLURM_COUNT,
                count,
            )
        return False
    address, index = environ.get(ADDRESS) or _slurm_address(environ), int(environ["SLURM_PROCID"])
    if index == 0:
        _require_free(address, environ)
    jax.distributed.initialize(
        address,
        num_processes=int(count),
        process_id=index,
        cluster_detection_method="slurm",
        local_device_ids=_own_gpus(environ),
        heartbeat_timeout_seconds=_heartbeat_s(environ),
    )
    log.info("process %d of %s, by SLURM's srun", index, count)
    return True


def _slurm_address(environ: Mapping[str, str]) -> str:
    """Where the processes of an `srun` meet: its first node, and a port by its job and its step.

    JAX would take the port by the job alone, and processes of two steps at once would meet there.
    """
    nodes = environ["SLURM_STEP_NODELIST"]
    # Of each bracket the first: "gpu[07-09,12],login" begins with gpu07.
    first = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes).partition(",")[0]
    job, step = int(environ["SLURM_JOB_ID"]), int(environ.get(_SLURM_STEP) or 0)
    port = _SLURM_PORTS[(job * _STEPS_APART + step) % len(_SLURM_PORTS)]
    return f"{first}:{environ.get(_PORT) or port}"


def _is_several(count: str) -> bool:
    return count.isdigit() and int(count) > 1


def _require_free(address: str, environ: Mapping[str, str]) -> None:
    """Raise `CoordinatorAddressTaken` if another program listens where process 0 would.

    JAX itself ends by a segmentation fault then (0.10.2), or shares the port with another run of
    the same user, so that processes of both meet there.
    """
    # Where JAX listens: at all addresses of this machine, unless it is told which.
    bound = environ.get(BIND_ADDRESS) or f"[::]:{address.rpartition(':')[2]}"
    host, _, port = bound.rpartition(":")
    host = host.strip("[]")
    # Where there is no IPv6, "::" means all addresses of the other kind.
    hosts = (host, "0.0.0.0") if host == "::" else (host,)
    if port.isdigit() and any(_is_taken(each, int(port)) for each in hosts):
        if environ.get(TAKEN_FILE):
            # Without it the error is told all the same, and only not tried again elsewhere.
            with suppress(OSError):
                Path(environ[TAKEN_FILE]).write_text(address)
        raise CoordinatorAddressTaken(
            f"process 0 is to wait for the others at {bound}, and another program listens there",
            allowed="a port of its own for each run",
            fix=f"choose another one in {ADDRESS} (under SLURM in {_PORT}), or end that "
            "program (ss -ltnp names it)",
        )


def _is_taken(host: str, port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # As JAX does: connections of a run that has ended linger for a minute, and do no harm.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # what else is wrong is left to JAX to say
    return False


def _own_gpus(environ: Mapping[str, str]) -> list[int] | None:
    """All GPUs that SLURM shows this process, if it shows them to no other; None: JAX decides.

    JAX takes one, by the number of the process on its machine. That is right where the processes of
    a machine see the same ones, and leaves GPUs idle (or finds none) where each sees its own.
    """
    if environ.get("JAX_LOCAL_DEVICE_IDS"):  # somebody has decided
        return None
    shown = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    is_alone = re.fullmatch(r"1(\(x\d+\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return [*range(len(shown))] if shown and (is_alone or _GPUS_EACH in environ) else None


def _leave_at_exit(error: BaseException) -> None:
    global _exit_code
    if _exit_code is None:
        # Registered after JAX's own, which would wait for the others, so called before it.
        atexit.register(_leave)
    usual = 130 if isinstance(error, KeyboardInterrupt) else 1
    _exit_code = getattr(error, "exit_code", usual)


def _leave() -> None:
    assert _exit_code is not None
    try:
        if is_first():
            wait_for_posts(_LEAVING, timeout_s=_LAST_WORDS_S)
        else:
            post(_LEAVING, _exit_code)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


def _heartbeat_s(environ: Mapping[str, str]) -> int:
    """Seconds without a sign of life after which a process counts as dead; JAX's own: 100."""
    given = environ.get(HEARTBEAT, "100")
    require(
        given.isdigit() and int(given) > 0,
        f"{HEARTBEAT}={given}",
        allowed="whole seconds, above 0",
        fix="100 forgives a machine that stalls for a while; 10 is for tests",
    )
    return int(given)


def _placed(given: Mapping[str, str]) -> tuple[int, int]:
    """How many processes there are, and which of them this is."""
    try:
        count, index = int(given[COUNT]), int(given[INDEX])
    except (KeyError, ValueError):
        count, index = 0, 0
    if ADDRESS not in given or not 0 <= index < count:
        told = ", ".join(f"{name}={given.get(name, '')}" for name in (ADDRESS, COUNT, INDEX))
        raise ConfigError(
            told,
            allowed="host:port of process 0, the number of processes, and an index below it",
            fix="set all three in every process, or none of them to train with one",
        )
    return count, index
