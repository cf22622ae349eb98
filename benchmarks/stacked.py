"""Stacked layers beside base's: time to compile 48 of them, memory with block remat, a step.

    uv run python -m benchmarks.stacked [--quick]

On a GPU at 1B, on a CPU at a size that two cores step in a second. Each template compiles and steps
in processes of its own, so that neither finds what the other left in memory or in a compiler's
caches. Memory is what the compiled program asks for (state, batch, everything in between), and on
a GPU also what the device saw at most. Cores and GPU have to be quiet.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from types import ModuleType
from typing import Any

import jax
from jax.sharding import Mesh

from benchmarks.model_sizes import SIZES, ModelSize, measured_platform
from benchmarks.record import Figure, record
from benchmarks.step_process import StepProcess, clean_environment, serve
from benchmarks.timing import note
from benchmarks.training_step import OPTIMIZER, SCHEDULE_STEPS, batch_of, model_config
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, compiler_options, create_mesh, place_batch, prepare_cpu_steps

OURS, PEER = "array_stacked", "base"
DEEP_LAYERS = 48
COMPILE_GOAL, MEMORY_GOAL = 1 / 4, 1.0
# By size. Nothing was promised of a CPU, where keeping what a layer leaves behind in stacks costs
# as much as recomputing it.
STEP_GOALS = {"1b": 1.10}
WARMUP_STEPS = 2
# The names of the figures, by `model.remat`.
WAYS = {"block": "model.remat=block", "none": "no remat"}


class Template:
    """A template's training step at one size."""

    def __init__(self, name: str, size: ModelSize, mesh: Mesh, *, remat: str) -> None:
        model = importlib.import_module(f"experiments.grug.{name}.model")
        self._train: ModuleType = importlib.import_module(f"experiments.grug.{name}.train")
        # Each template has a config class of its own; the fields are the same.
        own = model_config(size, remat=remat)
        self._config = model.GrugModelConfig(**{f.name: getattr(own, f.name) for f in fields(own)})
        is_on_cpu = jax.default_backend() == "cpu"
        self._mp = Precision(compute="float32" if is_on_cpu else "bfloat16")
        self._mesh = mesh
        self.batch = place_batch(batch_of(size, has_documents=False), mesh, batch_axis=1)
        key = jax.random.key(0)
        shapes = jax.eval_shape(lambda: model.Transformer.init(self._config, key=key))
        self._optimizer = OPTIMIZER.build(SCHEDULE_STEPS, shapes.param_groups())

    def state(self) -> Any:
        """A fresh state."""
        return self._train.initial_state(
            self._config,
            optimizer=self._optimizer,
            mp=self._mp,
            key=jax.random.key(0),
            ema_beta=None,
        )

    def compiled(self, state: Any) -> Any:
        """The step as a program for a state, or for its shapes."""
        step = self._train._make_train_step(
            self._optimizer, self._mp, z_loss_weight=0.0, ema_beta=None
        )
        lowered = step.lower(state, self.batch)
        return lowered.compile(compiler_options=compiler_options(self._mesh))


def compile_seconds(name: str, size: ModelSize, mesh: Mesh) -> float:
    """Seconds to trace and compile a step of many layers; nothing of it is ever made."""
    template = Template(name, replace(size, num_layers=DEEP_LAYERS), mesh, remat="none")
    state = jax.eval_shape(template.state)
    begin = time.perf_counter()
    template.compiled(state)
    return time.perf_counter() - begin


class Stepper:
    """One state of a template, stepped with its blocks recomputed or not."""

    def __init__(self, name: str, size: ModelSize, mesh: Mesh) -> None:
        self._ways = {way: Template(name, size, mesh, remat=way) for way in WAYS}
        self._leaves = jax.tree.leaves(next(iter(self._ways.values())).state())
        self._programs: dict[str, tuple[Any, Any]] = {}

    def compile(self, way: str) -> dict[str, int | None]:
        """Compile that way and take its first steps; gives the memory it takes."""
        template = self._ways[way]
        # The arrays are the same in every way; the model's config is part of the tree they form.
        tree = jax.tree.structure(jax.eval_shape(template.state))
        compiled = template.compiled(jax.tree.unflatten(tree, self._leaves))
        self._programs[way] = compiled, tree
        self.take(way, 1 + WARMUP_STEPS)
        used = compiled.memory_analysis()
        return {
            # The state is donated: what comes out lies where it came in.
            "asked": used.argument_size_in_bytes + used.temp_size_in_bytes,
            "peak": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
        }

    def take(self, way: str, steps: int) -> None:
        """That many steps, done when this returns."""
        compiled, tree = self._programs[way]
        state = jax.tree.unflatten(tree, self._leaves)
        for _ in range(steps):
            state, metrics = compiled(state, self._ways[way].batch)
        self._leaves = jax.tree.leaves(state)
        jax.block_until_ready((self._leaves, metrics))


def serve_template(spec: Mapping[str, Any]) -> None:
    """A process's own side: compile many layers, or tell memory and take steps."""
    prepare_cpu_steps()  # as a run does
    mesh, size = create_mesh(MeshConfig()), ModelSize(**spec["size"])
    with jax.set_mesh(mesh):
        if spec["is_compile_only"]:
            print(json.dumps({"seconds": compile_seconds(spec["template"], size, mesh)}))
            return
        stepper = Stepper(spec["template"], size, mesh)
        # What takes less memory goes first: a device tells its highest mark so far.
        serve({way: stepper.compile(way) for way in WAYS}, stepper.take)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """How both templates are started and timed at one size."""

    name: str
    environment: Mapping[str, str]
    rounds: int
    steps: int  # of each way in each round

    def figures(self, *, has_compile: bool, has_steps: bool) -> list[Figure]:
        """All figures, or those that were asked for."""
        figures = self._compile_figures() if has_compile else []
        return [*figures, *self._step_figures()] if has_steps else figures

    def _started(self, template: str, *, is_compile_only: bool) -> StepProcess:
        spec = {
            "template": template,
            "size": asdict(SIZES[self.name]),
            "is_compile_only": is_compile_only,
        }
        command = [sys.executable, "-m", "benchmarks.stacked", "--serve", json.dumps(spec)]
        return StepProcess(command, self.environment)

    def _compile_figures(self) -> list[Figure]:
        found = {}
        for template in (OURS, PEER):
            with self._started(template, is_compile_only=True) as process:
                found[template] = process.report["seconds"]
            note(f"{template}: {DEEP_LAYERS} layers compiled in {found[template]:.1f} s")
        return [_figure(f"{DEEP_LAYERS} layers, to compile", "s", found, COMPILE_GOAL)]

    def _step_figures(self) -> list[Figure]:
        reports: dict[str, Any] = {}
        times: dict[str, dict[str, float]] = {way: {} for way in WAYS}
        # Where both may keep their memory they take turns, so that noise hits both alike.
        if measured_platform() == "cpu":
            with self._stepping(OURS) as ours, self._stepping(PEER) as peer:
                self._timed({OURS: ours, PEER: peer}, reports, times)
        else:
            for template in (OURS, PEER):
                with self._stepping(template) as process:
                    self._timed({template: process}, reports, times)
        figures = []
        for way, called in WAYS.items():
            goal = STEP_GOALS.get(self.name) if way == "none" else None
            figures.append(_figure(f"{self.name}, step, {called}", "ms", times[way], goal))
        for what, called in (("asked", "memory of the program"), ("peak", "peak on the device")):
            found = {template: report["block"][what] for template, report in reports.items()}
            if None not in found.values():
                gib = {template: count / 2**30 for template, count in found.items()}
                name = f"{self.name}, {called}, {WAYS['block']}"
                figures.append(_figure(name, "GiB", gib, MEMORY_GOAL))
        return figures

    def _stepping(self, template: str) -> StepProcess:
        return self._started(template, is_compile_only=False)

    def _timed(
        self,
        processes: Mapping[str, StepProcess],
        reports: dict[str, Any],
        times: Mapping[str, dict[str, float]],
    ) -> None:
        """Add what the processes said of their memory, and milliseconds of a step by way."""
        reports |= {template: process.report for template, process in processes.items()}
        for way in WAYS:
            seconds: dict[str, list[float]] = {template: [] for template in processes}
            for _ in range(self.rounds):
                for template, process in processes.items():
                    seconds[template].append(process.seconds(way, self.steps))
            for template, found in seconds.items():
                times[way][template] = 1e3 * median(found)
                note(
                    f"{template}, {WAYS[way]}: {times[way][template]:.1f} ms a step, slowest round "
                    f"{max(found) / min(found):.3f} of the fastest"
                )


def _figure(name: str, unit: str, found: Mapping[str, float], goal: float | None) -> Figure:
    return Figure(
        name=name,
        value=found[OURS],
        unit=unit,
        better="lower",
        peer="base",
        peer_value=found[PEER],
        goal=goal,
        goal_on="ratio",
    )


def main() -> None:
    """Measure all, and record it unless only part was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is written")
    parser.add_argument("--only", choices=("compile", "steps"), help="nothing is written")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # in the processes that this starts
    arguments = parser.parse_args()
    if arguments.serve:
        serve_template(json.loads(arguments.serve))
        return
    with tempfile.TemporaryDirectory() as caches:
        # This process looks at the GPU, and leaves its memory to those that it starts.
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        is_on_cpu = measured_platform() == "cpu"
        bench = Bench(
            name="cpu" if is_on_cpu else "1b",
            environment=clean_environment(caches),
            rounds=1 if arguments.quick else 3,
            steps=2 if is_on_cpu else 3 if arguments.quick else 10,
        )
        figures = bench.figures(
            has_compile=arguments.only != "steps", has_steps=arguments.only != "compile"
        )
    record("stacked", figures, is_quick=bool(arguments.quick or arguments.only))


if __name__ == "__main__":
    main()
