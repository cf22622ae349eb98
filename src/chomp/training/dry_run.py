"""What would end a run later, found before any data is built; and what a run would take, shown.

Nothing is trained and nothing is written. All but the inputs is judged by shapes, and a dry run
compiles the step for the devices that are here.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from rich.console import Console
from rich.table import Table

from chomp.checkpoint import latest_checkpoint, list_checkpoints
from chomp.checkpoint.resume import require_weights
from chomp.checkpoint.save import require_space
from chomp.config import config_to_mapping
from chomp.data import (
    BatchSchedule,
    GrugLmExample,
    early_tokenizer,
    forecast_table,
    read_first_documents,
    require_even_batches,
)
from chomp.errors import ConfigError, StorageError, require
from chomp.kernels.attention import AttentionMask
from chomp.kernels.self_check import KernelShapes
from chomp.mesh import (
    FIX_STATE,
    abstract_arrays,
    batch_shards,
    batch_spec,
    bytes_per_device,
    compiler_options,
    create_mesh,
    format_bytes,
    memory_table,
    planned_mesh,
    prepare_devices,
    require_divisible,
    require_memory,
)
from chomp.mesh.memory import device_memory
from chomp.optim import group_table
from chomp.storage import join
from chomp.storage.printable import PlainConsole
from chomp.tracking import require_installed
from chomp.tracking.run_files import CHECKPOINTS
from chomp.training.resume import require_not_past
from chomp.training.setup import (
    compile_step,
    kernel_report,
    open_data,
    require_step_memory,
    require_vocabulary,
    row_limits,
    state_parts,
    step_memory,
)

# Where along the run the learning rate is shown.
_LANDMARKS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)

FreshState = Callable[[Any], Any]
TrainStepOf = Callable[[Any], Any]

log = logging.getLogger(__name__)


def check_run(
    config: Any, fresh_state: FreshState, train_step_of: TrainStepOf, *, is_here: bool
) -> None:
    """Raise what would end a run later: packages, tokenizer, tasks, documents, mesh, memory.

    `config` is a template's run config; the template's `fresh_state(config)` and
    `train_step_of(config)` are traced, and nothing is allocated. `is_here`: the run takes the
    devices of this process. Elsewhere they are checked when it starts.
    """
    _check_inputs(config, is_hub_needed=True)
    if not is_here:
        return
    prepare_devices()
    state, mesh = abstract_arrays(partial(fresh_state, config)), create_mesh(config.mesh)
    _check_state(config, state, mesh)
    held = _check_room(config, state, mesh)
    row_limits(config, mesh)
    # Compiling takes seconds, so only where the step may not fit: what it takes beside the state,
    # to a factor of ten. Activations are about a byte for every thousand operations of a forward
    # pass (124M and 1B on an H200), and the loader makes a few batches ahead.
    trainer = config.trainer
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    tokens = batches.batch_size(0) * trainer.seq_len / batch_shards(mesh)
    activations = tokens * config.model.flops_per_token(trainer.seq_len) / 1000
    memory, rough = device_memory(), held + activations + 100 * tokens * trainer.grad_accum
    if memory is not None and 2 * int(rough) > memory.total:
        with jax.set_mesh(mesh):
            batch = _first_batch(config, mesh)
            compiled = _compile(config, fresh_state, train_step_of, batch, mesh)
            require_step_memory(compiled, is_state_held=False)


def dry_run(
    config: Any,
    fresh_state: FreshState,
    train_step_of: TrainStepOf,
    *,
    is_data_ready: bool,
    console: Console | None = None,
) -> None:
    """Show what a run of this config would take, and compile its step.

    Takes what `check_run` takes, and raises what it and the start of the run would raise. With
    `is_data_ready`, stores are opened and the epochs of every component shown; else the first
    document of each is read, and the step is compiled for shapes alone.
    """
    console = console or PlainConsole(soft_wrap=True)
    show = partial(console.print, markup=False, highlight=False)
    untried = _check_inputs(config, is_hub_needed=False)
    prepare_devices()
    state = abstract_arrays(partial(fresh_state, config))
    planned = planned_mesh(config.mesh)
    _check_state(config, state, planned)
    show(memory_table(state_parts(state), planned, listed=("params",)))
    show(group_table(state.params, state.params.param_groups(), config.optimizer))
    console.print(_fact_table(config, state, bytes_per_device(state, planned)))

    start, end = config.optimizer.schedule_start, config.trainer.steps
    rates = config.optimizer.hyperparameters(end)
    steps = dict.fromkeys(min(start + round(part * (end - start)), end - 1) for part in _LANDMARKS)
    table = Table("step", *(f"{step:,}" for step in steps), title="learning rate")
    for name in (name for name in rates(start) if name.endswith("learning_rate")):
        table.add_row(name.removeprefix("optim/"), *(f"{rates(step)[name]:.3g}" for step in steps))
    console.print(table)

    if not (is_data_ready or untried):
        show("The first document of each component can be read.")
    for what in untried:
        show(f"Not tried: {what.rstrip('.')}.")
    try:
        mesh = create_mesh(config.mesh)
    except ConfigError as error:
        show(f"The step is not compiled: {error}")
        return
    _check_room(config, state, mesh)
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(mesh))
        if is_data_ready:
            loader = stack.enter_context(closing(open_data(config, mesh).loader))
            if loader.dataset.streams:
                show("The length of a stream is not known: no epochs are shown.")
            else:
                console.print(forecast_table(loader.dataset.forecast(config.trainer.steps)))
            show(kernel_report(config, loader, step=0).line())
            batch = loader.batch(0)
        else:
            row_limits(config, mesh)
            show("The data is not built yet, so epochs are not known, and kernels are not checked.")
            batch = _first_batch(config, mesh)
        started = time.perf_counter()
        compiled = _compile(config, fresh_state, train_step_of, batch, mesh)
        text = f"The step compiles in {time.perf_counter() - started:.1f} s"
        if (needed := step_memory(compiled)) is not None:
            text += f" and takes {format_bytes(needed)} of each device, "
            text += "state, batch and activations together"
        show(f"{text}.")
        require_step_memory(compiled, is_state_held=False)


def disk_need(config: Any, state: Any) -> tuple[int, int]:
    """Bytes of one checkpoint of this state (shapes), and of all that are on disk at once."""
    one = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return one, one * sum(config.checkpoint.most_on_disk(config.trainer.steps))


def check_disk(config: Any, state: Any) -> None:
    """Raise `StorageError` if no checkpoint fits on the disk; warn if not all of them do."""
    folder, (one, total) = join(config.output_path, CHECKPOINTS), disk_need(config, state)
    free = require_space(folder, one)
    # An earlier attempt may have written some of them.
    missing = total - one * len(list_checkpoints(folder))
    if free is not None and missing > free:
        log.warning(
            "%s has %s free, and the checkpoints of this run need up to %s more: raise "
            "checkpoint.every, or lower checkpoint.keep_permanent or checkpoint.keep_temporary",
            folder,
            format_bytes(free),
            format_bytes(missing),
        )


def _check_inputs(config: Any, *, is_hub_needed: bool) -> list[str]:
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
    untried, tokenizer = [], None
    try:
        tokenizer = early_tokenizer(data.tokenizer, is_patient=is_hub_needed)
    except StorageError as error:
        if is_hub_needed or data.tokenizer.kind != "hub":
            raise
        untried.append(f"whether the tokenizer's ids fit model.vocab_size: {error}")
    if tokenizer is not None:
        require_vocabulary(tokenizer.vocab_size, model)
    streams = read_first_documents(data, tokenizer)
    return untried + [f"a document of {name}, which is on a hub" for name in streams]


def _check_state(config: Any, state: Any, mesh: Mesh | AbstractMesh) -> None:
    """Raise for a state (shapes) or batches that the mesh cannot cut, and for what a new run
    cannot begin with: first weights, a schedule that starts later.
    """
    trainer, start = config.trainer, config.optimizer.schedule_start
    # First, since it names the fields of the config.
    KernelShapes.of(config.model, seq_len=1).require_cut_by(mesh)
    require_divisible(state, mesh)
    require_even_batches(BatchSchedule(trainer.batch_size, trainer.grad_accum), mesh)
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


def _check_room(config: Any, state: Any, mesh: Mesh) -> int:
    """Raise if no device or disk can hold the state; bytes per device with one gradient.

    Activations come on top: only the compiled step knows them.
    """
    held = bytes_per_device(state_parts(state), mesh) + bytes_per_device(state.params, mesh)
    require_memory("the train state with one gradient", held, fix=FIX_STATE)
    check_disk(config, state)
    return held


def _first_batch(config: Any, mesh: Mesh) -> GrugLmExample:
    """The shapes of the first step's batch, each row of one document; nothing is allocated."""
    trainer = config.trainer
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    shape = (trainer.grad_accum, batches.batch_size(0), trainer.seq_len)
    sharding = NamedSharding(mesh, batch_spec(3, batch_axis=1))
    rows = jax.ShapeDtypeStruct(shape, np.int32, sharding=sharding)
    weights = jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)
    mask = AttentionMask.causal(segment_ids=None if config.data.stream_semantics else rows)
    return GrugLmExample(tokens=rows, loss_weight=weights, attn_mask=mask)


def _compile(
    config: Any, fresh_state: FreshState, train_step_of: TrainStepOf, batch: Any, mesh: Mesh
) -> Any:
    state = jax.eval_shape(partial(fresh_state, config))  # on the mesh of the run
    options = compiler_options(mesh, is_reproducible=config.trainer.reproducible)
    return compile_step(train_step_of(config), state, batch, options)


def _fact_table(config: Any, state: Any, state_bytes: int) -> Table:
    trainer, checkpoint = config.trainer, config.checkpoint
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    tokens = batches.examples_before(trainer.steps) * trainer.seq_len
    flops = 3.0 * config.model.flops_per_token(trainer.seq_len)
    one, disk = disk_need(config, state)
    permanent, temporary = checkpoint.most_on_disk(trainer.steps)
    kinds = f"{permanent} permanent, {temporary} temporary"
    staged = min(one, checkpoint.max_staged_bytes or one)
    table = Table(show_header=False, box=None)
    for name, value in {
        "parameters": f"{sum(leaf.size for leaf in jax.tree.leaves(state.params)):,}",
        "state per device": format_bytes(state_bytes),
        "tokens of a step": f"{batches.examples(0) * trainer.seq_len:,}",
        "tokens of the run": f"{tokens:,} in {trainer.steps:,} steps",
        "FLOPs of a token": f"{flops:.4g}, forward and backward",
        "FLOPs of the run": f"{flops * tokens:.4g}",
        "disk for checkpoints": f"{format_bytes(disk)} at most: {kinds} at once",
        "host memory to save": format_bytes(staged),
    }.items():
        table.add_row(name, value)
    return table
