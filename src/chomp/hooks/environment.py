"""The software and hardware a run used, for its checkpoints and results."""

import os
import platform
from importlib.metadata import version
from typing import Any

import jax

import chomp

_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "equinox", "orbax-checkpoint")


def environment() -> dict[str, Any]:
    """Versions, and the core and device counts on which results depend bit for bit."""
    return {
        "python": platform.python_version(),
        "chomp": chomp.__version__,  # not from an install: a checkout on the path has none
        **{name: version(name) for name in _LIBRARIES},
        "cores": _num_cores(),
        "devices": jax.device_count(),
        "device_kind": jax.devices()[0].device_kind,
        "processes": jax.process_count(),
    }


def _num_cores() -> int:
    # What this process may use, where the system can tell (Linux); macOS knows only what is there.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
