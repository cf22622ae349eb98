"""The device mesh and what lies on it."""

from chomp.mesh.device_mesh import (
    AXES,
    BATCH_AXES,
    MeshConfig,
    abstract_mesh,
    batch_shards,
    create_mesh,
)
from chomp.mesh.placement import batch_spec, local_rows, place_batch, place_rows

__all__ = [
    "AXES",
    "BATCH_AXES",
    "MeshConfig",
    "abstract_mesh",
    "batch_shards",
    "batch_spec",
    "create_mesh",
    "local_rows",
    "place_batch",
    "place_rows",
]
