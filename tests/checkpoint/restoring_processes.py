"""Run as one of two processes: restores from each FOLDER in turn, prints as JSON what came of it.

Usage: ADDRESS NUMBER FOLDER... The folders are relative, so that the two processes, started in
different places, see different disks. One whose name begins with "unproven" process 1 refuses.
"""

import json
import sys
from functools import partial

import jax
import numpy as np
from restore_samples import begun, run

from chomp.checkpoint import StepFolder
from chomp.errors import CheckpointError, ChompError
from chomp.mesh import MeshConfig, create_mesh


def proof(folder: str, found: StepFolder) -> None:
    """Raise in the one process that has other batches."""
    if folder.startswith("unproven") and jax.process_index() == 1:
        raise CheckpointError(f"other batches after step {found.metadata.step}")


def outcome(folder: str, mesh: jax.sharding.Mesh) -> dict[str, object]:
    """The step that was restored and this process's rows of the weights; or the error."""
    try:
        state = begun(folder, mesh, run(), proof=partial(proof, folder)).state
    except ChompError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    (rows,) = state.params["w"].addressable_shards
    return {"step": int(state.step), "rows": np.asarray(rows.data).tobytes().hex()}


if __name__ == "__main__":
    address, number, folders = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    jax.config.update("jax_num_cpu_devices", 1)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=number)
    everywhere = create_mesh(MeshConfig(data=2))
    with jax.set_mesh(everywhere):
        print(json.dumps({folder: outcome(folder, everywhere) for folder in folders}))
