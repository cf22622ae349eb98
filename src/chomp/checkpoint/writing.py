"""How arrays get into files: Orbax's writer with the settings that checkpoints need."""

import ctypes
from typing import Any

import jax

from chomp.errors import private_names

_TIMEOUT_S = 600


def writer_for(leaves: dict[str, Any], *, max_staged_bytes: int | None) -> Any:
    """Orbax's `AsyncCheckpointer` for one save of `leaves`, to be closed by the caller.

    Its `save` returns when the arrays are on the host: safe to donate. With `max_staged_bytes`
    they are copied there a part at a time, and only what has been written is safe.
    """
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    handler = ocp.BasePyTreeCheckpointHandler(
        # Weights are noise in most of their bits: compressed they take a twelfth less of the disk,
        # and a second copy of the state in memory until the save is done (November 2026).
        use_compression=False,
        **({} if max_staged_bytes is None else _bounds(leaves, max_staged_bytes)),
    )
    return ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(handler_impl=handler),
        async_options=ocp.options.AsyncOptions(
            timeout_secs=_TIMEOUT_S,
            # In the background a folder that cannot be made is an error only after that time.
            create_directories_asynchronously=False,
        ),
    )


def give_memory_back() -> None:
    """Return memory that a save freed to the system, where the C library keeps it (glibc).

    Otherwise its holes pile up from save to save, to several times the state. Takes milliseconds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _bounds(leaves: dict[str, Any], max_staged_bytes: int) -> dict[str, Any]:
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    # Orbax refuses to write an array that alone is as large as the bound.
    largest = 1 + max((leaf.nbytes for leaf in leaves.values()), default=0)
    with private_names("orbax-checkpoint"):
        from orbax.checkpoint._src.serialization import types  # noqa: PLC0415 (no public name)

        late = types.TransferPriority.ASYNCHRONOUS_DEPRIORITIZED

        class CopiedLate(types.DefaultSerializationStatusCallback):  # type: ignore[misc]
            """Tells Orbax to copy arrays to the host as others are done, not all at the start."""

            def key_priority(self, _: Any) -> types.TransferPriority:
                return late

    arrays = ocp.type_handlers.ArrayHandler(callback=CopiedLate())
    return {
        "save_concurrent_bytes": max(largest, max_staged_bytes),
        "save_device_host_concurrent_bytes": max_staged_bytes,
        "type_handler_registry": ocp.type_handlers.create_type_handler_registry(
            (jax.Array, arrays)
        ),
    }
