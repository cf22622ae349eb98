"""Our Megalodon's programs, compiled as a run compiles them; forward and backward also served.

    python -m benchmarks.megalodon_step SPEC

SPEC is JSON: the model's fields, the dtype to compute in, the batch, and the ways to go through it.
`plain` rows are one document each, `packed` ones hold about eight. A training step, which no peer
has, is for `benchmarks.megalodon_device`.
"""

import json
import sys
import time
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh

from benchmarks.model_sizes import ModelSize
from benchmarks.step_process import serve
from benchmarks.training_step import OPTIMIZER, SCHEDULE_STEPS, batch_of
from chomp.data import GrugLmExample
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, compiler_options, create_mesh, place_batch, prepare_cpu_steps
from chomp.tracking.metrics import TRAIN_LOSS
from experiments.grug.megalodon.model import GrugModelConfig, Transformer
from experiments.grug.megalodon.train import _make_train_step, initial_state


def rows_of(
    cfg: GrugModelConfig, batch_size: int, seq_len: int, *, has_documents: bool
) -> GrugLmExample:
    """One step's rows `[1, B, T]`; packed ones hold documents of T/8 tokens in the mean."""
    size = ModelSize(
        hidden_dim=cfg.model_dim,
        num_layers=cfg.num_layers,
        num_heads=cfg.num_heads,
        intermediate_dim=cfg.ffn_hidden_dim,
        vocab_size=cfg.vocab_size,
        batch_size=batch_size,
        seq_len=seq_len,
    )
    return batch_of(size, has_documents=has_documents)


class Gradients:
    """The mean loss of a batch and its gradients, without an optimizer."""

    def __init__(self, model: Transformer, rows: GrugLmExample, mp: Precision, mesh: Mesh) -> None:
        def loss_of(params: Transformer, batch: GrugLmExample) -> Any:
            return mp.for_compute(params).next_token_loss(
                batch.tokens, batch.loss_weight, mask=batch.attn_mask
            )

        flat = jax.tree.map(lambda array: array[0], rows)
        self._batch, self._model = place_batch(flat, mesh, batch_axis=0), model
        begin = time.perf_counter()
        lowered = jax.jit(jax.value_and_grad(loss_of)).lower(model, self._batch)
        self._compiled = lowered.compile(compiler_options=compiler_options(mesh))
        self.report = told(self._compiled, time.perf_counter() - begin)

    def take(self, calls: int) -> float:
        """The loss after that many calls, all done when this returns."""
        for _ in range(calls):
            # Before the next call, or two sets of gradients would lie beside each other.
            loss, _ = jax.block_until_ready(self._compiled(self._model, self._batch))
        return float(loss)


class TrainingStep:
    """The template's own step with AdamW on one batch, and the state that it carries on."""

    def __init__(
        self, cfg: GrugModelConfig, rows: GrugLmExample, mp: Precision, mesh: Mesh
    ) -> None:
        key = jax.random.key(0)
        shapes = jax.eval_shape(lambda: Transformer.init(cfg, key=key))
        optimizer = OPTIMIZER.build(SCHEDULE_STEPS, shapes.param_groups())
        self._state = initial_state(cfg, optimizer=optimizer, mp=mp, key=key, ema_beta=None)
        self._batch = place_batch(rows, mesh, batch_axis=1)
        step = _make_train_step(optimizer, mp, z_loss_weight=0.0, ema_beta=None)
        begin = time.perf_counter()
        lowered = step.lower(self._state, self._batch)
        self._compiled = lowered.compile(compiler_options=compiler_options(mesh))
        self.report = told(self._compiled, time.perf_counter() - begin)

    def take(self, steps: int) -> float:
        """The loss after that many steps, all done when this returns."""
        for _ in range(steps):
            self._state, metrics = self._compiled(self._state, self._batch)
        jax.block_until_ready(self._state)
        return float(metrics[TRAIN_LOSS])


def told(compiled: Any, seconds: float) -> dict[str, float]:
    """What is known of a program before it runs: seconds to get it, memory beside its arguments."""
    return {
        "compile_s": seconds,
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def main(spec: dict[str, Any]) -> None:
    """Compile every way, tell what that took, then serve unless that was all."""
    prepare_cpu_steps()  # as a run does
    mesh, mp = create_mesh(MeshConfig()), Precision(compute=spec["compute"])
    cfg = GrugModelConfig(**spec["model"])
    fresh = partial(Transformer.init, cfg, key=jax.random.key(0))
    with jax.set_mesh(mesh):
        model = jax.eval_shape(fresh) if spec["is_compile_only"] else fresh()
        ways = {}
        for way in spec["ways"]:
            rows = rows_of(cfg, *spec["batch_shape"], has_documents=way == "packed")
            ways[way] = Gradients(model, rows, mp, mesh)
        report: dict[str, Any] = {way: program.report for way, program in ways.items()}
        if spec["is_compile_only"]:
            print(json.dumps(report))
            return
        for way, program in ways.items():
            report[way]["loss"] = program.take(spec["warmup"])

        def take(way: str, calls: int) -> None:
            ways[way].take(calls)

        serve(report, take)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
