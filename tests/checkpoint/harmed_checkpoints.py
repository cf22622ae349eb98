"""Run as a program: flips bytes of the newest of two checkpoints and prints what a restore gives.

A process of its own, because Orbax leaves work behind when it fails in the middle.
"""

import json
import sys
from pathlib import Path

import jax
from checkpoint_samples import state_at
from restore_samples import begun, save

from chomp.mesh import MeshConfig, create_mesh

FLIPS_PER_FILE = 3
OUTCOMES = {1: "the one before", 2: "intact"}


def outcome(folder: Path, mesh: jax.sharding.Mesh) -> str:
    """Which state came back, if it is one of the two that were saved; puts the folder in order."""
    state = begun(folder, mesh, attempt=2).state
    step = int(state.step)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), state, state_at(step))
    for aside in folder.glob("*.damaged-2"):
        aside.rename(folder / aside.name.removesuffix(".damaged-2"))
    return OUTCOMES.get(step, "WRONG") if all(jax.tree.leaves(same)) else "WRONG"


def flipped(folder: Path, mesh: jax.sharding.Mesh) -> dict[str, list[str]]:
    """What comes of one flipped byte, for several places in every file of the newest state."""
    outcomes: dict[str, list[str]] = {}
    state = folder / "step-2" / "state"
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


if __name__ == "__main__":
    where, mesh = Path(sys.argv[1]), create_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        for step in OUTCOMES:
            save(where, step)
        report = flipped(where, mesh)
        assert outcome(where, mesh) == "intact", "not by the flips, then"
    print(json.dumps(report))
