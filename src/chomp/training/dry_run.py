"""What a run would take, told before it is started: nothing is trained and nothing is written.

The step is compiled for the devices that are here, on the run's own first batch where its data is
built; everything else comes from shapes.
"""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import jax
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from chomp.data import BatchSchedule, GrugLmExample, forecast_table
from chomp.errors import ConfigError
from chomp.kernels.precision import Precision
from chomp.mesh import (
    abstract_arrays,
    bytes_per_device,
    create_mesh,
    memory_table,
    planned_mesh,
    prepare_devices,
    told_bytes,
)
from chomp.optim import group_table
from chomp.storage.printable import PlainConsole
from chomp.training.check_run import (
    check_disk,
    check_inputs,
    check_mesh,
    check_start,
    check_state_memory,
    check_step_memory,
    compile_step,
    disk_need,
    empty_batch,
    step_memory,
)
from chomp.training.open_data import OpenData, open_data
from chomp.training.start_report import kernel_report, row_limits, state_parts

# Where along the run the learning rate is told.
_LANDMARKS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def dry_run(
    config: Any,
    make_state: Callable[[], Any],
    make_step: Callable[[], Any],
    *,
    is_data_ready: bool,
    console: Console | None = None,
) -> None:
    """Show what a run of this config would take, and compile its step.

    `config` is a template's run config, `make_state` its `fresh_state` and `make_step` its jitted
    step. Raises what the run would raise at its start, and what `check_run` finds. With
    `is_data_ready`, stores are opened and the epochs of every component told; else the first
    document of each is read, and the step is compiled for rows of nothing.
    """
    console = console or PlainConsole(soft_wrap=True)
    untried = check_inputs(config, is_hub_needed=False)
    prepare_devices()
    state, planned = abstract_arrays(make_state), planned_mesh(config.mesh)
    check_mesh(config, state, planned)
    check_start(config, state)
    _print(console, memory_table(state_parts(state), planned, listed=("params",)))
    _print(console, group_table(state.params, state.params.param_groups(), config.optimizer))
    console.print(_facts(config, state, bytes_per_device(state, planned)))
    console.print(_learning_rates(config))
    if not (is_data_ready or untried):
        _print(console, "The first document of each component can be read.")
    for what in untried:
        _print(console, f"Not tried: {what.rstrip('.')}.")
    try:
        mesh = create_mesh(config.mesh)
    except ConfigError as error:
        _print(console, f"The step is not compiled: {error}")
        return
    check_state_memory(state, mesh)
    check_disk(config, state)
    with jax.set_mesh(mesh):
        _try_step(config, make_state, make_step, mesh, is_data_ready, console)


def _try_step(
    config: Any,
    make_state: Callable[[], Any],
    make_step: Callable[[], Any],
    mesh: Mesh,
    is_data_ready: bool,
    console: Console,
) -> None:
    model, trainer = config.model, config.trainer
    mp = Precision.parse(trainer.precision)
    if not is_data_ready:
        row_limits(model, config.data, seq_len=trainer.seq_len, mp=mp, mesh=mesh)
        told = "The data is not built yet, so epochs are not known, and kernels are not checked."
        _print(console, told)
        _compile(config, make_state, make_step, empty_batch(config, mesh), mesh, console)
        return
    data: OpenData = open_data(model, config.data, trainer, mp=mp, mesh=mesh)
    with closing(data.loader):
        dataset = data.loader.dataset
        if dataset.streams:
            _print(console, "How long a stream is, nobody knows: no epochs are told.")
        else:
            console.print(forecast_table(dataset.forecast(trainer.steps)))
        _print(console, kernel_report(model, data.loader, mp=mp, step=0).line())
        _compile(config, make_state, make_step, data.loader.batch(0), mesh, console)


def _compile(
    config: Any,
    make_state: Callable[[], Any],
    make_step: Callable[[], Any],
    batch: GrugLmExample,
    mesh: Mesh,
    console: Console,
) -> None:
    started = time.perf_counter()
    compiled = compile_step(config, make_state, make_step, batch, mesh)
    seconds = time.perf_counter() - started
    told, taken = f"The step compiles in {seconds:.1f} s", step_memory(compiled)
    if taken is not None:
        told += f" and takes {told_bytes(taken)} of each device, state, batch and activations"
        told += " together"
    _print(console, f"{told}.")
    check_step_memory(compiled, is_state_held=False)


def _facts(config: Any, state: Any, state_bytes: int) -> Table:
    trainer, checkpoint = config.trainer, config.checkpoint
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    examples = batches.examples_before(trainer.steps)
    flops = 3.0 * trainer.seq_len * config.model.flops_per_token(trainer.seq_len)
    disk, staged = disk_need(config, state), checkpoint.max_staged_bytes
    table = Table(show_header=False, box=None)
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    table.add_row("parameters", f"{weights:,}")
    table.add_row("state per device", told_bytes(state_bytes))
    table.add_row("tokens of a step", f"{batches.examples(0) * trainer.seq_len:,}")
    table.add_row("tokens of the run", f"{examples * trainer.seq_len:,} in {trainer.steps:,} steps")
    table.add_row("FLOPs of a token", f"{flops / trainer.seq_len:.4g}, forward and backward")
    table.add_row("FLOPs of the run", f"{flops * examples:.4g}")
    kinds = f"{disk.permanent} permanent, {disk.temporary} temporary"
    table.add_row("disk for checkpoints", f"{told_bytes(disk.total)} at most: {kinds} at once")
    table.add_row("host memory to save", told_bytes(min(disk.one, staged or disk.one)))
    return table


def _learning_rates(config: Any) -> Table:
    start, end = config.optimizer.schedule_start, config.trainer.steps
    rates = config.optimizer.hyperparameters(end)
    at = dict.fromkeys(min(start + round(part * (end - start)), end - 1) for part in _LANDMARKS)
    table = Table("step", *(f"{step:,}" for step in at), title="learning rate")
    names = [name for name in rates(start) if name.endswith("learning_rate")]
    for name in names:
        table.add_row(name.removeprefix("optim/"), *(f"{rates(step)[name]:.3g}" for step in at))
    return table


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)
