"""Settings of this process that make steps on CPU devices fast and their times exact."""

import ctypes
import logging
from importlib.metadata import entry_points
from importlib.util import find_spec

import jax

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_LARGEST_INT = 2**31 - 1

log = logging.getLogger(__name__)


def prepare_cpu_steps() -> None:
    """Where JAX will run on CPU devices: in step with the host, in memory that a step keeps.

    XLA asks for a step's memory anew each time. By default it goes back to the system after the
    step, and the next one waits for every page: 970 ms a step against 810 (256 wide, four layers,
    4096 tokens, two cores, November 2026). The price is a process that stays as large as its
    largest step. To be called before JAX looks for its devices: its threads keep the settings they
    found. Where there may be other devices, nothing is changed.
    """
    if not _is_cpu_only():
        return
    # A step takes every core anyway; dispatched asynchronously, its time would be the next one's.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        log.info("this system's malloc is not glibc's: a step gives its memory back when it ends")
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)


def _is_cpu_only() -> bool:
    """Whether JAX was told to use the CPU, or has nothing else to use; asks no device."""
    asked_for = jax.config.values["jax_platforms"]
    if asked_for:
        return str(asked_for).split(",")[0] == "cpu"
    return not entry_points(group="jax_plugins") and find_spec("libtpu") is None
