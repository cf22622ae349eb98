"""Run as a program: saves in a tight loop, is killed, goes on; NUMBER times, in FOLDER.

Each life is a fork, restores the newest checkpoint and checks that it is whole, then saves step
after step until SIGKILL. Prints as JSON what every death left behind. Forking keeps a life short:
what takes seconds, the imports, is done once, before JAX has started a thread.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import jax
from checkpoint_samples import about, state_at

from chomp.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    LoadOptions,
    list_checkpoints,
    restore_latest_or_initialize,
)
from chomp.mesh import MeshConfig, create_mesh

EVERY = 5  # steps between permanent checkpoints
LONGEST_LIFE_S = 0.5


def live(folder: str, born: int) -> None:
    """Restore, tell the parent the step, and save until killed."""
    mesh = create_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        begun = restore_latest_or_initialize(
            folder, lambda: state_at(0), about=about(), mesh=mesh, settings=LoadOptions()
        )
        state, found = begun.state, begun.found
        step = int(state.step)
        assert step == (0 if found is None else found.metadata.step)
        same = jax.tree.map(lambda a, b: bool((a == b).all()), state, state_at(step))
        assert all(jax.tree.leaves(same)), f"step {step} is not what was saved"
        saver = Checkpointer(
            folder, CheckpointConfig(save_interval_s=None, every=EVERY, keep_temporary=1), about()
        )
        os.write(born, f"{step}\n".encode())
        while True:
            step += 1
            saver.save(state_at(step), step=step, data_offset=step, tokens_seen=step)


def die_once(folder: str, lifetime_s: float) -> dict[str, object]:
    """One life: what it restored, how it ended, and what was in the folder then."""
    reading, born = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            live(folder, born)
        finally:
            os._exit(status)
    os.close(born)
    with open(reading) as told:
        restored = told.readline().strip()
        time.sleep(lifetime_s if restored else 0)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return {
        "restored": restored,
        "was_killed": os.WIFSIGNALED(status),
        "names": sorted(path.name for path in Path(folder).iterdir()),
        "steps": [found.metadata.step for found in list_checkpoints(folder)],
    }


if __name__ == "__main__":
    chance = random.Random(0)
    lives = [
        die_once(sys.argv[1], chance.uniform(0.0, LONGEST_LIFE_S)) for _ in range(int(sys.argv[2]))
    ]
    print(json.dumps(lives))
