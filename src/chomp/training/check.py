"""What would end a run later, found before any data is built. A dry run makes the same checks."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from chomp.checkpoint import (
    CHECKPOINTS,
    latest_checkpoint,
    list_checkpoints,
    require_space,
    require_weights,
)
from chomp.config import config_to_mapping
from chomp.data import (
    BatchSchedule,
    GrugLmExample,
    early_tokenizer,
    read_first_documents,
    require_even_batches,
)
from chomp.errors import StorageError, require
from chomp.kernels.attention import AttentionMask
from chomp.kernels.kernel_shapes import KernelShapes
from chomp.kernels.precision import Precision
from chomp.mesh import (
    FIX_STATE,
    abstract_arrays,
    batch_shards,
    batch_spec,
    bytes_per_device,
    compiler_options,
    create_mesh,
    format_bytes,
    prepare_devices,
    require_divisible,
    require_memory,
)
from chomp.mesh.memory import device_memory
from chomp.storage import join
from chomp.tracking import require_installed
from chomp.training.resume import require_not_past
from chomp.training.setup import require_vocabulary, row_limits, state_parts
from chomp.training.step_log import require_metrics

log = logging.getLogger(__name__)


class DiskNeed(NamedTuple):
    """Bytes of a checkpoint, and how many of each kind are on disk at once, at most."""

    one: int
    permanent: int
    temporary: int

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self.one * (self.permanent + self.temporary)


def check_run(
    config: Any,
    fresh_state: Callable[[Any], Any],
    train_step_of: Callable[[Any], Any],
    *,
    is_here: bool,
) -> None:
    """Raise what would end a run later: packages, tokenizer, tasks, documents, mesh, memory.

    `config` is a template's run config; the template's `fresh_state(config)` and
    `train_step_of(config)` are traced, and nothing is allocated. `is_here`: the run takes the
    devices of this process. Elsewhere they are checked when it starts.
    """
    check_inputs(config, is_hub_needed=True)
    if not is_here:
        return
    prepare_devices()
    state, mesh = abstract_arrays(partial(fresh_state, config)), create_mesh(config.mesh)
    check_mesh(config, state, mesh)
    check_start(config, state)
    check_state_memory(state, mesh)
    check_disk(config, state)
    trainer = config.trainer
    mp = Precision.parse(trainer.precision)
    row_limits(config.model, config.data, seq_len=trainer.seq_len, mp=mp, mesh=mesh)
    memory = device_memory()
    if memory is not None and 2 * _rough_step_bytes(config, state, mesh) > memory.total:
        with jax.set_mesh(mesh):
            compiled = compile_abstract(
                config, fresh_state, train_step_of, empty_batch(config, mesh), mesh
            )
            require_step_memory(compiled, is_state_held=False)


def check_inputs(config: Any, *, is_hub_needed: bool) -> list[str]:
    """Check what a run reads and imports; returns what was not tried, with the reason.

    `is_hub_needed`: a hub that cannot be reached is an error.
    """
    model, trainer, data = config.model, config.trainer, config.data
    require_installed(config.logging)
    newest = latest_checkpoint(join(config.output_path, CHECKPOINTS))
    # `load_checkpoint_path` is looked at when the run starts.
    if newest is not None and trainer.load_checkpoint_path is None:
        require_not_past(trainer.steps, newest)
    if config.eval is not None:
        config.eval.prefixes(has_average=trainer.ema_beta is not None)
        if config.eval.harness is not None:
            from chomp.training.harness import require_runnable_tasks  # noqa: PLC0415  # needs lm-eval

            require_runnable_tasks(config.eval.harness, model, seq_len=trainer.seq_len)
    untried = []
    try:
        tokenizer = early_tokenizer(data.tokenizer, is_patient=is_hub_needed)
    except StorageError as error:
        if is_hub_needed or data.tokenizer.kind != "hub":
            raise
        untried.append(f"whether the tokenizer's ids fit model.vocab_size: {error}")
        tokenizer = None
    if tokenizer is not None:
        require_vocabulary(tokenizer.vocab_size, model)
    streams = read_first_documents(data, tokenizer)
    return untried + [f"a document of {name}, which is on a hub" for name in streams]


def check_start(config: Any, state: Any) -> None:
    """Raise what a new run could not begin with: first weights, a schedule that starts later."""
    trainer, start = config.trainer, config.optimizer.schedule_start
    is_new = not list_checkpoints(join(config.output_path, CHECKPOINTS))
    if is_new and trainer.initialize_from is not None:
        name: Literal["params", "ema"] = "ema" if trainer.initialize_weights == "ema" else "params"
        model = config_to_mapping(config.model)
        require_weights(trainer.initialize_from, name, state.params, model=model)
    require(
        start == 0 or not is_new or trainer.load_checkpoint_path is not None,
        f"optim.schedule_start={start} in a new run",
        allowed="0, or the step of a checkpoint that the run continues from",
        fix="leave it out, or name the folder of the run to continue",
    )


def check_mesh(config: Any, state: Any, mesh: Mesh | AbstractMesh) -> None:
    """Raise `ConfigError` unless the mesh can cut the model, its state (shapes) and its batches."""
    trainer = config.trainer
    # First, since it names the fields of the config.
    KernelShapes.of(config.model, seq_len=1).require_cut_by(mesh)
    require_divisible(state, mesh)
    require_even_batches(BatchSchedule(trainer.batch_size, trainer.grad_accum), mesh)


def check_state_memory(state: Any, mesh: Mesh | AbstractMesh) -> None:
    """Raise `ConfigError` if a device cannot hold its part of the state (shapes) and a gradient.

    Activations come on top: only the compiled step knows them.
    """
    state_bytes = bytes_per_device(state_parts(state), mesh)
    require_memory(
        "the train state with one gradient",
        state_bytes + bytes_per_device(state.params, mesh),
        fix=FIX_STATE,
    )


def disk_need(config: Any, state: Any) -> DiskNeed:
    """The disk that the checkpoints of a run with this state (shapes) take."""
    one = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return DiskNeed(one, *config.checkpoint.most_on_disk(config.trainer.steps))


def check_disk(config: Any, state: Any) -> None:
    """Raise `StorageError` if no checkpoint fits on the disk; warn if not all of them do."""
    folder, need = join(config.output_path, CHECKPOINTS), disk_need(config, state)
    free = require_space(folder, need.one)
    if free is None:
        return
    # An earlier attempt may have written some of them.
    missing = need.total - need.one * len(list_checkpoints(folder))
    if missing > free:
        log.warning(
            "%s has %s free, and the checkpoints of this run need up to %s more: raise "
            "checkpoint.every, or lower checkpoint.keep_permanent or checkpoint.keep_temporary",
            folder,
            format_bytes(free),
            format_bytes(missing),
        )


def empty_batch(config: Any, mesh: Mesh) -> GrugLmExample:
    """The shapes of the first step's batch, each row of one document; nothing is allocated."""
    trainer = config.trainer
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    shape = (trainer.grad_accum, batches.batch_size(0), trainer.seq_len)
    sharding = NamedSharding(mesh, batch_spec(3, batch_axis=1))
    rows = jax.ShapeDtypeStruct(shape, np.int32, sharding=sharding)
    return GrugLmExample(
        tokens=rows,
        loss_weight=jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding),
        attn_mask=AttentionMask.causal(segment_ids=None if config.data.stream_semantics else rows),
    )


def compile_step(train_step: Any, state: Any, batch: Any, options: Any) -> Any:
    """The jitted step, compiled for a state and a batch (arrays or shapes).

    Raises `ConfigError` for metrics that cannot be logged, before anything is compiled.
    """
    lowered = train_step.lower(state, batch)
    require_metrics(lowered.out_info[1])
    return lowered.compile(compiler_options=options)


def compile_abstract(
    config: Any,
    fresh_state: Callable[[Any], Any],
    train_step_of: Callable[[Any], Any],
    batch: GrugLmExample,
    mesh: Mesh,
) -> Any:
    """The step of a run config, compiled for shapes alone."""
    options = compiler_options(mesh, is_reproducible=config.trainer.reproducible)
    state = jax.eval_shape(partial(fresh_state, config))
    return compile_step(train_step_of(config), state, batch, options)


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
    needed = step_memory(compiled)
    if needed is not None:
        require_memory(
            "a training step with its state, batch and activations",
            needed,
            held=int(compiled.memory_analysis().argument_size_in_bytes) if is_state_held else 0,
            fix="lower train.batch_size and raise train.grad_accum by as much, use more devices "
            "(mesh.data), set model.remat=block, or make the model smaller",
        )


def _rough_step_bytes(config: Any, state: Any, mesh: Mesh) -> int:
    """The memory a step may take of a device, to a factor of ten.

    Activations are about a byte for every thousand operations of a forward pass (124M and 1B on an
    H200), and the loader makes a few batches ahead.
    """
    trainer = config.trainer
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    tokens = batches.batch_size(0) * trainer.seq_len / batch_shards(mesh)
    activations = tokens * config.model.flops_per_token(trainer.seq_len) / 1000
    held = bytes_per_device(state_parts(state), mesh) + bytes_per_device(state.params, mesh)
    return int(held + activations + 100 * tokens * trainer.grad_accum)
