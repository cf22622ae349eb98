"""What each way to save device memory saves, and what it costs: docs/references/hbm-optimization.

    uv run python -m benchmarks.memory [--quick]

The base template's step at 1B on a GPU, at a small size on a CPU, once as it is and once for each
way. Memory is what the compiled program asks for: state, batch and everything in between.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh

from benchmarks.model_sizes import SIZES, ModelSize, measured_platform
from benchmarks.record import Figure, record
from benchmarks.timing import note
from benchmarks.training_step import OPTIMIZER, SCHEDULE_STEPS, batch_of, model_config
from chomp.kernels import loss
from chomp.kernels.precision import Precision
from chomp.mesh import (
    MeshConfig,
    compiler_options,
    create_mesh,
    place_batch,
    prepare_cpu_steps,
)
from experiments.grug.base.model import Transformer
from experiments.grug.base.train import _make_train_step, initial_state


@dataclass(frozen=True, kw_only=True)
class Way:
    """One change to the plain step."""

    changes: dict[str, Any] = field(default_factory=dict)  # of the model's config
    micro_batches: int = 1
    has_all_logits: bool = False


PLAIN = "as it is"
WAYS = {
    PLAIN: Way(),
    "model.remat=matmuls": Way(changes={"remat": "matmuls"}),
    "model.remat=block": Way(changes={"remat": "block"}),
    "half the rows, train.grad_accum=2": Way(micro_batches=2),
    "all logits at once (not chunked)": Way(has_all_logits=True),
}


@contextmanager
def _loss_of(way: Way) -> Iterator[None]:
    """Inside, the template's loss is computed as `way` says."""
    # The room's own name, which the template calls it by; this process does nothing else.
    own: Callable[..., Any] = loss.linear_cross_entropy
    if way.has_all_logits:
        loss.linear_cross_entropy = partial(own, implementation="reference")
    try:
        yield
    finally:
        loss.linear_cross_entropy = own


def measured(way: Way, size: ModelSize, mesh: Mesh, steps: int) -> tuple[float, float]:
    """GiB that the step takes on the device, and its tokens per second."""
    cfg, mp = model_config(size, **way.changes), Precision(compute="bfloat16")
    abstract = jax.eval_shape(lambda: Transformer.init(cfg, key=jax.random.key(0)))
    optimizer = OPTIMIZER.build(SCHEDULE_STEPS, abstract.param_groups())
    state = initial_state(cfg, optimizer=optimizer, mp=mp, key=jax.random.key(0), ema_beta=None)
    rows = batch_of(size, has_documents=False)
    shape = (way.micro_batches, size.batch_size // way.micro_batches, size.seq_len)
    batch = place_batch(jax.tree.map(lambda a: a.reshape(shape), rows), mesh, batch_axis=1)
    step = _make_train_step(optimizer, mp, z_loss_weight=0.0, ema_beta=None)
    with _loss_of(way):
        lowered = step.lower(state, batch)
        compiled = lowered.compile(compiler_options=compiler_options(mesh))
    used = compiled.memory_analysis()
    for count in (2, steps):
        begin = time.perf_counter()
        for _ in range(count):
            state, metrics = compiled(state, batch)
        jax.block_until_ready((state, metrics))
    speed = steps * size.step_tokens / (time.perf_counter() - begin)
    # The state is donated: what comes out lies where it came in.
    return (used.argument_size_in_bytes + used.temp_size_in_bytes) / 2**30, speed


def main() -> None:
    """Measure every way; the plain step is the peer of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps; nothing is written")
    arguments = parser.parse_args()
    prepare_cpu_steps()  # as a run does
    name = "cpu" if measured_platform() == "cpu" else "1b"
    mesh, found = create_mesh(MeshConfig()), {}
    with jax.set_mesh(mesh):
        for label, way in WAYS.items():
            found[label] = measured(way, SIZES[name], mesh, 1 if arguments.quick else 6)
            gc.collect()  # the last state goes before the next comes
            note(f"{name}, {label}: {found[label][0]:.2f} GiB, {found[label][1]:,.0f} tokens/s")
    figures = []
    for label, numbers in found.items():
        for what, unit, better, i in (
            ("", "GiB", "lower", 0),
            (", speed", "tokens/s", "higher", 1),
        ):
            is_peer = label == PLAIN
            figures.append(
                Figure(
                    name=f"{name}, {label}{what}",
                    value=numbers[i],
                    unit=unit,
                    better=better,
                    peer=None if is_peer else PLAIN,
                    peer_value=None if is_peer else found[PLAIN][i],
                )
            )
    record("memory", figures, is_quick=arguments.quick)


if __name__ == "__main__":
    main()
