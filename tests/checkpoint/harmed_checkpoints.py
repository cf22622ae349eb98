"""Run as a program: does harm to checkpoints in FOLDER and prints as JSON what came of it.

A process of its own, because Orbax leaves work behind when it fails in the middle, and because a
full disk is played by a limit on the size of files, which holds for the whole process.
"""

import json
import resource
import sys
from pathlib import Path

import jax
from checkpoint_samples import about, state_at

from chomp.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    list_checkpoints,
    restore_latest_or_initialize,
    save_step_checkpoint,
)
from chomp.errors import ChompError
from chomp.mesh import MeshConfig, create_mesh

FLIPS_PER_FILE = 3


def outcome(folder: Path, mesh: jax.sharding.Mesh) -> str:
    """`refused: …`, or whether the state that came back is the one that was saved."""
    try:
        found, _ = restore_latest_or_initialize(
            str(folder), lambda: state_at(0), about=about(), mesh=mesh, load_checkpoint=True
        )
    except ChompError as error:
        return f"refused: {error}"
    same = jax.tree.map(lambda a, b: bool((a == b).all()), found, state_at(1))
    return "intact" if all(jax.tree.leaves(same)) else "WRONG"


def flipped(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, list[str]]:
    """What comes of one flipped byte, for several places in every file of the newest state."""
    outcomes: dict[str, list[str]] = {}
    state = folder / "step-1" / "state"
    for path in sorted(path for path in state.rglob("*") if path.is_file()):
        content = path.read_bytes()
        tried = outcomes[f"{path.relative_to(state)} {len(content)}"] = []
        for i in range(FLIPS_PER_FILE):
            place = (2 * i + 1) * len(content) // (2 * FLIPS_PER_FILE)
            harmed = bytearray(content)
            harmed[place] ^= 0x10
            path.write_bytes(harmed)
            tried.append(outcome(folder, mesh))
        path.write_bytes(content)
    return outcomes


def filled_disk(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, object]:
    """What comes of a save that finds no room for its arrays, and of one after that."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, most))
    try:
        save_step_checkpoint(str(folder), state_at(2), about(step=2))
        told = "saved"
    except ChompError as error:
        told = f"refused: {error}"
    restored = outcome(folder, mesh)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    saver = Checkpointer(str(folder), CheckpointConfig(), about())
    saver.save(state_at(3), step=3, data_offset=3, tokens_seen=3)
    names = sorted(path.name for path in folder.iterdir())
    return {"save": told, "restore": restored, "names_after_another_save": names}


if __name__ == "__main__":
    where, mesh = Path(sys.argv[1]), create_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        save_step_checkpoint(str(where), state_at(1), about(step=1))
        report = {
            "before": outcome(where, mesh),
            "flipped": flipped(where, mesh),
            "after": outcome(where, mesh),
            "steps": [found.metadata.step for found in list_checkpoints(str(where))],
            "filled": filled_disk(where, mesh),
        }
    print(json.dumps(report))
