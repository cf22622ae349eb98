"""The software and hardware a run used, for its checkpoints and results."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import chomp
from chomp.errors import ConfigError
from chomp.tracking import metrics
from chomp.variants.checkout import checkout_root
from chomp.variants.git_history import described_head

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


def environment_summary() -> dict[str, Any]:
    """The environment of an attempt as values of its record, with the commit it ran."""
    found = {**environment(), "commit": _commit()}
    return {
        metrics.name_from(metrics.ENVIRONMENT, what): value
        for what, value in found.items()
        if value is not None
    }


def _commit() -> str | None:
    """The commit of the checkout that the library is in; None for an installed one."""
    try:
        return described_head(checkout_root(Path(chomp.__file__).parent))
    except ConfigError:
        return None


def _num_cores() -> int:
    # What this process may use, where the system can tell (Linux); macOS knows only what is there.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
