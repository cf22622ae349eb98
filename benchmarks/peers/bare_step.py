"""The peer of the quickstart: the same model and update in a bare JAX loop, nothing around it.

No data pipeline, no logging, no checkpoints: one batch, compiled once, stepped again and again.
"""

import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from chomp.data import GrugLmExample
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, create_mesh, place_batch
from experiments.grug.base.launch import GrugBaseLaunchConfig
from experiments.grug.base.model import Transformer
from experiments.grug.base.train import _make_train_step, initial_state


def tokens_per_second(steps: int) -> float:
    """Speed of the quickstart's step alone, over `steps` steps after the first."""
    launch = GrugBaseLaunchConfig()
    cfg, trainer = launch.model, launch.trainer
    mesh, mp = create_mesh(MeshConfig()), Precision.parse(trainer.precision)
    shape = (trainer.grad_accum * trainer.batch_size, trainer.seq_len)
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, shape).astype(np.int32)
    rows = GrugLmExample.from_rows(tokens, np.zeros(shape, np.int32), eos_id=0)
    batch = jax.tree.map(lambda x: x.reshape(trainer.grad_accum, -1, trainer.seq_len), rows)
    with jax.set_mesh(mesh):
        model = jax.eval_shape(lambda: Transformer.init(cfg, key=jax.random.key(0)))
        optimizer = launch.optimizer.build(trainer.steps, model.param_groups())
        start = jax.jit(
            lambda: initial_state(
                cfg, optimizer=optimizer, mp=mp, key=jax.random.key(0), ema_beta=None
            )
        )
        step = _make_train_step(
            optimizer, mp, z_loss_weight=trainer.z_loss_weight, ema_beta=trainer.ema_beta
        )
        placed = place_batch(batch, mesh, batch_axis=1)
        state, metrics = step(start(), placed)
        jax.block_until_ready(metrics)
        begin = time.perf_counter()
        for _ in range(steps):
            state, metrics = step(state, placed)
        jax.block_until_ready((state, metrics))
        return steps * tokens.size / (time.perf_counter() - begin)


if __name__ == "__main__":
    print(tokens_per_second(int(sys.argv[1])))
