"""Host arrays onto the mesh: the batch in, and nothing else."""

from typing import Any, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from chomp.mesh.device_mesh import BATCH_AXES

Tree = TypeVar("Tree")


def batch_spec(num_axes: int, *, batch_axis: int = 0) -> PartitionSpec:
    """Spec of an array whose axis `batch_axis` is the batch and whose other axes are whole."""
    parts: list[Any] = [None] * num_axes
    parts[batch_axis] = BATCH_AXES
    return PartitionSpec(*parts)


def place_batch(tree: Tree, mesh: Mesh, *, batch_axis: int) -> Tree:
    """`tree` of host arrays as global device arrays, cut along `batch_axis`.

    Every process passes the rows its own devices hold; with one process that is the whole batch.
    """

    def place(leaf: Any) -> jax.Array:
        sharding = NamedSharding(mesh, batch_spec(leaf.ndim, batch_axis=batch_axis))
        return jax.make_array_from_process_local_data(sharding, leaf)

    return jax.tree.map(place, tree)
