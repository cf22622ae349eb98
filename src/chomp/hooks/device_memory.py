"""What the devices of this process say about their memory."""

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import jax


@runtime_checkable
class TellsMemory(Protocol):
    """The part of `jax.Device` that is asked here."""

    def memory_stats(self) -> dict[str, Any] | None:
        """Counters of the device's allocator; None where it keeps none."""
        ...


def peak_memory_gb(devices: Iterable[TellsMemory] | None = None) -> float | None:
    """The most memory any of the devices has used so far, in GB of 1e9 bytes.

    `devices` are this process's unless others are given. None where they do not tell, as on CPU.
    The peak counts from the start of the process, and only what went through JAX's allocator.
    """
    asked = jax.local_devices() if devices is None else devices
    counted = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in asked]
    known = [peak for peak in counted if peak is not None]
    return max(known) / 1e9 if known else None
