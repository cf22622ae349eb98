"""The device mesh, arrays on it, the memory they need, and the processes of a run."""

from chomp.mesh.device_mesh import (
    AXES,
    BATCH_AXES,
    MeshConfig,
    abstract_mesh,
    batch_shards,
    batch_spec,
    create_mesh,
    local_rows,
    place_batch,
    place_rows,
    planned_mesh,
)
from chomp.mesh.devices import compiler_options, prepare_cpu_steps, prepare_devices
from chomp.mesh.distributed import (
    all_gather,
    broadcast,
    is_first,
    join_processes,
    leave_on_error,
    post,
    raise_together,
    read_posts,
    wait_for_all,
)
from chomp.mesh.memory import (
    FIX_STATE,
    abstract_arrays,
    aligned_columns,
    bytes_per_device,
    format_bytes,
    memory_table,
    peak_memory_gb,
    require_divisible,
    require_fits_mesh,
    require_memory,
)

__all__ = [
    "AXES", "BATCH_AXES", "FIX_STATE", "MeshConfig", "abstract_arrays", "abstract_mesh",
    "aligned_columns", "all_gather", "batch_shards", "batch_spec", "broadcast",
    "bytes_per_device", "compiler_options", "create_mesh", "format_bytes", "is_first",
    "join_processes", "leave_on_error", "local_rows", "memory_table", "peak_memory_gb",
    "place_batch", "place_rows", "planned_mesh", "post", "prepare_cpu_steps", "prepare_devices",
    "raise_together", "read_posts", "require_divisible", "require_fits_mesh", "require_memory",
    "wait_for_all",
]  # fmt: skip
