"""What a run would take, shown before it is started: nothing is trained and nothing is written.

The step is compiled for the devices that are here, on the run's own first batch where its data is
built; everything else comes from shapes.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from chomp.data import BatchSchedule, forecast_table
from chomp.errors import ConfigError
from chomp.kernels.precision import Precision
from chomp.mesh import (
    abstract_arrays,
    bytes_per_device,
    create_mesh,
    format_bytes,
    memory_table,
    planned_mesh,
    prepare_devices,
)
from chomp.optim import group_table
from chomp.storage.printable import PlainConsole
from chomp.training.check import (
    check_disk,
    check_inputs,
    check_mesh,
    check_start,
    check_state_memory,
    compile_abstract,
    disk_need,
    empty_batch,
    require_step_memory,
    step_memory,
)
from chomp.training.setup import kernel_report, open_data, parameter_count, row_limits, state_parts

# Where along the run the learning rate is shown.
_LANDMARKS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


def dry_run(
    config: Any,
    fresh_state: Callable[[Any], Any],
    train_step_of: Callable[[Any], Any],
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
    untried = check_inputs(config, is_hub_needed=False)
    prepare_devices()
    state = abstract_arrays(partial(fresh_state, config))
    planned = planned_mesh(config.mesh)
    check_mesh(config, state, planned)
    check_start(config, state)
    show(memory_table(state_parts(state), planned, listed=("params",)))
    show(group_table(state.params, state.params.param_groups(), config.optimizer))
    console.print(_fact_table(config, state, bytes_per_device(state, planned)))
    console.print(_learning_rate_table(config))
    if not (is_data_ready or untried):
        show("The first document of each component can be read.")
    for what in untried:
        show(f"Not tried: {what.rstrip('.')}.")
    try:
        mesh = create_mesh(config.mesh)
    except ConfigError as error:
        show(f"The step is not compiled: {error}")
        return
    check_state_memory(state, mesh)
    check_disk(config, state)

    mp = Precision.parse(config.trainer.precision)
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(mesh))
        if is_data_ready:
            loader = stack.enter_context(closing(open_data(config, mesh).loader))
            if loader.dataset.streams:
                show("The length of a stream is not known: no epochs are shown.")
            else:
                console.print(forecast_table(loader.dataset.forecast(config.trainer.steps)))
            show(kernel_report(config.model, loader, mp=mp, step=0).line())
            batch = loader.batch(0)
        else:
            row_limits(config.model, config.data, seq_len=config.trainer.seq_len, mp=mp, mesh=mesh)
            show("The data is not built yet, so epochs are not known, and kernels are not checked.")
            batch = empty_batch(config, mesh)
        started = time.perf_counter()
        compiled = compile_abstract(config, fresh_state, train_step_of, batch, mesh)
        text = f"The step compiles in {time.perf_counter() - started:.1f} s"
        if (needed := step_memory(compiled)) is not None:
            text += (
                f" and takes {format_bytes(needed)} of each device, state, batch and activations "
                "together"
            )
        show(f"{text}.")
        require_step_memory(compiled, is_state_held=False)


def _fact_table(config: Any, state: Any, state_bytes: int) -> Table:
    trainer, checkpoint = config.trainer, config.checkpoint
    batches = BatchSchedule(trainer.batch_size, trainer.grad_accum)
    examples = batches.examples_before(trainer.steps)
    flops = 3.0 * trainer.seq_len * config.model.flops_per_token(trainer.seq_len)
    disk, staged = disk_need(config, state), checkpoint.max_staged_bytes
    table = Table(show_header=False, box=None)
    table.add_row("parameters", f"{parameter_count(state.params):,}")
    table.add_row("state per device", format_bytes(state_bytes))
    table.add_row("tokens of a step", f"{batches.examples(0) * trainer.seq_len:,}")
    table.add_row("tokens of the run", f"{examples * trainer.seq_len:,} in {trainer.steps:,} steps")
    table.add_row("FLOPs of a token", f"{flops / trainer.seq_len:.4g}, forward and backward")
    table.add_row("FLOPs of the run", f"{flops * examples:.4g}")
    kinds = f"{disk.permanent} permanent, {disk.temporary} temporary"
    table.add_row("disk for checkpoints", f"{format_bytes(disk.total)} at most: {kinds} at once")
    table.add_row("host memory to save", format_bytes(min(disk.one, staged or disk.one)))
    return table


def _learning_rate_table(config: Any) -> Table:
    start, end = config.optimizer.schedule_start, config.trainer.steps
    rates = config.optimizer.hyperparameters(end)
    steps = dict.fromkeys(min(start + round(part * (end - start)), end - 1) for part in _LANDMARKS)
    table = Table("step", *(f"{step:,}" for step in steps), title="learning rate")
    for name in (name for name in rates(start) if name.endswith("learning_rate")):
        table.add_row(name.removeprefix("optim/"), *(f"{rates(step)[name]:.3g}" for step in steps))
    return table
