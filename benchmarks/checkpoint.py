"""How long a save keeps training waiting, what it takes in memory, and how fast a state comes back.

    uv run python -m benchmarks.checkpoint [--quick]

The state of the 124M model with AdamW, filled with noise as weights and moments are, on any
machine. Ours and plain Orbax save and restore it in turn: ours with steps beside it that take the
state's memory, as in a run, and then alone, as the peer's. A save that returns is not all that a
run waits for: on a CPU Orbax keeps the arrays themselves, and the next step has to find memory for
others. Fifty saves of a small state show what saving leaves behind.
"""

import argparse
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.model_sizes import SIZES, ModelSize
from benchmarks.peers import plain_orbax
from benchmarks.record import Figure, record
from benchmarks.resident_memory import peak_bytes
from benchmarks.timing import note
from benchmarks.training_step import OPTIMIZER, SCHEDULE_STEPS, model_config
from chomp.checkpoint import (
    CheckpointConfig,
    Checkpointer,
    CheckpointMetadata,
    StepFolder,
    latest_checkpoint,
    restore_checkpoint,
)
from chomp.checkpoint.arrays import named_leaves
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, create_mesh, prepare_devices
from experiments.grug.base.model import Transformer
from experiments.grug.base.train import initial_state

BLOCKED_GOAL = 0.15  # of a plain save
RESTORE_GOAL = 1.0  # of a plain restore
MEMORY_GOAL = 1.3  # of the state
LEFT_GOAL = 0.05  # of the state, after many saves
ROUNDS, QUICK_ROUNDS = 4, 2
MANY, FEW = 50, 10  # saves in a row
ABOUT = CheckpointMetadata(
    step=0,
    run_id="benchmark",
    attempt=1,
    config_hash="",
    config={},
    data_fingerprint="",
    data_offset=0,
    tokens_seen=0,
)


@dataclass
class Seconds:
    """What each round took."""

    blocked: list[float] = field(default_factory=list)
    delayed: list[float] = field(default_factory=list)  # blocked, and a slower step after it
    saved: list[float] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)
    peer_saved: list[float] = field(default_factory=list)
    peer_restored: list[float] = field(default_factory=list)


def noise(size: ModelSize) -> dict[str, jax.Array]:
    """The train state of a model by its leaves, random in every float: zeros would compress."""
    config = model_config(size)
    abstract = jax.eval_shape(lambda: Transformer.init(config, key=jax.random.key(0)))
    optimizer = OPTIMIZER.build(SCHEDULE_STEPS, abstract.param_groups())
    state = initial_state(
        config, optimizer=optimizer, mp=Precision(), key=jax.random.key(0), ema_beta=None
    )
    leaves: dict[str, jax.Array] = named_leaves(state)
    draw = jax.jit(
        lambda key, leaf: jax.random.normal(
            key, leaf.shape, leaf.dtype, out_sharding=jax.typeof(leaf).sharding
        )
    )
    for number, (name, leaf) in enumerate(leaves.items()):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            leaves[name] = draw(jax.random.key(number), leaf)
    return jax.block_until_ready(leaves)


@partial(jax.jit, donate_argnums=0)
def trained(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A step that takes the state's memory, and leaves noise."""
    return jax.tree.map(lambda leaf: -leaf, state)


class Turns:
    """Saves and restores of one state, ours and the peer's, in a folder."""

    def __init__(self, state: dict[str, jax.Array], folder: Path, mesh: Mesh) -> None:
        self.state = state
        self.num_bytes = sum(leaf.nbytes for leaf in state.values())
        self.seconds = Seconds()
        self.peak_bytes: list[int] = []  # that a save and the steps beside it took besides
        self._abstract = jax.eval_shape(lambda: state)
        self._ours, self._peers, self._mesh = folder / "ours", folder / "peers", mesh
        self._saver = Checkpointer(str(self._ours), CheckpointConfig(save_interval_s=None), ABOUT)

    def take(self, turn: int) -> None:
        """One round."""
        self._save_beside_steps(2 * turn)
        self._save_alone(2 * turn + 1)
        self._restore()
        self._save_and_restore_as_peer()

    def disk_bytes(self) -> tuple[int, int]:
        """Bytes on disk of our newest checkpoint and of the peer's."""
        ours, peers = (
            sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            for folder in (Path(self._newest().path), self._peers)
        )
        return ours, peers

    def _newest(self) -> StepFolder:
        found = latest_checkpoint(str(self._ours))
        assert found is not None
        return found

    def _save_beside_steps(self, step: int) -> None:
        usual = min(self._step_seconds() for _ in range(3))
        before = _forgotten_peak()
        self._saver.save(self.state, step=step, data_offset=0, tokens_seen=0)
        first, _ = self._step_seconds(), self._step_seconds()
        self._saver.wait()
        self.peak_bytes.append(peak_bytes() - before)
        (report,) = self._saver.take_reports()
        self.seconds.blocked.append(report.blocked_seconds)
        self.seconds.delayed.append(report.blocked_seconds + first - usual)
        note(
            f"save: blocked {report.blocked_seconds:.3f} s of {report.seconds:.2f} s; the next "
            f"step {first:.3f} s, usually {usual:.3f} s"
        )

    def _save_alone(self, step: int) -> None:
        self._saver.save(self.state, step=step, data_offset=0, tokens_seen=0)
        self._saver.wait()
        (report,) = self._saver.take_reports()
        self.seconds.saved.append(report.seconds)

    def _step_seconds(self) -> float:
        begin = time.perf_counter()
        self.state = jax.block_until_ready(trained(self.state))
        return time.perf_counter() - begin

    def _restore(self) -> None:
        found = self._newest()
        begin = time.perf_counter()
        jax.block_until_ready(restore_checkpoint(found, self._abstract, mesh=self._mesh))
        self.seconds.restored.append(time.perf_counter() - begin)

    def _save_and_restore_as_peer(self) -> None:
        shutil.rmtree(self._peers, ignore_errors=True)
        begin = time.perf_counter()
        plain_orbax.save(str(self._peers), self.state)
        self.seconds.peer_saved.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        plain_orbax.restore(str(self._peers), self._abstract, self._mesh)
        self.seconds.peer_restored.append(time.perf_counter() - begin)
        saved, restored = self.seconds.peer_saved[-1], self.seconds.peer_restored[-1]
        note(
            f"plain Orbax: save {saved:.2f} s, restore {restored:.2f} s; ours alone "
            f"{self.seconds.saved[-1]:.2f} s, {self.seconds.restored[-1]:.2f} s"
        )


def left_behind(state: dict[str, jax.Array], folder: Path, saves: int) -> dict[str, int]:
    """What so many saves in a row add to this process: bytes, threads, open files."""
    saver = Checkpointer(str(folder), CheckpointConfig(save_interval_s=None), ABOUT)

    def save(step: int) -> dict[str, int]:
        nonlocal state
        saver.save(state, step=step, data_offset=0, tokens_seen=0)
        state = jax.block_until_ready(trained(state))
        saver.wait()
        return {
            "bytes": _resident_bytes(),
            "threads": threading.active_count(),
            "files": len(os.listdir("/proc/self/fd")),
        }

    before = [save(step) for step in range(1, 6)][-1]  # after these all is loaded and compiled
    for step in range(6, 6 + saves):
        after = save(step)
    return {what: after[what] - before[what] for what in after}


def figures_of(name: str, turns: Turns, small_bytes: int, left: dict[str, int]) -> list[Figure]:
    """All figures."""
    seconds, plain = turns.seconds, "plain Orbax"
    ours, peers = turns.disk_bytes()
    return [
        _of_peer(
            f"{name}, training waits for a save", seconds.blocked, seconds.peer_saved, BLOCKED_GOAL
        ),
        _of_peer(
            f"{name}, and for its next step, longer than usual",
            seconds.delayed,
            seconds.peer_saved,
            None,
        ),
        _of_peer(f"{name}, a save until it is on disk", seconds.saved, seconds.peer_saved, None),
        _of_peer(
            f"{name}, restore, checked", seconds.restored, seconds.peer_restored, RESTORE_GOAL
        ),
        _mebibytes(
            f"{name}, memory beside the state during a save",
            max(turns.peak_bytes),
            "the state",
            turns.num_bytes,
            MEMORY_GOAL,
        ),
        _mebibytes(f"{name}, on disk", ours, plain, peers, None),
        _mebibytes(
            "memory that many saves leave",
            max(left["bytes"], 0),
            "the state",
            small_bytes,
            LEFT_GOAL,
        ),
        _count("threads that many saves leave", left["threads"]),
        _count("open files that many saves leave", left["files"]),
    ]


def _of_peer(name: str, ours: list[float], peers: list[float], goal: float | None) -> Figure:
    return Figure(
        name=name,
        value=median(ours),
        unit="s",
        better="lower",
        peer="plain Orbax",
        peer_value=median(peers),
        goal=goal,
        goal_on="ratio",
    )


def _mebibytes(name: str, ours: int, peer: str, peers: int, goal: float | None) -> Figure:
    return Figure(
        name=name,
        value=ours / 2**20,
        unit="MiB",
        better="lower",
        peer=peer,
        peer_value=peers / 2**20,
        goal=goal,
        goal_on="ratio",
    )


def _count(name: str, value: int) -> Figure:
    return Figure(name=name, value=value, unit="", better="lower", goal=0)


def _forgotten_peak() -> int:
    """Bytes that are resident now; what was resident before counts no more in `peak_bytes`."""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Take turns, save many times, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small state; nothing is written")
    is_quick = parser.parse_args().quick
    prepare_devices()
    mesh = create_mesh(MeshConfig())
    name = "cpu" if is_quick else "124m"
    with jax.set_mesh(mesh), tempfile.TemporaryDirectory() as folder:
        turns = Turns(noise(SIZES[name]), Path(folder), mesh)
        note(f"a state of {turns.num_bytes / 1e6:,.0f} MB in {len(turns.state)} arrays")
        turns.take(1)  # compiles, and does not count
        turns.seconds, turns.peak_bytes = Seconds(), []
        for step in range(2, 2 + (QUICK_ROUNDS if is_quick else ROUNDS)):
            turns.take(step)
        small = noise(SIZES["cpu"])
        num_bytes = sum(leaf.nbytes for leaf in small.values())
        left = left_behind(small, Path(folder) / "many", FEW if is_quick else MANY)
        figures = figures_of(name, turns, num_bytes, left)
    record("checkpoint", figures, is_quick=is_quick)


if __name__ == "__main__":
    main()
