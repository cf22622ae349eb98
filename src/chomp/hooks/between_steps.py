"""What a loop does between steps when it is due, and once more at the end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jax.sharding import Mesh

from chomp.data import EvalDataset
from chomp.hooks.clock import Phase
from chomp.hooks.evaluate import Evaluation, GrugEvalConfig
from chomp.hooks.run_folder import RunFolder
from chomp.hooks.samples import Samples, SamplesConfig
from chomp.kernels.precision import Precision
from chomp.tokenize import Tokenizer
from chomp.tracking import Tracker


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


def evaluation_and_samples(
    evaluation: GrugEvalConfig | None,
    samples: SamplesConfig,
    datasets: Sequence[EvalDataset],
    losses_of: Callable[[Any, Any], Any],
    tracker: Tracker,
    *,
    folder: RunFolder,
    tokenizer: Tokenizer,
    mesh: Mesh,
    mp: Precision,
    has_average: bool,
) -> list[Hook]:
    """The hooks of a run that look at held-out data; without `evaluation`, samples alone."""
    hooks: list[Hook] = []
    if evaluation is not None:
        hooks.append(
            Evaluation(
                evaluation,
                datasets,
                losses_of,
                tracker,
                mesh=mesh,
                tokenizer=tokenizer,
                has_average=has_average,
            )
        )
    if samples.max_tokens > 0:
        hooks.append(
            Samples(samples, datasets[0], tokenizer, tracker, folder=folder, mesh=mesh, mp=mp)
        )
    return hooks
