"""What a run says about itself before its first step: bytes on each device, how its weights are
updated, kernels that are right. A dry run says the same without a run.
"""

import logging
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh

from chomp.data import LmDataConfig, RowLimits, TrainLoader
from chomp.kernels.attention import AttentionMask
from chomp.kernels.kernel_shapes import KernelShapes, ModelShapes
from chomp.kernels.precision import Precision
from chomp.kernels.self_check import KernelReport, attention_choice, check_kernels
from chomp.mesh import batch_shards, bytes_per_device, memory_table, told_bytes
from chomp.optim import GrugOptimizerConfig, group_table
from chomp.storage.printable import PlainConsole
from chomp.tracking import LoggingConfig, metrics
from chomp.training.environment import environment_summary

log = logging.getLogger(__name__)

_DOCUMENTS = AttentionMask.causal(segment_ids=np.zeros((1, 1), np.int32))


@runtime_checkable
class TrainState(Protocol):
    """The part of a template's train state that is told about."""

    @property
    def params(self) -> Any:
        """The weights that are trained."""
        ...

    @property
    def opt_state(self) -> Any:
        """What the optimizer keeps."""
        ...

    @property
    def ema_params(self) -> Any:
        """The averaged weights; None: no average."""
        ...


def row_limits(
    model: ModelShapes, data: LmDataConfig, *, seq_len: int, mp: Precision, mesh: Mesh
) -> RowLimits:
    """What a model and its attention kernel take of rows.

    Raises `ConfigError` for a kernel that cannot run here, and for heads or a vocabulary that the
    mesh cannot cut.
    """
    mask = AttentionMask.causal() if data.stream_semantics else _DOCUMENTS
    shapes = KernelShapes.of(model, seq_len=seq_len)
    choice = attention_choice(shapes, mask, dtype=mp.compute, mesh=mesh)
    # The other kernels have no tables: they take any number of documents.
    counts = choice.name == "cudnn_packed"
    return RowLimits(
        vocab_size=model.vocab_size, counts_documents=counts, shards=batch_shards(mesh)
    )


@runtime_checkable
class ReportedConfig(Protocol):
    """The part of a template's run config that is told about."""

    @property
    def model(self) -> ModelShapes:
        """What the kernels are tried for."""
        ...

    @property
    def optimizer(self) -> GrugOptimizerConfig:
        """What updates the weights."""
        ...

    @property
    def logging(self) -> LoggingConfig:
        """Whether the terminal is told too."""
        ...


def start_report(
    config: ReportedConfig, loader: TrainLoader, state: TrainState, *, mp: Precision, steps: range
) -> dict[str, Any]:
    """Summary values of a run that starts: bytes per device, environment, the check of its kernels.

    `steps` are those to be done; the batch of the first gives the masks that kernels are tried on.
    Tables go to the run's log, and a line of each to the terminal with `logging.console`. Raises
    `KernelError` if a kernel is wrong.
    """
    parts, mesh = state_parts(state), loader.mesh
    on_params, on_all = (bytes_per_device(tree, mesh) for tree in (state.params, parts))
    log.info("bytes per device\n%s", memory_table(parts, mesh, listed=("params",)))
    groups = group_table(state.params, state.params.param_groups(), config.optimizer)
    log.info("how weights are updated\n%s", groups)
    told = [f"{told_bytes(on_all)} of state per device, {told_bytes(on_params)} of it parameters"]
    summary: dict[str, Any] = {
        metrics.MEMORY_PARAMS_BYTES: on_params,
        metrics.MEMORY_STATE_BYTES: on_all,
        **environment_summary(),
    }
    if steps:  # a run that is done has no batch to look at
        report = kernel_report(config.model, loader, mp=mp, step=steps.start)
        level = logging.WARNING if report.choice.is_fallback else logging.INFO
        log.log(level, "%s\n%s", report.line(), report.table())
        told.append(report.line())
        summary |= report.summary()
    if config.logging.console:
        _show("\n".join(told))
    return summary


def kernel_report(
    model: ModelShapes, loader: TrainLoader, *, mp: Precision, step: int
) -> KernelReport:
    """The kernels of a model tried on the masks of a step's batch; raises `KernelError`."""
    mask, seq_len = loader.first_look(step).attn_mask, loader.dataset.seq_len
    if mask.segment_ids is not None:
        mask = mask.with_segment_ids(mask.segment_ids.reshape(-1, seq_len))
    shapes = KernelShapes.of(model, seq_len=seq_len)
    return check_kernels(shapes, mask, dtype=mp.compute, mesh=loader.mesh)


def state_parts(state: TrainState) -> dict[str, Any]:
    """A train state by what its parts are for."""
    parts = {"params": state.params, "optimizer state": state.opt_state}
    if state.ema_params is not None:
        parts["averaged weights"] = state.ema_params
    return parts


def _show(text: str) -> None:
    PlainConsole(soft_wrap=True).print(text, markup=False, highlight=False)
