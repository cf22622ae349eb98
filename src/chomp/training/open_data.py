"""Everything a run reads, opened and checked before its first step."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jax.sharding import Mesh

from chomp.data import (
    BatchSchedule,
    EvalDataset,
    LmDataConfig,
    TrainLoader,
    build_eval_datasets,
    build_train_dataset,
    build_train_loader,
)
from chomp.data.rows import require_row_len
from chomp.errors import require_at_most
from chomp.kernels.kernel_shapes import ModelShapes
from chomp.kernels.precision import Precision
from chomp.mesh import all_or_none, is_first
from chomp.tokenize import Tokenizer
from chomp.training.start_report import row_limits

_PACKING_S = 6 * 3600.0  # that processes wait for the plan of a large store


@runtime_checkable
class TrainedModel(ModelShapes, Protocol):
    """The part of a model's config that its data depends on."""

    @property
    def max_seq_len(self) -> int:
        """The longest row the model takes."""
        ...


@runtime_checkable
class BatchSettings(Protocol):
    """The part of a template's trainer config that says what a batch is."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        ...

    @property
    def batch_size(self) -> int | tuple[tuple[int, int], ...]:
        """Rows of a micro-batch, or `[start step, rows]` pairs."""
        ...

    @property
    def grad_accum(self) -> int:
        """Micro-batches of a step."""
        ...

    @property
    def seq_len(self) -> int:
        """Tokens of a row."""
        ...

    @property
    def seed(self) -> int:
        """Of the run."""
        ...

    @property
    def data_seed(self) -> int | None:
        """Of the order of the data; None: that of the run."""
        ...


@dataclass(frozen=True)
class OpenData:
    """A run's tokenizer, its batches and its held-out rows."""

    tokenizer: Tokenizer
    loader: TrainLoader
    eval_datasets: list[EvalDataset]


def open_data(
    model: TrainedModel, data: LmDataConfig, trainer: BatchSettings, *, mp: Precision, mesh: Mesh
) -> OpenData:
    """The data of a run on this mesh. Every store is opened, so a missing one shows at once.

    Refuses a tokenizer or rows that the model cannot take, an attention kernel that cannot run
    here, and a run that the data does not last for. What one process cannot open, none does.
    """
    first: OpenData | None = None
    if data.packing_mode == "packed":
        # Process 0 alone writes the plans of packed rows; the others find them.
        with all_or_none("packing the documents", timeout_s=_PACKING_S):
            first = _opened(model, data, trainer, mp=mp, mesh=mesh) if is_first() else None
    with all_or_none("opening the data"):
        return first or _opened(model, data, trainer, mp=mp, mesh=mesh)


def require_rows(model: TrainedModel, trainer: BatchSettings) -> None:
    """Refuse rows that the model does not take, and such in which nothing is predicted."""
    require_row_len(trainer.seq_len)
    require_at_most("train.seq_len", trainer.seq_len, "model.max_seq_len", model.max_seq_len)


def _opened(
    model: TrainedModel, data: LmDataConfig, trainer: BatchSettings, *, mp: Precision, mesh: Mesh
) -> OpenData:
    tokenizer = data.tokenizer.load()
    require_at_most("tokenizer ids", tokenizer.vocab_size, "model.vocab_size", model.vocab_size)
    require_rows(model, trainer)
    limits = row_limits(model, data, seq_len=trainer.seq_len, mp=mp, mesh=mesh)
    dataset = build_train_dataset(
        data,
        tokenizer,
        seq_len=trainer.seq_len,
        seed=trainer.seed if trainer.data_seed is None else trainer.data_seed,
        batches=BatchSchedule(trainer.batch_size, trainer.grad_accum),
        total_steps=trainer.steps,
    )
    loader = build_train_loader(dataset, mesh, limits)
    held_out = build_eval_datasets(data, tokenizer, seq_len=trainer.seq_len, limits=limits)
    return OpenData(tokenizer, loader, held_out)
