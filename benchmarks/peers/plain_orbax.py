"""The peer of checkpoints: Orbax as its guide shows it, synchronous, with its own settings."""

from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def save(path: str, state: Any) -> None:
    """Write the state, and return when it is on disk."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()


def restore(path: str, state: Any, mesh: Mesh) -> Any:
    """The state as it was saved, whatever became of the files since; `state` is its shapes."""

    def target(leaf: Any) -> jax.ShapeDtypeStruct:
        spec = leaf.sharding.spec if leaf.sharding is not None else PartitionSpec()
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    with ocp.StandardCheckpointer() as checkpointer:
        return jax.block_until_ready(checkpointer.restore(path, jax.tree.map(target, state)))
