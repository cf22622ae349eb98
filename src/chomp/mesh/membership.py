"""How a process joins the others of its run, and how it leaves them when it fails.

Left to itself, a process that fails alone waits at its exit for the others (300 s), while they wait
for it inside a step. Here it leaves at once: connections close, and the others fail too. Where
nothing closes (a machine is gone, or a save waits for its part), JAX ends the others after 100 s
without a sign of life, or after CHOMP_HEARTBEAT_S.
"""

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import jax

from chomp.errors import ConfigError, RunInterrupted, message, require
from chomp.mesh.processes import is_first, post, wait_for_posts

ADDRESS = "JAX_COORDINATOR_ADDRESS"
COUNT = "JAX_NUM_PROCESSES"
INDEX = "JAX_PROCESS_ID"
HEARTBEAT = "CHOMP_HEARTBEAT_S"
# The others lose their connections with process 0, so it leaves last; but not much later.
_LAST_WORDS_S = 3.0
_LEAVING = "leaving"

log = logging.getLogger(__name__)

_exit_code: int | None = None


def join_processes(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process is now one of several, as the environment (or a launcher) says.

    JAX_COORDINATOR_ADDRESS (host and port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID make
    it one; to be called before JAX looks for devices. Waits for the others for up to 300 s. A
    launcher that called `jax.distributed.initialize` itself has done all this.
    """
    if jax.distributed.is_initialized():
        return jax.process_count() > 1
    environ = os.environ if environ is None else environ
    given = {name: environ[name] for name in (ADDRESS, COUNT, INDEX) if environ.get(name)}
    # The address alone is no wish of ours: clusters that JAX knows by itself set it.
    if COUNT not in given and INDEX not in given:
        return False
    count, index = _placed(given)
    if count > 1:
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
        given=f"{HEARTBEAT}={given}",
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
            message(
                given=told,
                allowed="host:port of process 0, the number of processes, and an index below it",
                fix="set all three in every process, or none of them to train with one",
            )
        )
    return count, index
