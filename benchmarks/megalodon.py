"""Megalodon: beside the public `megalodon-jax` package on a CPU, on a GPU by itself.

    uv run --group test python -m benchmarks.megalodon [--quick] [--only PART ..]

On a CPU forward and backward at the 200M model's widths with four layers, the sides in processes of
their own that take turns; what packed documents cost, ours and the package's; time to compile
twelve layers. On a GPU, where the package is not, `benchmarks.megalodon_device`. Nothing else may
run meanwhile.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from typing import Any

import jax

from benchmarks.megalodon_device import DEVICE_PARTS, DOCUMENTS_GOAL, Device, cost_of_documents
from benchmarks.model_sizes import measured_platform
from benchmarks.record import Figure, record
from benchmarks.step_process import StepProcess, clean_environment
from benchmarks.timing import note
from chomp.errors import ConfigError
from chomp.mesh import MeshConfig, create_mesh, prepare_cpu_steps
from experiments.grug.megalodon.config import MEGA_200M, GrugModelConfig

OURS, PEER = "benchmarks.megalodon_step", "benchmarks.peers.megalodon_jax_step"
SPEED_GOAL, COMPILE_GOAL = 1.5, 0.5
# The package compiles packed rows for a minute and more, and each layer takes another 1.4 GiB.
PEER_DOCUMENT_LAYERS = 2
BATCH_SIZE = 2
# Fields that the package's config does not have: every other one has the same name there.
OURS_ALONE = ("remat", "attention")
# Everything goes through every function within a minute or two; its figures mean nothing.
TINY = replace(
    MEGA_200M,
    vocab_size=256,
    num_layers=2,
    model_dim=64,
    z_dim=16,
    value_dim=32,
    ffn_hidden_dim=64,
    cema_ndim=4,
    chunk_size=64,
    norm_num_groups=8,
)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """How both sides are started on a CPU, and in how many rounds they are timed."""

    cfg: GrugModelConfig
    environment: Mapping[str, str]
    rounds: int

    def speed(self) -> list[Figure]:
        """Forward and backward, the same rows in the same dtype."""
        figures = []
        for compute in ("float32", "bfloat16"):
            start = partial(self._started, num_layers=4, compute=compute, ways=["plain"])
            with start(OURS) as ours, start(PEER) as peer:
                seconds = self._in_turn({OURS: (ours, "plain"), PEER: (peer, "plain")})
            name = f"4 layers, {compute}, forward and backward"
            goal = SPEED_GOAL if compute == "float32" else None
            speeds = {side: BATCH_SIZE * self._seq_len / each for side, each in seconds.items()}
            figures.append(_beside_package(name, "tokens/s", "higher", speeds, goal))
        return figures

    def documents(self) -> list[Figure]:
        """What packing costs us, and what it costs the package."""
        ours = self._cost_of_documents(OURS, "4 layers, packed documents", 4, DOCUMENTS_GOAL)
        name = f"megalodon-jax, {PEER_DOCUMENT_LAYERS} layers, packed documents"
        return [*ours, *self._cost_of_documents(PEER, name, PEER_DOCUMENT_LAYERS, None)]

    def compiling(self) -> list[Figure]:
        """Seconds to trace and compile a deep model; nothing runs."""
        found = {}
        for side in (OURS, PEER):
            started = self._started(
                side, num_layers=12, compute="float32", ways=["plain"], is_compile_only=True
            )
            with started as process:
                found[side] = process.report["plain"]["compile_s"]
        return [_beside_package("12 layers, to compile", "s", "lower", found, COMPILE_GOAL)]

    @property
    def _seq_len(self) -> int:
        return self.cfg.chunk_size // 2

    def _cost_of_documents(
        self, side: str, name: str, num_layers: int, goal: float | None
    ) -> list[Figure]:
        ways = ["packed", "plain"]
        started = self._started(side, num_layers=num_layers, compute="float32", ways=ways)
        with started as process:
            seconds = self._in_turn({way: (process, way) for way in ways})
            report = process.report
        memory = {way: report[way]["temp_bytes"] / 2**30 for way in ways}
        compiling = {way: report[way]["compile_s"] for way in ways}
        return [
            cost_of_documents(f"{name}, time", "s", seconds, goal),
            cost_of_documents(f"{name}, memory", "GiB", memory, goal),
            cost_of_documents(f"{name}, to compile", "s", compiling, None),
        ]

    def _started(
        self,
        side: str,
        *,
        num_layers: int,
        compute: str,
        ways: Sequence[str],
        is_compile_only: bool = False,
    ) -> StepProcess:
        cfg = replace(self.cfg, num_layers=num_layers)
        spec = {
            "model": {k: v for k, v in asdict(cfg).items() if k not in OURS_ALONE},
            "compute": compute,
            "batch_shape": [BATCH_SIZE, self._seq_len],
            "ways": ways,
            "is_compile_only": is_compile_only,
            "warmup": 1,
        }
        process = StepProcess([sys.executable, "-m", side, json.dumps(spec)], self.environment)
        for way, told in process.report.items():
            after = "" if is_compile_only else f", loss {told['loss']:.4f}"
            note(
                f"{side}, {num_layers} layers, {compute}, {way}: compiled in "
                f"{told['compile_s']:.1f} s, {told['temp_bytes'] / 2**30:.2f} GiB{after}"
            )
        return process

    def _in_turn(self, turns: Mapping[str, tuple[StepProcess, str]]) -> dict[str, float]:
        """Median seconds of one call of each; every round goes through all of them."""
        times: dict[str, list[float]] = {key: [] for key in turns}
        for _ in range(self.rounds):
            for key, (process, way) in turns.items():
                times[key].append(process.seconds(way, 1))
        for key, found in times.items():
            spread = max(found) / min(found)
            note(f"{key}: {median(found):.3f} s, slowest round {spread:.3f} of the fastest")
        return {key: median(found) for key, found in times.items()}


def _beside_package(
    name: str, unit: str, better: Any, found: Mapping[str, float], goal: float | None
) -> Figure:
    return Figure(
        name=name,
        value=found[OURS],
        unit=unit,
        better=better,
        peer=f"megalodon-jax {version('megalodon-jax')}",
        peer_value=found[PEER],
        goal=goal,
        goal_on="ratio",
    )


def require_package() -> None:
    """Refuse to begin where the peer is not installed."""
    if find_spec("megalodon_jax") is None:
        raise SystemExit(
            str(
                ConfigError(
                    "no package megalodon-jax, which the model is compared with on a CPU",
                    allowed="an environment that has it, with JAX 0.10",
                    fix="run it under `uv run --group test`, or name other parts by --only",
                )
            )
        )


SIDE_BY_SIDE_PARTS: dict[str, Callable[[SideBySide], list[Figure]]] = {
    "speed": SideBySide.speed,
    "documents": SideBySide.documents,
    "compiling": SideBySide.compiling,
}


def figures_beside_package(
    cfg: GrugModelConfig, parts: Sequence[str], *, is_quick: bool
) -> list[Figure]:
    """The figures of those parts that have two sides."""
    require_package()
    with tempfile.TemporaryDirectory() as caches:
        environment = clean_environment(caches)
        bench = SideBySide(cfg=cfg, environment=environment, rounds=1 if is_quick else 3)
        return [figure for part in parts for figure in SIDE_BY_SIDE_PARTS[part](bench)]


def figures_of_device(
    cfg: GrugModelConfig, parts: Sequence[str], *, is_quick: bool
) -> list[Figure]:
    """The figures of those parts in which ours is alone, in this process."""
    prepare_cpu_steps()  # as a run does
    mesh, (rounds, steps) = create_mesh(MeshConfig()), (1, 2) if is_quick else (5, 10)
    with jax.set_mesh(mesh):
        device = Device(cfg=cfg, mesh=mesh, rounds=rounds, steps=steps)
        return [figure for part in parts for figure in DEVICE_PARTS[part](device)]


def main() -> None:
    """Measure all that belongs to this machine, and record it unless only part was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is written")
    every_part = (*SIDE_BY_SIDE_PARTS, *DEVICE_PARTS)
    parser.add_argument("--only", nargs="+", choices=every_part, help="nothing is written")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # does it run?
    arguments = parser.parse_args()
    # Which attention runs is worth a line; nothing else of the libraries is.
    logging.basicConfig(format="    %(message)s", force=True)
    logging.getLogger("chomp.kernels.attention").setLevel(logging.INFO)
    own_parts = SIDE_BY_SIDE_PARTS if measured_platform() == "cpu" else DEVICE_PARTS
    parts, is_quick = arguments.only or list(own_parts), arguments.quick or arguments.tiny
    cfg, figures = TINY if arguments.tiny else MEGA_200M, []
    for measured, known in (
        (figures_beside_package, SIDE_BY_SIDE_PARTS),
        (figures_of_device, DEVICE_PARTS),
    ):
        if chosen := [part for part in parts if part in known]:
            figures += measured(cfg, chosen, is_quick=is_quick)
    record("megalodon", figures, is_quick=bool(is_quick or arguments.only))


if __name__ == "__main__":
    main()
