"""Host arrays onto the mesh: the batch in, and nothing else."""

from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from chomp.mesh.device_mesh import BATCH_AXES

Tree = TypeVar("Tree")


def batch_spec(num_axes: int, *, batch_axis: int = 0) -> PartitionSpec:
    """Spec of an array whose axis `batch_axis` is the batch and whose other axes are whole."""
    parts: list[Any] = [None] * num_axes
    parts[batch_axis] = BATCH_AXES
    return PartitionSpec(*parts)


def local_rows(mesh: Mesh, batch_size: int) -> Int[np.ndarray, " K"]:
    """The rows of a batch that the devices of this process hold, in order."""
    sharding = NamedSharding(mesh, batch_spec(1))
    cuts = sharding.addressable_devices_indices_map((batch_size,)).values()
    held = [np.arange(batch_size)[index] for index in cuts if index is not None]
    return np.unique(np.concatenate(held))


def place_rows(
    tree: Tree, mesh: Mesh, *, rows: Int[np.ndarray, " K"], batch_size: int, batch_axis: int
) -> Tree:
    """`tree` of host arrays, which hold those rows of a batch, as global device arrays."""

    def place(leaf: Any) -> jax.Array:
        shape = (*leaf.shape[:batch_axis], batch_size, *leaf.shape[batch_axis + 1 :])
        sharding = NamedSharding(mesh, batch_spec(leaf.ndim, batch_axis=batch_axis))

        def held(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # the mesh has devices of this process
            start, stop, _ = index[batch_axis].indices(batch_size)
            # A device's rows are next to each other, and all of them are among this process's.
            first = int(np.searchsorted(rows, start))
            here = slice(first, first + stop - start)
            return leaf[(*index[:batch_axis], here, *index[batch_axis + 1 :])]

        return jax.make_array_from_callback(shape, sharding, held)

    return jax.tree.map(place, tree)


def place_batch(tree: Tree, mesh: Mesh, *, batch_axis: int) -> Tree:
    """`tree` of host arrays as global device arrays, cut along `batch_axis`.

    Every process passes the whole batch; its devices take the rows that are theirs.
    """
    size = jax.tree.leaves(tree)[0].shape[batch_axis]
    return place_rows(tree, mesh, rows=np.arange(size), batch_size=size, batch_axis=batch_axis)
