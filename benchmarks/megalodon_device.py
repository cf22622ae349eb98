"""What one device does with our Megalodon: training, long rows, attention kernels, generation.

Figures for `benchmarks.megalodon`, on a GPU at 200M in bfloat16. Lengths are in chunks, so that a
model with short chunks goes through all of this on a CPU. A step has 16 chunks of tokens: 32,768.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks.megalodon_step import Gradients, TrainingStep, rows_of
from benchmarks.model import DATASHEET_FLOPS
from benchmarks.record import Figure
from benchmarks.timing import in_turn, note, phase
from chomp.data import GrugLmExample
from chomp.evaluation import generate
from chomp.kernels.attention import Backend
from chomp.kernels.precision import Precision
from experiments.grug.megalodon.model import GrugModelConfig, Transformer

STEP_CHUNKS = 16
LONG_CHUNKS, LONGEST_CHUNKS, ENDLESS_CHUNKS = 4, 16, 32  # 8k, 32k and 64k
CONTEXT_GOAL, DOCUMENTS_GOAL = 1.1, 1.25
GENERATION_GOAL = 100.0  # tokens/s of one text
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "chunked")
PROMPT_TOKENS = 32
MP = Precision(compute="bfloat16")
WARMUP_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Device:
    """What is measured on this process's device, inside its mesh, and how often."""

    cfg: GrugModelConfig
    mesh: Mesh
    rounds: int
    steps: int  # in each round

    @property
    def step_tokens(self) -> int:
        """Tokens of one step, whatever the length of its rows."""
        return STEP_CHUNKS * self.cfg.chunk_size

    def rows(self, chunks: int, *, has_documents: bool = False) -> GrugLmExample:
        """A step's tokens in rows of that many chunks."""
        length = chunks * self.cfg.chunk_size
        return rows_of(self.cfg, STEP_CHUNKS // chunks, length, has_documents=has_documents)

    def seconds(self, programs: Mapping[str, Gradients | TrainingStep]) -> dict[str, float]:
        """Median seconds of a step of each program, taken in turn after a warm-up."""
        for name, program in programs.items():
            loss, told = program.take(WARMUP_STEPS), program.report
            note(
                f"{name}: compiled in {told['compile_s']:.1f} s, "
                f"{told['temp_bytes'] / 2**30:.2f} GiB, loss {loss:.4f}"
            )
        turns = [partial(program.take, self.steps) for program in programs.values()]
        found = [total / self.steps for total in in_turn(self.rounds, *turns)]
        for name, seconds in zip(programs, found, strict=True):
            note(f"{name}: {1e3 * seconds:.2f} ms, {self.step_tokens / seconds:,.0f} tokens/s")
        gc.collect()  # states of earlier parts
        return dict(zip(programs, found, strict=True))


def training(device: Device) -> list[Figure]:
    """Tokens per second and MFU of the template's step, and what packed documents cost it."""
    rows = {
        "plain": device.rows(1),
        "packed": device.rows(1, has_documents=True),
        "long": device.rows(LONG_CHUNKS),
    }
    with phase("compiling training steps"):
        steps = {way: TrainingStep(device.cfg, each, MP, device.mesh) for way, each in rows.items()}
    seconds = device.seconds(steps)
    memory = {way: step.report["temp_bytes"] / 2**30 for way, step in steps.items()}
    name = "training step, packed documents"
    return [
        *_speed(device, 1, seconds["plain"]),
        *_speed(device, LONG_CHUNKS, seconds["long"]),
        cost_of_documents(f"{name}, time", "s", seconds, DOCUMENTS_GOAL),
        cost_of_documents(f"{name}, memory", "GiB", memory, DOCUMENTS_GOAL),
    ]


def context(device: Device) -> list[Figure]:
    """Time of a token in long rows beside short ones, at as many tokens in a batch."""
    with phase("compiling forward and backward"):
        model = Transformer.init(device.cfg, key=jax.random.key(0))
        programs = {
            name: Gradients(model, device.rows(chunks), MP, device.mesh)
            for name, chunks in (("short", 1), ("long", LONGEST_CHUNKS))
        }
    found = device.seconds(programs)
    each = {name: 1e6 * seconds / device.step_tokens for name, seconds in found.items()}
    chunk = device.cfg.chunk_size
    return [
        Figure(
            name=f"forward and backward, rows of {LONGEST_CHUNKS * chunk:,}, of a token",
            value=each["long"],
            unit="us",
            better="lower",
            peer=f"rows of {chunk:,}",
            peer_value=each["short"],
            goal=CONTEXT_GOAL,
            goal_on="ratio",
        )
    ]


def kernels(device: Device) -> list[Figure]:
    """The same step by other attention backends, which a config may ask for."""
    with phase("compiling training steps"):
        steps: dict[str, TrainingStep] = {}
        for backend in BACKENDS:
            cfg = replace(device.cfg, attention=backend)
            steps[backend] = TrainingStep(cfg, device.rows(1), MP, device.mesh)
    found = device.seconds(steps)
    return [
        Figure(
            name=f"training step, model.attention={backend}",
            value=device.step_tokens / seconds,
            unit="tokens/s",
            better="higher",
            peer=None if backend == "auto" else "auto",
            peer_value=None if backend == "auto" else device.step_tokens / found["auto"],
        )
        for backend, seconds in found.items()
    ]


def generation(device: Device) -> list[Figure]:
    """Tokens per second of one greedy text, and what is kept of a stream."""
    weights = Transformer.init(device.cfg, key=jax.random.key(0))
    model = MP.for_compute(weights)  # as `chomp generate` does, once
    # Together one chunk: attention looks at a cache that is as large as it can become.
    max_tokens = device.cfg.chunk_size - PROMPT_TOKENS
    prompt = np.random.default_rng(0).integers(0, device.cfg.vocab_size, PROMPT_TOKENS).tolist()
    write = partial(
        generate,
        model,
        prompt,
        mesh=device.mesh,
        max_tokens=max_tokens,
        eos_id=-1,  # no token: the text goes on to its limit
    )
    with phase("compiling generation"):
        assert len(write()) == max_tokens
    (seconds,) = in_turn(min(device.rounds, 3), write)
    note(f"{max_tokens} tokens generated in {seconds:.2f} s")
    return [
        Figure(
            name=f"generation of {max_tokens:,} tokens, one greedy text",
            value=max_tokens / seconds,
            unit="tokens/s",
            better="higher",
            goal=GENERATION_GOAL,
        ),
        _cache_figure(device, model),
    ]


def _cache_figure(device: Device, model: Any) -> Figure:
    chunk = device.cfg.chunk_size

    def cache_mib(max_len: int) -> float:
        cache = jax.eval_shape(lambda: model.init_cache(1, max_len))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache)) / 2**20

    return Figure(
        name=f"cache of a text of {ENDLESS_CHUNKS * chunk:,}",
        value=cache_mib(ENDLESS_CHUNKS * chunk),
        unit="MiB",
        better="lower",
        peer=f"of {chunk:,}",
        peer_value=cache_mib(chunk),
        goal=1.0,
        goal_on="ratio",
    )


def _speed(device: Device, chunks: int, seconds: float) -> list[Figure]:
    length = chunks * device.cfg.chunk_size
    name, speed = f"training step, rows of {length:,}", device.step_tokens / seconds
    figures = [Figure(name=name, value=speed, unit="tokens/s", better="higher")]
    flops = 3 * device.cfg.flops_per_token(length) * speed
    kind = jax.devices()[0].device_kind
    figures += [
        Figure(name=f"{name}, MFU", value=100 * flops / peak, unit="%", better="higher")
        for part, peak in DATASHEET_FLOPS.items()
        if part in kind
    ]
    return figures


def cost_of_documents(
    name: str, unit: str, found: Mapping[str, float], goal: float | None
) -> Figure:
    """A figure of packed rows beside the same without documents."""
    return Figure(
        name=name,
        value=found["packed"],
        unit=unit,
        better="lower",
        peer="one document in a row",
        peer_value=found["plain"],
        goal=goal,
        goal_on="ratio",
    )


DEVICE_PARTS: dict[str, Callable[[Device], list[Figure]]] = {
    "training": training,
    "context": context,
    "kernels": kernels,
    "generation": generation,
}
