"""The base training loop, in chapters: open the run, build or restore the state, step, finish.

What a variant may want to change stands here in the open: the loss, the step, the order of things.
What it would be wrong to change (data order, checkpoints, metrics) is called from chomp.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from chomp.checkpoint import CheckpointConfig, Checkpointer, restore_latest_or_initialize
from chomp.config import Config, setting, validated
from chomp.data import (
    BatchSchedule,
    EvalDataset,
    GrugLmExample,
    LmDataConfig,
    TrainLoader,
    build_eval_datasets,
    build_train_dataset,
    build_train_loader,
    iter_from_step,
)
from chomp.errors import require, require_at_most, require_positive
from chomp.evaluation import TaggedEvaluator
from chomp.hooks import (
    TRAINED_TOKENS,
    EvalCallback,
    LoggingConfig,
    LoopClock,
    RunFolder,
    StepLog,
    StepPrograms,
    StopSignal,
    build_tagged_eval_callback,
    checkpoint_metadata,
    row_limits,
    sample_text,
    start_report,
)
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, create_mesh, prepare_cpu_steps, require_fits_mesh
from chomp.optim import GrugOptimizerConfig
from chomp.tokenize import Tokenizer, bytes_per_token
from chomp.tracking import Tracker, names
from experiments.grug.base.model import GrugModelConfig, Transformer

# Axes: A micro-batches of a step, B rows of a micro-batch, T tokens of a row.

log = logging.getLogger(__name__)


# ---- What a run is --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GrugTrainerConfig(Config):
    """How the run trains. A step takes `grad_accum` micro-batches of `batch_size` rows."""

    steps: int = 1000
    batch_size: int | tuple[tuple[int, int], ...] = 32  # or [start step, size] pairs
    seq_len: int = 1024
    grad_accum: int = 1
    seed: int = 0
    data_seed: int | None = None  # order of the data; None: `seed`
    precision: str = "params=float32,compute=float32"
    z_loss_weight: float = 0.0  # weight of logsumexp^2 in the loss: keeps logits from drifting
    ema_beta: float | None = None  # averaged weights for evaluation; None: no average
    log_every: int = setting(default=1, mark="cosmetic")
    # None continues what is there; True must find a checkpoint; False must start fresh.
    load_checkpoint: bool | None = setting(default=None, mark="cosmetic")

    def __post_init__(self) -> None:
        require_positive(self, "steps", "seq_len", "log_every")
        BatchSchedule(self.batch_size, self.grad_accum)  # refuses sizes that cannot be
        require(
            self.ema_beta is None or 0.0 < self.ema_beta < 1.0,
            given=f"train.ema_beta={self.ema_beta}",
            allowed="between 0 and 1, or null for no average",
            fix="0.999 averages over about a thousand steps",
        )
        Precision.parse(self.precision)


@dataclass(frozen=True, kw_only=True)
class GrugEvalConfig(Config):
    """How held-out data is evaluated: always at the end, and every `steps_per_eval` steps."""

    steps_per_eval: int | None = None
    eval_batch_size: int = 32
    max_eval_batches: int | None = None  # per dataset; None: all of it
    eval_current: bool = True
    eval_ema: bool = True  # the averaged weights too, where there are any
    compute_bpb: bool = True
    prefix: str = "eval"
    sample_tokens: int = 100  # of text generated at the end; 0: none

    def __post_init__(self) -> None:
        require_positive(self, "steps_per_eval", "eval_batch_size", "max_eval_batches")

    def is_due(self, completed_steps: int) -> bool:
        """Whether the period asks for an evaluation now."""
        return self.steps_per_eval is not None and completed_steps % self.steps_per_eval == 0


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
    checkpoint: CheckpointConfig = setting(default_factory=CheckpointConfig, mark="cosmetic")
    logging: LoggingConfig = setting(default_factory=LoggingConfig, mark="cosmetic")
    mesh: MeshConfig = field(default_factory=MeshConfig)
    run_id: str = setting(default="base", mark="cosmetic")
    output_path: str = setting(mark="cosmetic")


# ---- The state and the step -----------------------------------------------------------------


class GrugTrainState(eqx.Module):
    """All that training changes."""

    step: Int[Array, ""]
    params: Transformer
    opt_state: optax.OptState
    ema_params: Transformer | None
    training_key: PRNGKeyArray


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
    # The average is float32 whatever the weights are: bfloat16 would round its steps to nothing.
    average = Precision().for_params(jax.tree.map(jnp.copy, params)) if ema_beta else None
    return GrugTrainState(jnp.int32(0), params, optimizer.init(params), average, training_key)


def losses_of(mp: Precision, params: Transformer, batch: GrugLmExample) -> Float[Array, "B T"]:
    """Loss of every position, unweighted, without z-loss, in the dtype training computes in."""
    return mp.for_compute(params).next_token_loss(
        batch.tokens, batch.loss_weight, mask=batch.attn_mask, reduction="none"
    )


def _make_train_step(
    optimizer: optax.GradientTransformation,
    mp: Precision,
    *,
    z_loss_weight: float,
    ema_beta: float | None,
) -> Callable[[GrugTrainState, GrugLmExample], tuple[GrugTrainState, dict[str, Array]]]:
    """One optimizer update from a batch `[A, B, T]`, jitted, with the state donated.

    Losses, weights and gradients add up in float32 and are divided once, so A micro-batches give
    what one big batch would.
    """

    def loss_sum(params: Transformer, micro: GrugLmExample, key: PRNGKeyArray) -> Float[Array, ""]:
        return mp.for_compute(params).next_token_loss(
            micro.tokens,
            micro.loss_weight,
            mask=micro.attn_mask,
            reduction="sum",
            logsumexp_weight=z_loss_weight,
            key=key,
        )

    @partial(jax.jit, donate_argnums=0)
    def train_step(
        state: GrugTrainState, batch: GrugLmExample
    ) -> tuple[GrugTrainState, dict[str, Array]]:
        params = state.params
        training_key, step_key = jax.random.split(state.training_key)

        def add_micro_batch(
            sums: tuple[Array, Array, Transformer], item: tuple[GrugLmExample, PRNGKeyArray]
        ) -> tuple[tuple[Array, Array, Transformer], None]:
            micro, key = item
            loss, gradient = jax.value_and_grad(loss_sum)(params, micro, key)
            added = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), sums[2], gradient)
            return (sums[0] + loss, sums[1] + jnp.sum(micro.loss_weight), added), None

        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.float32), params)
        keys = jax.random.split(step_key, batch.tokens.shape[0])
        start = (jnp.float32(0), jnp.float32(0), zeros)
        (loss, weight, gradient), _ = jax.lax.scan(add_micro_batch, start, (batch, keys))

        # A batch without a single trained token leaves zeros, not NaN.
        per_token = 1.0 / jnp.maximum(weight, 1e-9)
        gradient = jax.tree.map(lambda g, p: (g * per_token).astype(p.dtype), gradient, params)
        updates, opt_state = optimizer.update(gradient, state.opt_state, params)
        params = optax.apply_updates(params, updates)
        ema_params = state.ema_params
        if ema_beta is not None:
            averaged = Precision().for_params(params)
            ema_params = optax.incremental_update(averaged, ema_params, 1.0 - ema_beta)
        metrics = {
            names.TRAIN_LOSS: loss * per_token,
            names.GRAD_NORM: optax.tree.norm(gradient),
            TRAINED_TOKENS: weight,
        }
        state = GrugTrainState(state.step + 1, params, opt_state, ema_params, training_key)
        return state, metrics

    return train_step


# ---- The run --------------------------------------------------------------------------------


def optimizer_of(config: GrugRunConfig) -> optax.GradientTransformation:
    """The optimizer of a run, told what each weight is."""
    model = jax.eval_shape(lambda: Transformer.init(config.model, key=jax.random.key(0)))
    return config.optimizer.build(config.trainer.steps, model.param_groups())


def fresh_state(config: GrugRunConfig) -> GrugTrainState:
    """The state that a run begins with."""
    return initial_state(
        config.model,
        optimizer=optimizer_of(config),
        mp=Precision.parse(config.trainer.precision),
        key=jax.random.key(config.trainer.seed),
        ema_beta=config.trainer.ema_beta,
    )


@dataclass(frozen=True)
class Run:
    """What the chapters hand to each other."""

    config: GrugRunConfig
    mesh: Mesh
    mp: Precision
    folder: RunFolder
    tokenizer: Tokenizer
    loader: TrainLoader
    eval_datasets: list[EvalDataset]


@dataclass(frozen=True)
class Instruments:
    """What watches the loop and keeps its results."""

    clock: LoopClock
    tracker: Tracker
    step_log: StepLog
    evaluate: EvalCallback | None
    checkpointer: Checkpointer


def run_grug(config: GrugRunConfig) -> None:
    """Train to the end, continuing whatever the output folder already holds."""
    config = validated(config)
    prepare_cpu_steps()  # before JAX looks for devices
    mesh = create_mesh(config.mesh)
    with jax.set_mesh(mesh), RunFolder.open(config.output_path) as folder:
        run = open_run(config, mesh, folder)
        with closing(run.loader):
            state, checkpointer, tokens_seen = build_or_restore(run)
            train(run, state, checkpointer, tokens_seen)


def open_run(config: GrugRunConfig, mesh: Mesh, folder: RunFolder) -> Run:
    """Tokenizer, batches and optimizer. Every store is opened: a missing one shows at once."""
    model, trainer, mp = config.model, config.trainer, Precision.parse(config.trainer.precision)
    tokenizer = config.data.tokenizer.load()
    require_at_most("tokenizer ids", tokenizer.vocab_size, "model.vocab_size", model.vocab_size)
    require_at_most("train.seq_len", trainer.seq_len, "model.max_seq_len", model.max_seq_len)
    limits = row_limits(model, config.data, seq_len=trainer.seq_len, mp=mp, mesh=mesh)
    require_fits_mesh(partial(fresh_state, config), mesh)
    seed = trainer.seed if trainer.data_seed is None else trainer.data_seed
    dataset = build_train_dataset(
        config.data,
        tokenizer,
        seq_len=trainer.seq_len,
        seed=seed,
        batches=BatchSchedule(trainer.batch_size, trainer.grad_accum),
        total_steps=trainer.steps,
    )
    loader = build_train_loader(dataset, mesh, limits)
    held_out = build_eval_datasets(config.data, tokenizer, seq_len=trainer.seq_len, limits=limits)
    folder.describe(config, template=Path(__file__).parent, tokenizer=tokenizer)
    return Run(config, mesh, mp, folder, tokenizer, loader, held_out)


def build_or_restore(run: Run) -> tuple[GrugTrainState, Checkpointer, int]:
    """The state to go on from, what will save it, and how many tokens it was trained on."""
    config, trainer = run.config, run.config.trainer
    fingerprint = run.loader.dataset.fingerprint()
    about = checkpoint_metadata(config, run.folder, data_fingerprint=fingerprint, mesh=run.mesh)
    initialize = partial(fresh_state, config)
    folder, must_load = run.folder.checkpoints, trainer.load_checkpoint
    state, found = restore_latest_or_initialize(
        folder, initialize, about=about, mesh=run.mesh, load_checkpoint=must_load
    )
    log.info("starting from %s", "scratch" if found is None else found.path)
    if found is not None:
        run.loader.restore_streams(found.metadata.stream_states)
    checkpointer = Checkpointer(folder, config.checkpoint, about)
    return state, checkpointer, 0 if found is None else found.metadata.tokens_seen


def train(run: Run, state: GrugTrainState, checkpointer: Checkpointer, tokens_seen: int) -> None:
    """The run from `state` to its end, with its record open."""
    config, trainer, start = run.config, run.config.trainer, int(state.step)
    clock = LoopClock()
    to_do, shown = range(start, trainer.steps), config.logging.console
    about = start_report(config.model, run.loader, state, mp=run.mp, steps=to_do, console=shown)
    with run.folder.tracker(
        config.logging,
        total_steps=trainer.steps,
        start_step=start,
        step_tokens=run.loader.batches.examples(start) * trainer.seq_len,
    ) as tracker:
        tracker.log_summary(about)
        step_log = StepLog(
            tracker,
            clock,
            run.loader,
            start_step=start,
            total_steps=trainer.steps,
            log_every=trainer.log_every,
            flops_per_token=config.model.flops_per_token(trainer.seq_len),
            schedule=config.optimizer.schedule(trainer.steps),
            tokens_seen=tokens_seen,
        )
        tools = Instruments(clock, tracker, step_log, _evaluation(run, tracker), checkpointer)
        finish(run, tools, step_loop(run, tools, state, start))
        step_log.log_run_speed()


def step_loop(run: Run, tools: Instruments, state: GrugTrainState, start: int) -> GrugTrainState:
    """Every step from `start` on: batch, step, and between steps whatever is due."""
    trainer, clock, step_log = run.config.trainer, tools.clock, tools.step_log
    train_step = _make_train_step(
        optimizer_of(run.config),
        run.mp,
        z_loss_weight=trainer.z_loss_weight,
        ema_beta=trainer.ema_beta,
    )
    programs = StepPrograms(train_step, run.mesh, clock)  # one for each size of batch
    batches = iter_from_step(run.loader, start, trainer.steps)
    clock.read()  # the time of setting up belongs to no step
    with StopSignal() as stop, closing(batches):
        for step in range(start, trainer.steps):
            with clock.phase("loading"):
                batch = next(batches)
            state, metrics = programs(state, batch)
            step_log.add(step, metrics)

            completed = step + 1
            if tools.evaluate is not None and run.config.eval.is_due(completed):
                step_log.flush()
                with clock.phase("eval"):
                    tools.evaluate(_models(state), completed)
            stopping = stop.received is not None and completed < trainer.steps
            if tools.checkpointer.is_due(completed) or stopping:
                step_log.flush()  # a non-finite loss ends the run here, before it is saved
                with clock.phase("checkpoint"):
                    saved_at = save(run, tools, state, completed)
                if stopping:
                    raise stop.interruption(saved_at)
    step_log.flush()
    return state


def finish(run: Run, tools: Instruments, state: GrugTrainState) -> None:
    """The permanent checkpoint, the last evaluation, and a sample of text."""
    completed, cfg = run.config.trainer.steps, run.config.eval
    save(run, tools, state, completed)
    if tools.evaluate is None or cfg is None:
        return
    tools.evaluate(_models(state), completed)
    if cfg.sample_tokens > 0:
        path = run.folder.write_sample(completed, _sample(run, state, cfg.sample_tokens))
        tools.tracker.log_artifact(path, name=f"sample-step-{completed}", kind="sample")


def save(run: Run, tools: Instruments, state: GrugTrainState, completed: int) -> str:
    """Save the state after `completed` steps, for good after the last; gives the folder."""
    return tools.checkpointer.save(
        state,
        step=completed,
        data_offset=run.loader.batches.examples_before(completed),
        stream_states=run.loader.stream_states(completed),
        tokens_seen=tools.step_log.tokens_seen,
        is_final=completed == run.config.trainer.steps,
    )


def _evaluation(run: Run, tracker: Tracker) -> EvalCallback | None:
    cfg, trainer = run.config.eval, run.config.trainer
    if cfg is None:
        return None
    prefixes = {"current": cfg.prefix} if cfg.eval_current else {}
    if cfg.eval_ema and trainer.ema_beta is not None:
        prefixes["ema"] = f"{cfg.prefix}/ema"
    evaluators = {
        name: TaggedEvaluator(
            run.eval_datasets,
            partial(losses_of, run.mp),
            mesh=run.mesh,
            batch_size=cfg.eval_batch_size,
            max_batches=cfg.max_eval_batches,
            bytes_per_token=bytes_per_token(run.tokenizer) if cfg.compute_bpb else None,
            prefix=prefix,
        )
        for name, prefix in prefixes.items()
    }
    return build_tagged_eval_callback(evaluators, tracker)


def _models(state: GrugTrainState) -> dict[str, Any]:
    return {"current": state.params, "ema": state.ema_params}


def _sample(run: Run, state: GrugTrainState, max_tokens: int) -> str:
    weights = run.mp.for_compute(state.params if state.ema_params is None else state.ema_params)
    first = run.eval_datasets[0]
    return sample_text(weights, first, run.tokenizer, mesh=run.mesh, max_tokens=max_tokens)
