"""Base's training loop, as it is: how the layers are kept is the model's business alone.

In chapters: open the run, build or restore the state, step, finish.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from chomp import training
from chomp.checkpoint import CheckpointConfig, Checkpointer
from chomp.config import Config, setting, validated
from chomp.data import (
    BatchSchedule,
    EvalDataset,
    GrugLmExample,
    LmDataConfig,
    TrainLoader,
    iter_from_step,
)
from chomp.kernels.loss import Scores
from chomp.kernels.precision import Precision
from chomp.mesh import MeshConfig, create_mesh, prepare_devices, require_fits_mesh
from chomp.optim import GrugOptimizerConfig
from chomp.tokenize import Tokenizer
from chomp.tracking import Tracker
from chomp.tracking.metrics import GRAD_NORM, TRAIN_LOSS
from chomp.training import (
    GrugEvalConfig,
    LoggingConfig,
    NonFinitePolicy,
    ProfilerConfig,
    SamplesConfig,
    WatchConfig,
)
from experiments.grug.array_stacked.model import GrugModelConfig, Transformer

# Axes: A micro-batches of a step, B rows of a micro-batch, T tokens of a row.


# ---- What a run is --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GrugTrainerConfig(Config):
    """How the run trains. A step takes `grad_accum` micro-batches of `batch_size` rows."""

    steps: int = setting(default=1000, ge=1, lt=2**31, mark="schedule")  # counted in int32
    # Rows of a micro-batch, or [start step, rows] pairs.
    batch_size: int | tuple[tuple[int, int], ...] = setting(default=32, mark="schedule")
    seq_len: int = setting(default=1024, ge=2, le=2**20)  # tokens of a row
    grad_accum: int = setting(default=1, ge=1, le=2**20, mark="schedule")
    seed: int = setting(default=0, ge=0, lt=2**32)  # a random key is made of 32 bits
    data_seed: int | None = setting(default=None, ge=0, lt=2**32)  # order of the data; None: `seed`
    precision: str = "params=float32,compute=float32"
    # Weight of logsumexp^2 in the loss, which keeps logits from drifting.
    z_loss_weight: float = setting(default=0.0, ge=0, le=1000, mark="schedule")
    # Averaged weights for evaluation: 0.999 averages over a thousand steps. None: no average.
    ema_beta: float | None = setting(default=None, gt=0, lt=1, mark="schedule")
    deterministic: bool | None = None  # True: no dropout; None: none unless the model has rates
    reproducible: bool = setting(default=False, mark="schedule")  # bit-equal on a GPU too, slower
    # What a step without a finite loss does to the run; to the state it does nothing, ever.
    nonfinite_policy: NonFinitePolicy = setting(default="raise", mark="schedule")
    log_every: int = setting(default=1, ge=1, lt=2**31, mark="cosmetic")
    watch: WatchConfig | None = setting(default=None, mark="cosmetic")  # norms of tensors
    profiler: ProfilerConfig = setting(default_factory=ProfilerConfig, mark="cosmetic")
    log_dir: str | None = setting(default=None, mark="cosmetic")  # of traces; None: the run's own
    # None continues what is there; True must find a checkpoint; False must start fresh.
    load_checkpoint: bool | None = setting(default=None, mark="cosmetic", is_versioned=False)
    # Where to look instead: a step-N, a folder of them, or a run.
    load_checkpoint_path: str | None = setting(default=None, mark="cosmetic", is_versioned=False)
    # Whose weights a new run begins with: a step-N, or a run for its newest. Identity is the path
    # as written; an output prefix that the run itself lies in does not count.
    initialize_from: str | None = setting(default=None, is_added=True)
    # Averaged ones: ema.
    initialize_weights: Literal["current", "ema"] = setting(default="current", is_added=True)
    # Fields of the schedule that may differ from the checkpoint's.
    allow_changes: tuple[str, ...] = setting(default=(), mark="cosmetic", is_versioned=False)
    # Begin anew where there are checkpoints and none of them can be read.
    allow_fresh_start: bool = setting(default=False, mark="cosmetic", is_versioned=False)

    def __post_init__(self) -> None:
        BatchSchedule(self.batch_size, self.grad_accum)  # refuses sizes that cannot be
        Precision.parse(self.precision)


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
    run_id: str = setting(default="array_stacked", mark="cosmetic")
    output_path: str = setting(mark="cosmetic")

    def __post_init__(self) -> None:
        if self.model.document_positions:
            self.data.require_documents_apart("model.document_positions")
        training.require_rows(self.model, self.trainer)
        self.samples.resolved_for(self.model, seq_len=self.trainer.seq_len)  # refuses too long ones


# ---- The state and the step -----------------------------------------------------------------


class GrugTrainState(eqx.Module):
    """All that training changes."""

    step: Int[Array, ""]  # completed ones, skipped included
    params: Transformer
    opt_state: optax.OptState  # moments, and the count that the schedule goes by
    ema_params: Transformer | None
    training_key: PRNGKeyArray  # split once a step: a resumed run draws what this one would


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


def scores_of(mp: Precision, params: Transformer, batch: GrugLmExample) -> Scores:
    """Those losses, and whether each next token was the likeliest: what lm-eval tasks ask for."""
    return mp.for_compute(params).next_token_scores(batch.tokens, batch.attn_mask)


# verbatim: base
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

    Losses, weights and gradients add up in float32 and are divided once, so A micro-batches give
    what one big batch would. A step that is not finite leaves the weights as they were.
    """

    def loss_sum(params: Transformer, micro: GrugLmExample, key: PRNGKeyArray) -> Float[Array, ""]:
        return mp.for_compute(params).next_token_loss(
            micro.tokens,
            micro.loss_weight,
            mask=micro.attn_mask,
            reduction="sum",  # means would count a sparse micro-batch as much as a full one
            logsumexp_weight=z_loss_weight,
            key=key if is_stochastic else None,
        )

    @partial(jax.jit, donate_argnums=0)  # the new state is written where the old one was
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
        keys = jax.random.split(step_key, batch.tokens.shape[0])  # one for each micro-batch
        start = (jnp.float32(0), jnp.float32(0), zeros)
        (loss, weight, gradient), _ = jax.lax.scan(add_micro_batch, start, (batch, keys))

        # A batch without a single trained token leaves zeros, not NaN.
        per_token = 1.0 / jnp.maximum(weight, 1e-9)
        gradient = jax.tree.map(lambda g: g * per_token, gradient)
        loss, norm = loss * per_token, optax.tree.norm(gradient)  # before any clipping
        gradient = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, params)
        updates, opt_state = optimizer.update(gradient, state.opt_state, params)
        params = optax.apply_updates(params, updates)
        ema_params = state.ema_params
        if ema_beta is not None:
            averaged = Precision().for_params(params)  # float32
            ema_params = optax.incremental_update(averaged, ema_params, 1.0 - ema_beta)
        params, opt_state, ema_params = training.new_if_finite(
            training.are_finite(loss, norm),
            (params, opt_state, ema_params),
            (state.params, state.opt_state, state.ema_params),
        )
        metrics = {TRAIN_LOSS: loss, GRAD_NORM: norm, training.TRAINED_TOKENS: weight}
        metrics |= training.watch_metrics(
            watch, state.step, grads=gradient, params=params, updates=updates, opt_state=opt_state
        )
        state = GrugTrainState(state.step + 1, params, opt_state, ema_params, training_key)
        return state, metrics

    return train_step


# ---- The run --------------------------------------------------------------------------------


def optimizer_of(config: GrugRunConfig) -> optax.GradientTransformation:
    """The optimizer of a run, told what each weight is."""
    model = jax.eval_shape(lambda: Transformer.init(config.model, key=jax.random.key(0)))  # shapes
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


@dataclass(frozen=True)
class Run:
    """What the chapters hand to each other."""

    config: GrugRunConfig
    mesh: Mesh
    mp: Precision
    folder: training.RunFolder
    tokenizer: Tokenizer
    loader: TrainLoader
    eval_datasets: list[EvalDataset]


@dataclass(frozen=True)
class Instruments:
    """What watches the loop and keeps its results."""

    clock: training.LoopClock
    step_log: training.StepLog
    guard: training.NonFiniteGuard
    between_steps: list[training.Hook]  # evaluation, tasks, samples: when they are due
    checkpointer: Checkpointer
    stop: training.StopSignal


# verbatim: base
def run_grug(config: GrugRunConfig) -> None:
    """Train to the end, continuing whatever the output folder already holds."""
    config = validated(config)  # whoever made it, and however
    prepare_devices()  # before JAX looks for them
    mesh = create_mesh(config.mesh)
    config = training.with_sums_in_one_order(config, mesh)
    opened = training.RunFolder.open(config.output_path, config.logging)
    with jax.set_mesh(mesh), opened as folder, training.StopSignal() as stop:
        run = open_run(config, mesh, folder)
        with closing(run.loader):
            begun = build_or_restore(run)
            stop.raise_if_received()  # before minutes of compiling
            train(run, begun, stop)


def open_run(config: GrugRunConfig, mesh: Mesh, folder: training.RunFolder) -> Run:
    """Everything the run reads, opened."""
    mp = Precision.parse(config.trainer.precision)
    data = training.open_data(config.model, config.data, config.trainer, mp=mp, mesh=mesh)
    require_fits_mesh(partial(fresh_state, config), mesh)  # before anything is allocated
    return Run(config, mesh, mp, folder, data.tokenizer, data.loader, data.eval_datasets)


def build_or_restore(run: Run) -> training.StartingPoint[GrugTrainState]:
    """The state to go on from, with what is known of the steps behind it."""
    config = run.config
    start = training.starting_point(
        config,
        partial(fresh_state, config),
        folder=run.folder,
        loader=run.loader,
        tokenizer=run.tokenizer,
        mesh=run.mesh,
    )
    # Only now: a config that was refused must not describe what the folder holds.
    template, derived = Path(__file__).parent, training.derived_values(config)
    run.folder.describe(config, template=template, tokenizer=run.tokenizer, derived=derived)
    return start


def train(
    run: Run, begun: training.StartingPoint[GrugTrainState], stop: training.StopSignal
) -> None:
    """The run from where it begins to its end, with its record open."""
    config, trainer, state = run.config, run.config.trainer, begun.state
    start, clock = int(state.step), training.loop_clock(trainer.profiler)
    to_do = range(start, trainer.steps)  # empty for a run that only has to finish
    about = training.start_report(config, run.loader, state, mp=run.mp, steps=to_do)
    checkpointer = Checkpointer(run.folder.checkpoints, config.checkpoint, begun.about)
    record = run.folder.tracker(
        config.logging,
        total_steps=trainer.steps,
        start_step=start,
    )
    with record as tracker, checkpointer:
        tracker.log_summary(about)
        guard = training.NonFiniteGuard(trainer.nonfinite_policy, begun.before.skipped_steps)
        step_log = training.StepLog(
            tracker,
            clock,
            run.loader,
            guard,
            steps=to_do,
            settings=trainer,
            flops_per_token=config.model.flops_per_token(trainer.seq_len),
            hyperparameters=config.optimizer.hyperparameters(trainer.steps),
            params=state.params,
            compute_dtype=run.mp.compute,
            tokens_seen=begun.before.tokens_seen,
            saves=checkpointer.take_reports,
        )
        tools = Instruments(
            clock, step_log, guard, _between_steps(run, tracker, step_log), checkpointer, stop
        )
        finish(run, tools, step_loop(run, tools, state, start))


# verbatim: base
def step_loop(run: Run, tools: Instruments, state: GrugTrainState, start: int) -> GrugTrainState:
    """Every step from `start` on: batch, step, and between steps whatever is due."""
    config, trainer = run.config, run.config.trainer
    clock, step_log, guard = tools.clock, tools.step_log, tools.guard
    programs = training.StepPrograms(
        train_step_of(config), run.mesh, clock, is_reproducible=trainer.reproducible
    )
    batches = iter_from_step(run.loader, start, trainer.steps)
    profiler = training.run_profiler(config, clock, start_step=start)
    agreement = training.Agreement()
    clock.read()  # the time of setting up belongs to no step
    with closing(batches), profiler:
        for step in range(start, trainer.steps):
            completed = step + 1
            with profiler.step(step):
                with clock.phase("loading"):
                    batch = next(batches)  # made ahead by a thread, already on the devices
                state, metrics = programs(state, batch)  # returns at once: devices work behind
                step_log.add(step, metrics)  # read when the next step is under way

                for hook in tools.between_steps:
                    if hook.is_due(completed):
                        step_log.flush()  # a bad step is known before it is evaluated
                        with clock.phase(hook.phase):
                            hook(_models(state), completed)
                # By all processes together: a clock or a signal is one process's own.
                decided = agreement.after(completed, tools.checkpointer, tools.stop)
                if decided.is_save_due or guard.asks_to_stop:
                    step_log.flush()  # a step that ends the run ends it here, before it is saved
                    with clock.phase("checkpoint"):
                        save(run, tools, state, completed)
            if guard.asks_to_stop:
                raise guard.stop_error(tools.checkpointer.wait())
            if decided.stop_signal and completed < trainer.steps:
                saved_at = tools.checkpointer.wait()
                raise tools.stop.interruption(saved_at, agreed=decided.stop_signal)
    step_log.flush()
    if guard.asks_to_stop:  # the last step was bad
        save(run, tools, state, trainer.steps)
        raise guard.stop_error(tools.checkpointer.wait())
    return state


def finish(run: Run, tools: Instruments, state: GrugTrainState) -> None:
    """The permanent checkpoint, the last evaluation, and a sample of text."""
    completed = run.config.trainer.steps
    save(run, tools, state, completed)  # first: what follows may fail, the weights are safe
    saved_at = tools.checkpointer.wait()
    for hook in tools.between_steps:
        tools.stop.raise_if_received(saved_at)  # the same command does what is left
        hook(_models(state), completed)
    tools.step_log.close()


# verbatim: base
def save(run: Run, tools: Instruments, state: GrugTrainState, completed: int) -> None:
    """Begin to save the state after `completed` steps; after the last one, for good."""
    loader, steps = run.loader, run.config.trainer.steps
    streams = loader.stream_states(completed)  # where sources without random access stand
    tools.checkpointer.save(
        state,
        step=completed,
        data_offset=loader.batches.examples_before(completed),
        stream_states=streams,
        next_batches=partial(training.next_batch_hashes, loader, completed, steps, streams),
        tokens_seen=tools.step_log.tokens_seen,
        skipped_steps=tools.guard.skipped_steps,
        is_final=completed == steps,  # permanent, whatever the interval says
    )


def _between_steps(run: Run, tracker: Tracker, step_log: training.StepLog) -> list[training.Hook]:
    losses, scores = partial(losses_of, run.mp), partial(scores_of, run.mp)
    return training.between_steps(run, tracker, step_log, losses_of=losses, scores_of=scores)


def _models(state: GrugTrainState) -> dict[str, Any]:
    return {"current": state.params, "ema": state.ema_params}
