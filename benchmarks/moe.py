"""What a mixture of experts costs beside a dense model of the same active size.

    uv run python -m benchmarks.moe [--quick]

Both templates step in turn in one process, at equal active widths: a token goes through one shared
expert and two of eight, each of a third of the dense width. Besides, what routing and dispatching
take by themselves, and how fast sorted rows are multiplied by their groups.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from benchmarks.model_sizes import SIZES, ModelSize, measured_platform
from benchmarks.record import Figure, record
from benchmarks.timing import in_turn, note, phase
from benchmarks.training_step import OPTIMIZER, SCHEDULE_STEPS, batch_of, model_config
from chomp.kernels import moe
from chomp.kernels.moe import dispatch
from chomp.kernels.moe.matmul import grouped_backend, grouped_matmul
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, compiler_options, create_mesh, place_batch, prepare_cpu_steps
from chomp.tracking import metrics
from experiments.grug.base import train as dense_train
from experiments.grug.moe import model as moe_model
from experiments.grug.moe import train as moe_train

EXPERTS, TOP_K = 8, 2
MFU_GOAL = 0.75  # of the dense model's
DISPATCH_GOAL = 12.0  # % of the step
# The bias needs steps to make the experts even, as they are in all but the first steps of a run.
WARMUP_STEPS = 30


class Steps:
    """A template's training step on one batch, compiled, with the state that it carries on."""

    def __init__(self, train: Any, config: Any, size: ModelSize, mesh: Any) -> None:
        mp = Precision(compute=_compute_dtype())
        abstract = jax.eval_shape(lambda: train.Transformer.init(config, key=jax.random.key(0)))
        optimizer = OPTIMIZER.build(SCHEDULE_STEPS, abstract.param_groups())
        key = jax.random.key(0)
        self._state = train.initial_state(
            config, optimizer=optimizer, mp=mp, key=key, ema_beta=None
        )
        self._batch = place_batch(batch_of(size, has_documents=False), mesh, batch_axis=1)
        step = train._make_train_step(optimizer, mp, z_loss_weight=0.0, ema_beta=None)
        lowered = step.lower(self._state, self._batch)
        self._step = lowered.compile(compiler_options=compiler_options(mesh))
        self.metrics: dict[str, Array] = {}

    def take(self, steps: int) -> None:
        """That many steps, done when this returns."""
        for _ in range(steps):
            self._state, self.metrics = self._step(self._state, self._batch)
        jax.block_until_ready(self._state)


def moe_config(size: ModelSize) -> moe_model.GrugModelConfig:
    """The dense model of that size with a third of its width in each of three active experts."""
    width = size.intermediate_dim // (TOP_K + 1)
    return moe_model.GrugModelConfig(
        vocab_size=size.vocab_size,
        hidden_dim=size.hidden_dim,
        num_experts=EXPERTS,
        experts_per_token=TOP_K,
        expert_dim=width,
        shared_dim=size.intermediate_dim - TOP_K * width,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        num_kv_heads=size.num_heads,
        max_seq_len=size.seq_len,
        mlp="relu2",
        qk_norm=False,
    )


def measured_steps(name: str, *, rounds: int, steps: int) -> tuple[list[Figure], float]:
    """The figures of both steps, and the seconds of one with experts."""
    size, mesh = SIZES[name], create_mesh(MeshConfig())
    with jax.set_mesh(mesh):
        with phase("compiling both steps"):
            dense = Steps(dense_train, model_config(size), size, mesh)
            sparse = Steps(moe_train, moe_config(size), size, mesh)
        with phase("warming up"):
            dense.take(3)
            sparse.take(WARMUP_STEPS)
        load = float(sparse.metrics["train/router/load_max"])
        loss = float(sparse.metrics[metrics.TRAIN_LOSS])
        note(f"experts: load of the busiest {load:.3f}, loss {loss:.3f}")
        seconds = in_turn(rounds, partial(dense.take, steps), partial(sparse.take, steps))
    dense_s, sparse_s = (total / steps for total in seconds)
    speeds = []
    for config, each in ((model_config(size), dense_s), (moe_config(size), sparse_s)):
        flops = 3 * config.flops_per_token(size.seq_len) * size.step_tokens
        speeds.append(flops / each / 1e12)
    note(f"{name}: dense {1e3 * dense_s:.2f} ms, experts {1e3 * sparse_s:.2f} ms a step")
    return [
        Figure(
            name=f"{name} active, {TOP_K} of {EXPERTS} experts and a shared one: active FLOPs",
            value=speeds[1],
            unit="TFLOP/s",
            better="higher",
            peer="the dense model of that size",
            peer_value=speeds[0],
            goal=MFU_GOAL if jax.default_backend() == "gpu" else None,
            goal_on="ratio",
        )
    ], sparse_s


def dispatch_share(name: str, step_s: float, *, rounds: int) -> Figure:
    """The share of a step that routing takes, and bringing rows to experts and back."""
    size = SIZES[name]
    x, by_y, w_router, *_ = _arrays(size)
    run = jax.jit(_routing_alone)
    jax.block_until_ready(run(x, by_y, w_router))
    times = 20 if jax.default_backend() == "gpu" else 2

    def repeat() -> None:
        for _ in range(times):
            out = run(x, by_y, w_router)
        jax.block_until_ready(out)

    (seconds,) = in_turn(rounds, repeat)
    layer_s = seconds / times
    note(f"routing and dispatch: {1e6 * layer_s:.0f} us a layer")
    return Figure(
        name=f"{name} active: router and dispatch, of the step",
        value=100 * layer_s * size.num_layers / step_s,
        unit="%",
        better="lower",
        goal=DISPATCH_GOAL,
    )


def _routing_alone(x: Array, by_y: Array, w_router: Array) -> Any:
    """All that a layer does for its experts but the products with their weights, both ways."""

    def weights(x: Array, w_router: Array) -> tuple[Array, moe.Routing]:
        logits = moe.router_logits(x, w_router)
        routing = moe.route(logits, jnp.zeros(EXPERTS), top_k=TOP_K)
        return routing.weights, routing

    chosen_weights, backward, routing = jax.vjp(weights, x, w_router, has_aux=True)
    flat, tokens = x.reshape(-1, x.shape[2]), x.shape[0] * x.shape[1]
    plan = dispatch.local_dispatch(routing.chosen.reshape(tokens, -1), EXPERTS)
    column = dispatch.weights_to_rows(plan, chosen_weights.reshape(tokens, -1))
    rows = dispatch.to_rows(plan, flat)
    y = dispatch.to_tokens(plan, rows * column[:, None].astype(rows.dtype), tokens)
    by_rows = dispatch.to_rows(plan, by_y.reshape(flat.shape))
    by_weights = dispatch.weights_to_tokens(plan, by_rows[:, 0].astype(jnp.float32), tokens)
    by_x = dispatch.to_tokens(plan, by_rows, tokens)
    # Rounded as a layer rounds them, or writing float32 would be measured too.
    y, by_x = y.astype(x.dtype), by_x.astype(x.dtype)
    return y, by_x, backward(by_weights.reshape(chosen_weights.shape)), routing.sums


def grouped_speed(name: str, *, rounds: int) -> Figure:
    """Sorted rows times their groups' weights, beside one product of as many rows."""
    size = SIZES[name]
    width = size.intermediate_dim // (TOP_K + 1)
    x, _, _, w_up, choices = _arrays(size)
    plan = dispatch.local_dispatch(choices, EXPERTS)
    rows = dispatch.to_rows(plan, x.reshape(-1, x.shape[2]))
    backend = grouped_backend(jax.default_backend(), x.dtype, rows.shape[0], size.hidden_dim, width)
    ours = jax.jit(partial(grouped_matmul, backend=backend))
    plain = jax.jit(lambda rows, weight: rows @ weight)
    one = jax.block_until_ready(w_up[0])
    times = 20 if jax.default_backend() == "gpu" else 2

    def repeated(run: Callable[[], Array]) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(times):
                out = run()
            jax.block_until_ready(out)

        repeat()
        return repeat

    seconds = in_turn(
        rounds,
        repeated(lambda: ours(rows, w_up, plan.sizes)),
        repeated(lambda: plain(rows, one)),
    )
    flops = 2 * rows.shape[0] * size.hidden_dim * width * times / 1e12
    return Figure(
        name=f"{name} active: rows of {EXPERTS} experts, by {backend}",
        value=flops / seconds[0],
        unit="TFLOP/s",
        better="higher",
        peer="one product of as many rows",
        peer_value=flops / seconds[1],
    )


def _arrays(size: ModelSize) -> tuple[Array, ...]:
    keys = jax.random.split(jax.random.key(0), 5)
    shape = (size.batch_size, size.seq_len, size.hidden_dim)
    width = size.intermediate_dim // (TOP_K + 1)
    dtype = jnp.dtype(_compute_dtype())
    x, by_y = (jax.random.normal(key, shape, dtype) for key in keys[:2])
    w_router = 0.02 * jax.random.normal(keys[2], (size.hidden_dim, EXPERTS))  # always float32
    w_up = 0.02 * jax.random.normal(keys[3], (EXPERTS, size.hidden_dim, width), dtype)
    choices = jax.random.randint(keys[4], (size.step_tokens, TOP_K), 0, EXPERTS, jnp.int32)
    return x, by_y, w_router, w_up, choices


def _compute_dtype() -> str:
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds; nothing is written")
    is_quick = parser.parse_args().quick
    platform = measured_platform()
    prepare_cpu_steps()  # as a run does
    name = "cpu" if platform == "cpu" else "124m"
    rounds = 3 if is_quick else 9
    figures, step_s = measured_steps(name, rounds=rounds, steps=2 if platform == "cpu" else 10)
    figures.append(dispatch_share(name, step_s, rounds=rounds))
    figures.append(grouped_speed(name, rounds=rounds))
    record("moe", figures, is_quick=is_quick)


if __name__ == "__main__":
    main()
