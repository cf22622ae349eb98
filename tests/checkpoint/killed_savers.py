"""Run as a program: saves in a tight loop, is killed, goes on; NUMBER times or more, in FOLDER.

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
from typing import Any

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
SAVES = 3  # that a life has seen begin before it may end: all but the last of them are whole
LONGEST_AFTER_S = 0.25  # about two saves more


def live(folder: str, born: int) -> None:
    """Restore, tell the parent the step, and save until killed."""
    mesh = create_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        begun = restore_latest_or_initialize(
            folder, lambda: state_at(0), about=about(), mesh=mesh, options=LoadOptions()
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
            os.write(born, b"saving\n")


def die_once(folder: str, after_s: float) -> dict[str, Any]:
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
        restored, *_ = [told.readline().strip() for _ in range(1 + SAVES)]
        time.sleep(after_s if restored else 0)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return {
        "restored": restored,
        "was_killed": os.WIFSIGNALED(status),
        "names": sorted(path.name for path in Path(folder).iterdir()),
        "steps": [found.metadata.step for found in list_checkpoints(folder)],
    }


def left_unfinished(life: dict[str, Any]) -> bool:
    """Whether a life ended in the middle of writing or removing a checkpoint."""
    return any("." in name for name in life["names"])


if __name__ == "__main__":
    folder, number, chance = sys.argv[1], int(sys.argv[2]), random.Random(0)
    lives: list[dict[str, Any]] = []
    # One kill in five falls between two saves; if all did, nothing was tried, and it goes on.
    while len(lives) < number or (len(lives) < 4 * number and not any(map(left_unfinished, lives))):
        lives.append(die_once(folder, chance.uniform(0.0, LONGEST_AFTER_S)))
    print(json.dumps(lives))
