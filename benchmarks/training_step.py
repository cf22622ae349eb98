"""The base template's own training step, served to `benchmarks.model` (see `step_process`).

    python -m benchmarks.training_step SPEC

SPEC is JSON: the size, when the process was started, and the ways to step. `causal` is the plain
step, `documents` the same over packed documents, `dense mask` those through cuDNN's dense form.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from benchmarks.model_sizes import ModelSize, document_ids
from benchmarks.peers.dense_mask_attention import dense_mask_attention
from benchmarks.step_process import serve
from chomp.data import GrugLmExample
from chomp.kernels.attention import AttentionMask
from chomp.kernels.precision import Precision
from chomp.mesh import (
    MeshConfig,
    compiler_options,
    create_mesh,
    place_batch,
    prepare_cpu_steps,
)
from chomp.optim import GrugOptimizerConfig
from chomp.tracking.metrics import TRAIN_LOSS
from experiments.grug.base import model
from experiments.grug.base.model import GrugModelConfig, Transformer
from experiments.grug.base.train import _make_train_step, initial_state

WARMUP_STEPS = 4
# The peer's optimizer: AdamW at a constant rate. Over so many steps our schedule is constant too.
OPTIMIZER = GrugOptimizerConfig(lr=3e-4, weight_decay=0.1, grad_clip_norm=1.0, warmup_steps=0)
SCHEDULE_STEPS = 10**6


def model_config(size: ModelSize, **changes: Any) -> GrugModelConfig:
    """The template's model at the peer's math: relu², full heads, queries and keys as they are."""
    config = GrugModelConfig(
        vocab_size=size.vocab_size,
        hidden_dim=size.hidden_dim,
        intermediate_dim=size.intermediate_dim,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        num_kv_heads=size.num_heads,
        max_seq_len=size.seq_len,
        mlp="relu2",
        qk_norm=False,
    )
    return replace(config, **changes)


def batch_of(size: ModelSize, *, has_documents: bool) -> GrugLmExample:
    """One step's rows of random tokens `[1, B, T]`, every token counting but a row's last."""
    shape = (1, size.batch_size, size.seq_len)
    tokens = np.random.default_rng(0).integers(0, size.vocab_size, shape, dtype=np.int32)
    weight = np.ones(shape, np.float32)
    weight[..., -1] = 0.0
    ids = document_ids(*shape[1:])[None] if has_documents else None
    return GrugLmExample(
        tokens=tokens, loss_weight=weight, attn_mask=AttentionMask.causal(segment_ids=ids)
    )


class Stepper:
    """A training state and the compiled ways to step it."""

    def __init__(self, size: ModelSize, mesh: Mesh) -> None:
        is_on_cpu = jax.default_backend() == "cpu"
        self._size, self._mesh = size, mesh
        self._mp = Precision(compute="float32" if is_on_cpu else "bfloat16")
        cfg = model_config(size)
        abstract = jax.eval_shape(lambda: Transformer.init(cfg, key=jax.random.key(0)))
        self._optimizer = OPTIMIZER.build(SCHEDULE_STEPS, abstract.param_groups())
        self._ways: dict[str, Callable[[Any], Any]] = {}
        start = initial_state(
            cfg, optimizer=self._optimizer, mp=self._mp, key=jax.random.key(0), ema_beta=None
        )
        self._state = jax.block_until_ready(start)
        self.loss = float("nan")

    def compile(self, way: str) -> None:
        """The step of that way as a program, compiled as a run compiles it."""
        batch = batch_of(self._size, has_documents=way != "causal")
        placed = place_batch(batch, self._mesh, batch_axis=1)
        step = _make_train_step(self._optimizer, self._mp, z_loss_weight=0.0, ema_beta=None)
        with _attention_of(way):
            lowered = step.lower(self._state, placed)
            compiled = lowered.compile(compiler_options=compiler_options(self._mesh))
        self._ways[way] = lambda state: compiled(state, placed)

    def take(self, way: str, steps: int) -> None:
        """That many steps, done when this returns."""
        for _ in range(steps):
            self._state, metrics = self._ways[way](self._state)
        jax.block_until_ready((self._state, metrics))
        self.loss = float(metrics[TRAIN_LOSS])


@contextmanager
def _attention_of(way: str) -> Iterator[None]:
    """Inside, the template's model attends as `way` says; this process does nothing else."""
    own = model.attention
    model.attention = dense_mask_attention if way == "dense mask" else own
    try:
        yield
    finally:
        model.attention = own


def main(spec: dict[str, Any]) -> None:
    """Take the first steps, say what they took, then serve."""
    size = ModelSize(**spec["size"])
    prepare_cpu_steps()  # as a run does
    mesh = create_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        stepper = Stepper(size, mesh)
        begin = time.perf_counter()
        stepper.compile("causal")
        stepper.take("causal", 1)
        report = {
            "first_step_s": time.perf_counter() - begin,
            "from_start_s": time.time() - spec["started"],
        }
        stepper.take("causal", WARMUP_STEPS)
        report["loss"] = stepper.loss
        # Before anything else has run in this process.
        report["peak_bytes"] = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        report["flops_per_token"] = 3 * model_config(size).flops_per_token(size.seq_len)
        for way in spec["ways"]:
            if way != "causal":
                stepper.compile(way)
                stepper.take(way, 1 + WARMUP_STEPS)
        serve(report, stepper.take)


if __name__ == "__main__":
    # Which attention runs is worth a line; nothing else of the libraries is.
    logging.basicConfig(format="    %(message)s", force=True)
    logging.getLogger("chomp.kernels.attention").setLevel(logging.INFO)
    main(json.loads(sys.argv[1]))
