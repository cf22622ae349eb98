"""A training step of the base model beside compiled PyTorch at equal math, and with documents.

    uv run python -m benchmarks.model [--quick] [--sizes NAME ..] [--torch-python PATH]

On a GPU at 124M and 1B, on a CPU at a size that two cores step in a second. Each side steps in a
process of its own. PyTorch may live in another environment: `--torch-python` or
`CHOMP_TORCH_PYTHON` names its interpreter. Cores and GPU have to be quiet.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import jax

from benchmarks.device_programs import matmul_ceiling
from benchmarks.model_sizes import SIZES, measured_platform, sizes_for
from benchmarks.record import Figure, record
from benchmarks.step_process import StepProcess, clean_environment
from benchmarks.timing import note
from chomp.errors import ConfigError

OURS, PEER = "benchmarks.training_step", "benchmarks.peers.torch_decoder"
SPEED_GOALS = {"cpu": 0.8, "gpu": 1.05}
FIRST_STEP_GOAL = 1 / 3
# A dense mask costs with the square of the length: on rows of 1024 tokens nothing was promised.
DENSE_MASK_GOALS = {"1b": 1.3}
# Dense bfloat16, by a part of the device's name; other devices get no MFU.
DATASHEET_FLOPS = {"H100": 989e12, "H200": 989e12}


@dataclass
class Found:
    """What the two sides of one size said, and seconds of a step by way; `torch` is the peer's."""

    ours: dict[str, Any] = field(default_factory=dict)
    torch: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """How both sides are started and timed."""

    platform: str
    torch_python: str
    environment: Mapping[str, str]
    rounds: int
    steps: int  # of each way in each round

    def measured(self, name: str) -> Found:
        """One size. On a CPU the sides take turns; on a GPU each has the memory to itself."""
        found = Found()
        if self.platform == "cpu":
            with self._ours(name, found) as ours, self._torch(name, found) as torch:
                self._in_turn(name, found, self._ways_of(ours) | {"torch": (torch, "causal")})
            return found
        with self._ours(name, found) as ours:
            self._in_turn(name, found, self._ways_of(ours))
        with self._torch(name, found) as torch:
            self._in_turn(name, found, {"torch": (torch, "causal")})
        return found

    def _in_turn(
        self, name: str, found: Found, turns: Mapping[str, tuple[StepProcess, str]]
    ) -> None:
        times: dict[str, list[float]] = {key: [] for key in turns}
        for _ in range(self.rounds):
            for key, (process, way) in turns.items():
                times[key].append(process.seconds(way, self.steps))
        for key, seconds in times.items():
            found.seconds[key] = median(seconds)
            speed, spread = SIZES[name].step_tokens / median(seconds), max(seconds) / min(seconds)
            note(f"{name}, {key}: {speed:,.0f} tokens/s, slowest round {spread:.3f} of the fastest")

    def _ways(self) -> tuple[str, ...]:
        return ("causal", "documents", *(() if self.platform == "cpu" else ("dense mask",)))

    def _ways_of(self, ours: StepProcess) -> dict[str, tuple[StepProcess, str]]:
        return {way: (ours, way) for way in self._ways()}

    def _ours(self, name: str, found: Found) -> StepProcess:
        process = self._started(sys.executable, OURS, name)
        found.ours = process.report
        return process

    def _torch(self, name: str, found: Found) -> StepProcess:
        process = self._started(self.torch_python, PEER, name)
        found.torch = process.report
        return process

    def _started(self, python: str, module: str, name: str) -> StepProcess:
        note(f"{name}: {module}")
        spec = {
            "size": asdict(SIZES[name]),
            "ways": self._ways(),
            "platform": self.platform,
            "started": time.time(),
        }
        process = StepProcess([python, "-m", module, json.dumps(spec)], self.environment)
        first, loss = process.report["first_step_s"], process.report["loss"]
        note(f"{name}: ready; first step in {first:.1f} s, loss after the warm-up {loss:.3f}")
        return process


def figures_of(name: str, found: Found, *, platform: str, ceiling: float) -> list[Figure]:
    """The figures of one size; a large product reaches `ceiling` operations a second."""
    torch = f"torch.compile, PyTorch {found.torch['version']}"
    figures = [
        _speed(name, found, "causal", peer="torch", called=torch, goal=SPEED_GOALS[platform]),
        _start(f"{name}, to the first step", found, "first_step_s", torch, FIRST_STEP_GOAL),
        _start(f"{name}, process to the first step", found, "from_start_s", torch, None),
    ]
    if platform != "cpu":
        figures.append(_peak_memory(name, found, torch))
    figures += _shares(name, found, ceiling)
    goal = None if platform == "cpu" else 1.0
    called = "ours without documents"
    figures.append(_speed(name, found, "documents", peer="causal", called=called, goal=goal))
    if "dense mask" in found.seconds:
        called, goal = "ours with a dense mask by cuDNN", DENSE_MASK_GOALS.get(name)
        figure = _speed(name, found, "documents", peer="dense mask", called=called, goal=goal)
        figures.append(figure)
    return figures


def _speed(
    name: str, found: Found, way: str, *, peer: str, called: str, goal: float | None
) -> Figure:
    tokens = SIZES[name].step_tokens
    what = "training step" if way == "causal" else f"training step, {way}, beside {peer}"
    return Figure(
        name=f"{name}, {what}",
        value=tokens / found.seconds[way],
        unit="tokens/s",
        better="higher",
        peer=called,
        peer_value=tokens / found.seconds[peer],
        goal=goal,
        goal_on="ratio",
    )


def _start(name: str, found: Found, key: str, peer: str, goal: float | None) -> Figure:
    return Figure(
        name=name,
        value=found.ours[key],
        unit="s",
        better="lower",
        peer=peer,
        peer_value=found.torch[key],
        goal=goal,
        goal_on="ratio",
    )


def _peak_memory(name: str, found: Found, peer: str) -> Figure:
    return Figure(
        name=f"{name}, peak memory",
        value=found.ours["peak_bytes"] / 2**30,
        unit="GiB",
        better="lower",
        peer=peer,
        peer_value=found.torch["peak_bytes"] / 2**30,
        goal=1.0,
        goal_on="ratio",
    )


def _shares(name: str, found: Found, ceiling: float) -> list[Figure]:
    """What part of the device's speed the model's own operations use."""
    flops = found.ours["flops_per_token"] * SIZES[name].step_tokens / found.seconds["causal"]
    kind = jax.devices()[0].device_kind
    datasheet = [peak for part, peak in DATASHEET_FLOPS.items() if part in kind]
    peaks = {"share of the measured product": ceiling}
    peaks |= {"MFU": datasheet[0]} if datasheet else {}
    return [
        Figure(name=f"{name}, {share}", value=100 * flops / peak, unit="%", better="higher")
        for share, peak in peaks.items()
    ]


def torch_interpreter(asked_for: str | None) -> str:
    """The interpreter that has PyTorch: the one asked for, or this one."""
    python = asked_for or os.environ.get("CHOMP_TORCH_PYTHON") or sys.executable
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    if subprocess.run([python, "-c", look]).returncode:
        raise SystemExit(
            str(
                ConfigError(
                    f"no package torch, which the step is compared with, in {python}",
                    allowed="an interpreter with PyTorch 2.4 or newer; on a CPU a C++ compiler too",
                    fix="pass --torch-python PATH, set CHOMP_TORCH_PYTHON, or install torch here",
                )
            )
        )
    return python


def main() -> None:
    """Measure every size of this device, and record it all unless only part was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is written")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, help="these only; nothing is written")
    parser.add_argument("--torch-python", help="interpreter of an environment that has PyTorch")
    arguments = parser.parse_args()
    torch_python = torch_interpreter(arguments.torch_python)  # missing, it shows now
    with tempfile.TemporaryDirectory() as caches:
        environment = clean_environment(caches)
        # This process looks at the GPU, and leaves its memory to those that it starts.
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        platform = measured_platform()
        bench = SideBySide(
            platform=platform,
            torch_python=torch_python,
            environment=environment,
            rounds=1 if arguments.quick else 5 if platform == "cpu" else 3,
            steps=2 if platform == "cpu" else 3 if arguments.quick else 10,
        )
        names = arguments.sizes or sizes_for(platform)
        measured = {name: bench.measured(name) for name in names}
    ceiling = matmul_ceiling()
    figures = [
        Figure(name="one large product", value=ceiling / 1e12, unit="TFLOP/s", better="higher")
    ]
    for name, found in measured.items():
        figures += figures_of(name, found, platform=platform, ceiling=ceiling)
    record("model", figures, is_quick=bool(arguments.quick or arguments.sizes))


if __name__ == "__main__":
    main()
