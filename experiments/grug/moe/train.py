"""The training loop of base. The step also sets the bias of the routers, and logs their load."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from chomp import training
from chomp.checkpoint import CheckpointConfig
from chomp.config import Config, setting
from chomp.data import GrugLmExample, LmDataConfig
from chomp.kernels import moe
from chomp.kernels.loss import Scores
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig
from chomp.optim import GrugOptimizerConfig
from chomp.tracking import LoggingConfig
from chomp.tracking.metrics import GRAD_NORM, TRAIN_LOSS
from chomp.training import (
    TRAINED_TOKENS,
    GrugEvalConfig,
    GrugTrainerConfig,
    SamplesConfig,
    WatchConfig,
)
from experiments.grug.moe.model import GrugModelConfig, Transformer

# Axes: A micro-batches of a step, B rows of a micro-batch, T tokens of a row.


# ---- What a run is --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GrugRunConfig(Config):
    """Everything about one run."""

    model: GrugModelConfig
    data: LmDataConfig
    optimizer: GrugOptimizerConfig = setting(
        default_factory=GrugOptimizerConfig, aliases=("optim",)
    )
    trainer: GrugTrainerConfig = setting(default_factory=GrugTrainerConfig, aliases=("train",))
    eval: GrugEvalConfig | None = setting(default_factory=GrugEvalConfig, mark="cosmetic")
    samples: SamplesConfig = setting(default_factory=SamplesConfig, mark="cosmetic")
    checkpoint: CheckpointConfig = setting(default_factory=CheckpointConfig, mark="cosmetic")
    logging: LoggingConfig = setting(default_factory=LoggingConfig, mark="cosmetic")
    mesh: MeshConfig = setting(default_factory=MeshConfig, mark="cosmetic")
    run_id: str = setting(default="moe", mark="cosmetic")
    output_path: str = setting(mark="cosmetic")

    def __post_init__(self) -> None:
        training.require_consistent(self)  # sections that do not fit together


# ---- The state ------------------------------------------------------------------------------


# verbatim: base
class GrugTrainState(eqx.Module):
    """All that training changes."""

    step: Int[Array, ""]  # completed ones, skipped included
    params: Transformer
    opt_state: optax.OptState  # moments, and the count that the schedule goes by
    ema_params: Transformer | None
    training_key: PRNGKeyArray  # split once a step: a resumed run draws what this one would


# verbatim: base
def initial_state(
    cfg: GrugModelConfig,
    *,
    optimizer: optax.GradientTransformation,
    mp: Precision,
    key: PRNGKeyArray,
    ema_beta: float | None,
) -> GrugTrainState:
    """Fresh weights, a fresh optimizer, and an average that starts at the weights."""
    model_key, training_key = jax.random.split(key)
    params = mp.for_params(Transformer.init(cfg, key=model_key))
    ema_params = None
    if ema_beta is not None:
        # The average is float32 whatever the weights are: bfloat16 would round its updates to 0.
        ema_params = Precision().for_params(jax.tree.map(jnp.copy, params))
    return GrugTrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=optimizer.init(params),
        ema_params=ema_params,
        training_key=training_key,
    )


# ---- The step -------------------------------------------------------------------------------


# verbatim: base
def losses_of(mp: Precision, params: Transformer, batch: GrugLmExample) -> Float[Array, "B T"]:
    """Loss of every position, unweighted and without z-loss: what evaluation adds up."""
    return mp.for_compute(params).next_token_loss(
        batch.tokens, batch.loss_weight, mask=batch.attn_mask, reduction="none"
    )


# verbatim: base
def scores_of(mp: Precision, params: Transformer, batch: GrugLmExample) -> Scores:
    """Those losses, and whether each next token was the likeliest: what lm-eval tasks ask for."""
    return mp.for_compute(params).next_token_scores(batch.tokens, batch.attn_mask)


def _make_train_step(
    optimizer: optax.GradientTransformation,
    mp: Precision,
    *,
    z_loss_weight: float,
    ema_beta: float | None,
    is_stochastic: bool = False,
    watch: WatchConfig | None = None,
) -> Callable[[GrugTrainState, GrugLmExample], tuple[GrugTrainState, dict[str, Array]]]:
    """One optimizer update from a batch `[A, B, T]`, jitted, with the state donated.

    Losses, weights and gradients are added up in float32 and divided once, so A micro-batches give
    what one big batch would. A step whose loss is not finite leaves the weights as they were.
    """

    def loss_sum(
        params: Transformer, micro: GrugLmExample, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], tuple[dict[str, Float[Array, ""]], moe.RouterSums]]:
        """The loss to differentiate; sums over tokens to log; and what the routers did.

        Add any key to the sums: it is added up over micro-batches and divided by the number of
        trained tokens.
        """
        loss, routing = mp.for_compute(params).training_loss(
            micro.tokens,
            micro.loss_weight,
            mask=micro.attn_mask,
            logsumexp_weight=z_loss_weight,
            key=key if is_stochastic else None,
        )
        sums = {TRAIN_LOSS: loss, TRAINED_TOKENS: jnp.sum(micro.loss_weight)}
        return loss, (sums, routing)

    @partial(jax.jit, donate_argnums=0)  # the new state is written where the old one was
    def train_step(
        state: GrugTrainState, batch: GrugLmExample
    ) -> tuple[GrugTrainState, dict[str, Array]]:
        training_key, step_key = jax.random.split(state.training_key)
        keys = jax.random.split(step_key, batch.tokens.shape[0])  # one for each micro-batch

        def add_micro_batch(
            total: Transformer, item: tuple[GrugLmExample, PRNGKeyArray]
        ) -> tuple[Transformer, Any]:
            grad, added = jax.grad(loss_sum, has_aux=True)(state.params, *item)
            return jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total, grad), added

        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.float32), state.params)
        grad, added = jax.lax.scan(add_micro_batch, zeros, (batch, keys))
        sums, routing = jax.tree.map(lambda each: jnp.sum(each, axis=0), added)  # of micro-batches

        # A batch without a single trained token leaves zeros, not NaN.
        tokens = sums.pop(TRAINED_TOKENS)
        per_token = 1.0 / jnp.maximum(tokens, 1e-9)
        metrics = {name: total * per_token for name, total in sums.items()}
        grad = jax.tree.map(lambda g: g * per_token, grad)
        grad_norm = optax.tree.norm(grad)  # before any clipping
        grad = jax.tree.map(lambda g, p: g.astype(p.dtype), grad, state.params)

        updates, opt_state = optimizer.update(grad, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        # The bias has no gradient: it follows the load of the experts (arXiv 2408.15664).
        bias, cfg = params.router_bias, params.cfg
        bias = moe.balanced_bias(bias, routing, top_k=cfg.experts_per_token, rate=cfg.balance_rate)
        params, ema_params = params.with_router_bias(bias), state.ema_params
        if ema_beta is not None:
            ema_params = optax.incremental_update(
                Precision().for_params(params), ema_params, step_size=1.0 - ema_beta
            )
            # Averaged weights choose by the bias that holds now, and not by an average of old ones.
            ema_params = ema_params.with_router_bias(bias)
        params, opt_state, ema_params = training.new_if_finite(
            training.are_finite(metrics[TRAIN_LOSS], grad_norm),
            new=(params, opt_state, ema_params),
            old=(state.params, state.opt_state, state.ema_params),
        )
        metrics |= {GRAD_NORM: grad_norm, TRAINED_TOKENS: tokens, **router_metrics(routing)}
        metrics |= training.watch_metrics(
            watch, state.step, grads=grad, params=params, updates=updates, opt_state=opt_state
        )
        return GrugTrainState(state.step + 1, params, opt_state, ema_params, training_key), metrics

    return train_step


def router_metrics(routing: moe.RouterSums) -> dict[str, Float[Array, ""]]:
    """`train/router/<name>`, the mean over the layers, and `train/router/layer_<i>/<name>`."""
    metrics: dict[str, Float[Array, ""]] = {}
    for name, by_layer in moe.router_metrics(routing).items():
        metrics[f"train/router/{name}"] = jnp.mean(by_layer)
        for index in range(by_layer.shape[0]):
            metrics[f"train/router/layer_{index}/{name}"] = by_layer[index]
    return metrics


# ---- The loop -------------------------------------------------------------------------------


# verbatim: base
def run_grug(config: GrugRunConfig) -> None:
    """Train to the end, continuing whatever the output folder holds."""
    with training.open_run(config, template=__file__, fresh_state=fresh_state) as run:
        config = run.config  # checked, and as these devices run it
        train_step = run.compile(train_step_of(config))

        # A hook is a function of the state and the number of completed steps. Add your own here:
        # run.every(50, lambda state, completed: run.log({"my/metric": …}))
        if config.eval is not None:
            losses = partial(losses_of, run.mp)
            run.every(config.eval.steps_per_eval, run.evaluation(losses), at_end=True)
            if config.eval.harness is not None:
                scores = partial(scores_of, run.mp)
                run.every(config.eval.harness.every, run.harness(scores), at_end=True)
        if config.samples.max_tokens != 0:
            run.every(config.samples.every, run.sampling(), at_end=True)

        state = run.state  # fresh, or restored and proven
        for _, batch in run.batches():  # a thread makes them ahead, on the devices
            state, metrics = train_step(state, batch)  # asynchronous: returns at once
            run.after_step(state, metrics)  # logs the step before, then what is due: hooks, save
        run.finish(state)


# verbatim: base
def fresh_state(config: GrugRunConfig) -> GrugTrainState:
    """The state that a run begins with."""
    return initial_state(
        config.model,
        optimizer=optimizer_of(config),
        mp=Precision.parse(config.trainer.precision),
        key=jax.random.key(config.trainer.seed),
        ema_beta=config.trainer.ema_beta,
    )


# verbatim: base
def train_step_of(config: GrugRunConfig) -> Callable[..., Any]:
    """The jitted step of a run."""
    trainer = config.trainer
    return _make_train_step(
        optimizer_of(config),
        Precision.parse(trainer.precision),
        z_loss_weight=trainer.z_loss_weight,
        ema_beta=trainer.ema_beta,
        is_stochastic=training.is_stochastic(trainer.deterministic, config.model),
        watch=trainer.watch,
    )


# verbatim: base
def optimizer_of(config: GrugRunConfig) -> optax.GradientTransformation:
    """The optimizer of a run, which treats each weight by its group."""
    shapes = jax.eval_shape(lambda: Transformer.init(config.model, key=jax.random.key(0)))
    return config.optimizer.build(config.trainer.steps, shapes.param_groups())
