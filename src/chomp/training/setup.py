"""What a run reads and how it computes: its config as a whole, data, kernels, the compiled step."""

import dataclasses
import logging
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jax.sharding import Mesh

from chomp import data
from chomp.config import validated
from chomp.config.fields import settings_of
from chomp.data import BatchSchedule, EvalDataset, RowLimits, TrainLoader, require_row_len
from chomp.errors import require, require_at_most
from chomp.kernels.attention import AttentionMask
from chomp.kernels.precision import Precision
from chomp.kernels.self_check import KernelReport, KernelShapes, attention_choice, check_kernels
from chomp.mesh import (
    batch_shards,
    bytes_per_device,
    format_bytes,
    is_first,
    memory_table,
    raise_together,
    require_memory,
)
from chomp.optim import group_table
from chomp.storage.printable import PlainConsole
from chomp.tokenize import Tokenizer
from chomp.tracking import metrics
from chomp.training.run_folder import environment_summary
from chomp.training.step_log import require_metrics

_PACKING_TIMEOUT_S = 6 * 3600.0  # that processes wait for the packing plan of a large store
# On a GPU, the attention backends whose sums do not depend on which thread comes first.
_REPRODUCIBLE_ATTENTION = ("chunked", "reference")

C = TypeVar("C")

log = logging.getLogger(__name__)


# ---- The config as a whole -------------------------------------------------------------------


def run_config(run_class: type[C], launch: Any) -> C:
    """The run's part of a launch config, checked: the fields of the template's run config."""
    require_vocabulary(launch.data.tokenizer.known_vocab_size, launch.model)
    cls: Any = run_class  # to mypy a type variable is not hashable
    config = cls(**{each.name: getattr(launch, each.name) for each in settings_of(cls)})
    checked: C = validated(config)
    return checked


def require_no_output_path(launch: Any) -> None:
    """Raise `ConfigError` if a launch config that is to be planned names its own folder."""
    require(
        not launch.output_path,
        f"output_path={launch.output_path}",
        allowed="nothing: the executor names the folder of a run by what it is made of",
        fix="use --prefix to say where outputs go",
    )


def require_consistent(config: Any) -> None:
    """Raise `ConfigError` for sections of a template's run config that do not fit together."""
    model, trainer = config.model, config.trainer
    require_row_len(trainer.seq_len)
    require_at_most("train.seq_len", trainer.seq_len, "model.max_seq_len", model.max_seq_len)
    if getattr(model, "document_positions", False):
        config.data.require_documents_apart("model.document_positions")
    config.samples.lengths_for(model, seq_len=trainer.seq_len)
    config.optimizer.schedule(trainer.steps)  # refuses a warmup longer than the run
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    data.mixture_of(config.data, batches, total_steps=trainer.steps)  # refuses unused weights
    require(
        config.eval is None or any(map(config.data.held_out_fraction, config.data.components)),
        "an evaluation with data.validation_fraction=0 and without data.validation",
        allowed="eval where documents are held out, or where there are validation sets",
        fix="set data.validation_fraction or data.validation, or eval=null to evaluate nothing",
    )


def require_vocabulary(vocab_size: int | None, model: Any) -> None:
    """Raise `ConfigError` unless the model has every id of a tokenizer; None: not known yet."""
    require(
        vocab_size is None or vocab_size <= model.vocab_size,
        f"data.tokenizer of {vocab_size} ids with model.vocab_size={model.vocab_size}",
        allowed="a model vocabulary that holds every id of the tokenizer",
        fix=f"set model.vocab_size={vocab_size}",
    )


def with_reproducible_attention(config: Any, mesh: Mesh) -> Any:
    """The run config, with attention that `train.reproducible` allows on these devices.

    cuDNN's attention adds gradients up as threads arrive, and does not run at all under XLA's
    deterministic mode (JAX 0.11.2 on an H200: an IndexError out of the compiled step).
    """
    attention, is_gpu = config.model.attention, mesh.devices.flat[0].platform == "gpu"
    if not (config.trainer.reproducible and is_gpu) or attention in _REPRODUCIBLE_ATTENTION:
        return config
    require(
        attention == "auto",
        f"train.reproducible=true with model.attention={attention} on a GPU",
        allowed=f"attention whose sums have one order: {', '.join(_REPRODUCIBLE_ATTENTION)}",
        fix="leave model.attention out, or set train.reproducible=false",
    )
    log.warning(
        "train.reproducible=true: attention is `chunked`, which is several times slower than cuDNN"
    )
    model = dataclasses.replace(config.model, attention=_REPRODUCIBLE_ATTENTION[0])
    return dataclasses.replace(config, model=model)


def is_stochastic(deterministic: bool | None, model: Any) -> bool:
    """Whether the step hands the model a random key; without one, no model drops anything.

    None: if any number of the model's config with `dropout` in its name is above 0.
    """
    names = [field.name for field in dataclasses.fields(model) if "dropout" in field.name]
    values = {name: getattr(model, name) for name in names}
    rates = {name: value for name, value in values.items() if isinstance(value, int | float)}
    if deterministic and any(rates.values()):
        log.warning("train.deterministic=true: the dropout of the model is off (%s)", rates)
    return any(rates.values()) if deterministic is None else not deterministic


# ---- Data ------------------------------------------------------------------------------------


class OpenData(NamedTuple):
    """A run's tokenizer, its batches and its held-out rows."""

    tokenizer: Tokenizer
    loader: TrainLoader
    eval_datasets: list[EvalDataset]


def open_data(config: Any, mesh: Mesh) -> OpenData:
    """The data of a run config on this mesh. Every store is opened, so a missing one shows at once.

    Refuses a tokenizer or rows that the model cannot take, an attention kernel that cannot run
    here, and a run that the data does not last for. If one process fails, all do.
    """

    def opened() -> OpenData:
        trainer, tokenizer = config.trainer, config.data.tokenizer.load()
        require_vocabulary(tokenizer.vocab_size, config.model)
        limits, seq_len = row_limits(config, mesh), trainer.seq_len
        dataset = data.build_train_dataset(
            config.data,
            tokenizer,
            seq_len=seq_len,
            seed=trainer.seed if trainer.data_seed is None else trainer.data_seed,
            batches=BatchSchedule(trainer.batch_size, trainer.grad_accum),
            total_steps=trainer.steps,
        )
        loader = data.build_train_loader(dataset, mesh, limits)
        held_out = data.build_eval_datasets(config.data, tokenizer, seq_len=seq_len, limits=limits)
        return OpenData(tokenizer, loader, held_out)

    of_first: OpenData | None = None
    if config.data.packing_mode == "packed":
        # Process 0 alone writes the plans of packed rows; the others find them.
        with raise_together("packing the documents", timeout_s=_PACKING_TIMEOUT_S):
            of_first = opened() if is_first() else None
    with raise_together("opening the data"):
        return of_first or opened()


def row_limits(config: Any, mesh: Mesh, *, seq_len: int | None = None) -> RowLimits:
    """What the model of a run config and its attention kernel take of rows.

    `seq_len` is that of training unless it is given. Raises `ConfigError` for a kernel that cannot
    run here, and for heads or a vocabulary that the mesh cannot cut.
    """
    trainer, model = config.trainer, config.model
    segments = None if config.data.stream_semantics else np.zeros((1, 1), np.int32)
    choice = attention_choice(
        KernelShapes.of(model, seq_len=seq_len or trainer.seq_len),
        AttentionMask.causal(segment_ids=segments),
        dtype=Precision.parse(trainer.precision).compute,
        mesh=mesh,
    )
    return RowLimits(
        vocab_size=model.vocab_size,
        # The other kernels have no tables: they take any number of documents.
        counts_documents=choice.name == "cudnn_packed",
        shards=batch_shards(mesh),
    )


# ---- State and step --------------------------------------------------------------------------


def start_report(config: Any, loader: TrainLoader, state: Any, *, steps: range) -> dict[str, Any]:
    """Summary values of a run that starts: bytes per device, environment, the check of its kernels.

    The batch of the first of `steps` gives the masks that kernels are tried on. Tables go to the
    log, one line of each to the terminal. Raises `KernelError` if a kernel is wrong.
    """
    parts, mesh = state_parts(state), loader.mesh
    params_bytes, state_bytes = (bytes_per_device(tree, mesh) for tree in (state.params, parts))
    log.info("bytes per device\n%s", memory_table(parts, mesh, listed=("params",)))
    groups = group_table(state.params, state.params.param_groups(), config.optimizer)
    log.info("how weights are updated\n%s", groups)
    held, weights = format_bytes(state_bytes), format_bytes(params_bytes)
    lines = [f"{held} of state per device, {weights} of it parameters"]
    summary: dict[str, Any] = {
        metrics.MEMORY_PARAMS_BYTES: params_bytes,
        metrics.MEMORY_STATE_BYTES: state_bytes,
        **environment_summary(),
    }
    if steps:  # a run that is done has no batch to look at
        report = kernel_report(config, loader, step=steps.start)
        level = logging.WARNING if report.choice.is_fallback else logging.INFO
        log.log(level, "%s\n%s", report.line(), report.table())
        lines.append(report.line())
        summary |= report.summary()
    if config.logging.console:
        PlainConsole(soft_wrap=True).print("\n".join(lines), markup=False, highlight=False)
    return summary


def kernel_report(config: Any, loader: TrainLoader, *, step: int) -> KernelReport:
    """A run's kernels tried on the masks of a step's batch; raises `KernelError`."""
    mask, seq_len = loader.first_look(step).attn_mask, loader.dataset.seq_len
    if mask.segment_ids is not None:
        mask = mask.with_segment_ids(mask.segment_ids.reshape(-1, seq_len))
    shapes = KernelShapes.of(config.model, seq_len=seq_len)
    dtype = Precision.parse(config.trainer.precision).compute
    return check_kernels(shapes, mask, dtype=dtype, mesh=loader.mesh)


def state_parts(state: Any) -> dict[str, Any]:
    """A train state by what its parts are for."""
    parts = {"params": state.params, "optimizer state": state.opt_state}
    return parts if state.ema_params is None else {**parts, "averaged weights": state.ema_params}


def compile_step(train_step: Any, state: Any, batch: Any, options: Any) -> Any:
    """The jitted step, compiled for a state and a batch (arrays or shapes).

    Raises `ConfigError` for metrics that cannot be logged, before anything is compiled.
    """
    lowered = train_step.lower(state, batch)
    require_metrics(lowered.out_info[1])
    return lowered.compile(compiler_options=options)


def step_memory(compiled: Any) -> int | None:
    """Bytes that a compiled step takes of each device; None where the compiler does not tell."""
    used = compiled.memory_analysis()
    if used is None:
        return None
    # The state is donated: the new one is written where the old one was.
    outputs = max(used.output_size_in_bytes - used.alias_size_in_bytes, 0)
    return int(used.argument_size_in_bytes + used.temp_size_in_bytes + outputs)


def require_step_memory(compiled: Any, *, is_state_held: bool) -> None:
    """Raise `ConfigError` if a device has less memory than a compiled step takes of it.

    `is_state_held`: the state and the batch are allocated already.
    """
    if (needed := step_memory(compiled)) is not None:
        require_memory(
            "a training step with its state, batch and activations",
            needed,
            held=int(compiled.memory_analysis().argument_size_in_bytes) if is_state_held else 0,
            fix="lower train.batch_size and raise train.grad_accum by as much, use more devices "
            "(mesh.data), set model.remat=block, or make the model smaller",
        )
