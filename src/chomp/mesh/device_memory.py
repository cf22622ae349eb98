"""How much memory devices have, and whether what a run needs fits into it."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from chomp.errors import require
from chomp.mesh.abstract_arrays import AnyMesh, abstract_arrays, require_divisible
from chomp.mesh.memory_table import bytes_per_device, told_bytes

# What to do about a state that is too large.
FIX_STATE = (
    "make the model smaller, cut it over more devices (mesh.data, mesh.model), or leave out the "
    "averaged weights (train.ema_beta=null)"
)

log = logging.getLogger(__name__)


@runtime_checkable
class TellsMemory(Protocol):
    """The part of `jax.Device` that is asked here."""

    @property
    def platform(self) -> str:
        """Such as "cpu" or "gpu"."""
        ...

    def memory_stats(self) -> dict[str, Any] | None:
        """Counters of the device's allocator; None where it keeps none."""
        ...


class DeviceMemory(NamedTuple):
    """Bytes that each device can hold, and those of them that nothing else takes now."""

    total: int
    free: int


def peak_memory_gb(devices: Iterable[TellsMemory] | None = None) -> float | None:
    """The most memory any of the devices has used so far, in GB of 1e9 bytes.

    `devices` are this process's unless others are given. None where they do not tell, as on CPU.
    The peak counts from the start of the process, and only what went through JAX's allocator.
    """
    asked = jax.local_devices() if devices is None else devices
    counted = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in asked]
    known = [peak for peak in counted if peak is not None]
    return max(known) / 1e9 if known else None


def device_memory(devices: Iterable[TellsMemory] | None = None) -> DeviceMemory | None:
    """The memory of the smallest device of this process; None where devices do not tell.

    On an accelerator, what JAX's allocator may take. CPU devices share the machine's memory, or
    that of the container (cgroup), equally.
    """
    asked = list(jax.local_devices() if devices is None else devices)
    if asked and all(device.platform == "cpu" for device in asked):
        total, free = machine_memory()
        return DeviceMemory(total // len(asked), free // len(asked))
    counted = [device.memory_stats() or {} for device in asked]
    known = [stats for stats in counted if stats.get("bytes_limit")]
    if not known:
        return None
    smallest = min(known, key=lambda stats: int(stats["bytes_limit"]))
    total = int(smallest["bytes_limit"])
    return DeviceMemory(total, total - int(smallest.get("bytes_in_use", 0)))


def machine_memory() -> DeviceMemory:
    """The memory of this machine, or of the container where that has a lower limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = min([physical, *_container_limits()])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return DeviceMemory(total, min(total, int(found.split()[1]) * 1024))
    except (OSError, StopIteration):  # not Linux
        return DeviceMemory(total, total)


def require_memory(
    what: str,
    needed: int,
    *,
    fix: str,
    held: int = 0,
    devices: Iterable[TellsMemory] | None = None,
) -> None:
    """Raise `ConfigError` if `what` needs more bytes of each device than a device has.

    More than is free now is only a warning: other programs may end. `held` of the bytes are
    allocated already. Devices that do not tell their memory are not judged.
    """
    memory = device_memory(devices)
    if memory is None:
        return
    require(
        needed <= memory.total,
        f"{what}, which needs {told_bytes(needed)} of each device, where a device has "
        f"{told_bytes(memory.total)}",
        allowed="what fits into the memory of a device",
        fix=f"{fix} (docs/references/hbm-optimization.md)",
    )
    if needed - held > memory.free:
        log.warning(
            "%s needs %s of each device, and only %s of its %s are free now",
            what,
            told_bytes(needed - held),
            told_bytes(memory.free),
            told_bytes(memory.total),
        )


def require_fits_mesh(make: Callable[[], Any], mesh: AnyMesh) -> None:
    """Raise `ConfigError` unless the mesh can cut and hold all that `make()` would give.

    Nothing is made.
    """
    tree = abstract_arrays(make)
    require_divisible(tree, mesh)
    require_memory("the train state", bytes_per_device(tree, mesh), fix=FIX_STATE)


def _container_limits() -> Iterator[int]:
    """Limits of the cgroups that this process is in, of version 2 and of version 1."""
    files = [Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        own = Path("/sys/fs/cgroup") / line.rpartition(":")[2].lstrip("/")
        if line.startswith("0::"):
            files += [folder / "memory.max" for folder in (own, *own.parents)]
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" is no limit
            yield int(text)
