"""The device mesh and what lies on it."""

from chomp.mesh.abstract_arrays import (
    abstract_arrays,
    planned_mesh,
    require_divisible,
)
from chomp.mesh.compiler_options import compiler_options
from chomp.mesh.cpu_steps import prepare_cpu_steps
from chomp.mesh.device_memory import (
    FIX_STATE,
    peak_memory_gb,
    require_fits_mesh,
    require_memory,
)
from chomp.mesh.device_mesh import (
    AXES,
    BATCH_AXES,
    MeshConfig,
    abstract_mesh,
    batch_shards,
    create_mesh,
)
from chomp.mesh.membership import join_processes, leaving_on_error
from chomp.mesh.memory_table import bytes_per_device, memory_table, told_bytes
from chomp.mesh.placement import batch_spec, local_rows, place_batch, place_rows
from chomp.mesh.prepare import prepare_devices
from chomp.mesh.processes import (
    all_or_none,
    gathered,
    is_first,
    post,
    posted,
    told_by_first,
    wait_for_all,
)

__all__ = [
    "AXES",
    "BATCH_AXES",
    "FIX_STATE",
    "MeshConfig",
    "abstract_arrays",
    "abstract_mesh",
    "all_or_none",
    "batch_shards",
    "batch_spec",
    "bytes_per_device",
    "compiler_options",
    "create_mesh",
    "gathered",
    "is_first",
    "join_processes",
    "leaving_on_error",
    "local_rows",
    "memory_table",
    "peak_memory_gb",
    "place_batch",
    "place_rows",
    "planned_mesh",
    "post",
    "posted",
    "prepare_cpu_steps",
    "prepare_devices",
    "require_divisible",
    "require_fits_mesh",
    "require_memory",
    "told_by_first",
    "told_bytes",
    "wait_for_all",
]
