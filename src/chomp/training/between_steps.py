"""What a loop does between steps when it is due, and once more at the end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jax.sharding import Mesh

from chomp.data import EvalDataset, LmDataConfig, TrainedTexts
from chomp.kernels.precision import Precision
from chomp.tokenize import Tokenizer
from chomp.tracking import Tracker
from chomp.training.clock import Phase
from chomp.training.evaluate import Evaluation, GrugEvalConfig
from chomp.training.harness_config import HarnessConfig
from chomp.training.open_data import BatchSettings, TrainedModel
from chomp.training.run_folder import RunFolder
from chomp.training.samples import SampleLengths, Samples, SamplesConfig
from chomp.training.step_log import StepLog


@runtime_checkable
class Hook(Protocol):
    """Something with a period. The loop calls it when it is due, on `phase`'s account."""

    phase: Phase

    def is_due(self, completed_steps: int) -> bool:
        """Whether its period ends with that many steps."""
        ...

    def __call__(self, models: Mapping[str, Any], completed_steps: int) -> None:
        """Do it now, for the models `current` and `ema` (None without averaged weights)."""
        ...


@runtime_checkable
class AveragedBatches(BatchSettings, Protocol):
    """The part of a template's trainer config that hooks look at."""

    @property
    def ema_beta(self) -> float | None:
        """Of the averaged weights; None: there are none."""
        ...


@runtime_checkable
class HookedConfig(Protocol):
    """The part of a template's run config that says what is done between steps."""

    @property
    def model(self) -> TrainedModel:
        """What is looked at."""
        ...

    @property
    def data(self) -> LmDataConfig:
        """What it was trained on."""
        ...

    @property
    def trainer(self) -> AveragedBatches:
        """How."""
        ...

    @property
    def eval(self) -> GrugEvalConfig | None:
        """Held-out loss, and tasks; None: neither."""
        ...

    @property
    def samples(self) -> SamplesConfig:
        """Text that the model writes."""
        ...


@runtime_checkable
class OpenedRun(Protocol):
    """What a template has opened when its loop begins: its `Run`."""

    @property
    def config(self) -> HookedConfig:
        """Of the run."""
        ...

    @property
    def mesh(self) -> Mesh:
        """Where its state lies."""
        ...

    @property
    def mp(self) -> Precision:
        """What it computes in."""
        ...

    @property
    def folder(self) -> RunFolder:
        """Where its results go."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """What its tokens mean."""
        ...

    @property
    def eval_datasets(self) -> Sequence[EvalDataset]:
        """Held-out rows."""
        ...


def between_steps(
    run: OpenedRun,
    tracker: Tracker,
    step_log: StepLog,
    *,
    losses_of: Callable[[Any, Any], Any],
    scores_of: Callable[[Any, Any], Any],
) -> list[Hook]:
    """The hooks that a run's config asks for: held-out loss, lm-eval tasks, samples.

    `step_log` tells what an evaluation's row says of its step.
    `losses_of` and `scores_of` are the template's own, as functions of weights and a batch.
    """
    config, hooks = run.config, list[Hook]()
    if config.eval is not None:
        hooks.append(
            Evaluation(
                config.eval,
                run.eval_datasets,
                losses_of,
                tracker,
                mesh=run.mesh,
                tokenizer=run.tokenizer,
                has_average=config.trainer.ema_beta is not None,
                about_step=step_log.unlogged,
            )
        )
        if config.eval.harness is not None:
            hooks.append(_tasks(run, config.eval.harness, scores_of, tracker))
    lengths = config.samples.resolved_for(config.model, seq_len=config.trainer.seq_len)
    if lengths.max_tokens > 0:
        hooks.append(_samples(run, lengths, tracker))
    return hooks


def _tasks(
    run: OpenedRun, config: HarnessConfig, scores_of: Callable[[Any, Any], Any], tracker: Tracker
) -> Hook:
    from chomp.training.harness import Harness, HarnessTasks  # noqa: PLC0415  # needs lm-eval

    harness = Harness(
        config,
        scores_of,
        model=run.config.model,
        data=run.config.data,
        seq_len=run.config.trainer.seq_len,
        mesh=run.mesh,
        mp=run.mp,
        tokenizer=run.tokenizer,
    )
    return HarnessTasks(harness, config.every, tracker, run.folder.path)


def _samples(run: OpenedRun, lengths: SampleLengths, tracker: Tracker) -> Samples:
    return Samples(
        run.config.samples,
        lengths,
        run.eval_datasets,
        TrainedTexts(run.config.data, run.tokenizer),
        run.tokenizer,
        tracker,
        folder=run.folder,
        mesh=run.mesh,
        mp=run.mp,
    )
