"""Where a run begins: at a checkpoint that was proven to be its own, or at step 0."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from jax.sharding import Mesh

from chomp.checkpoint import (
    CheckpointMetadata,
    StepFolder,
    list_checkpoints,
    restore_latest_or_initialize,
)
from chomp.data import TrainLoader
from chomp.errors import CheckpointError
from chomp.mesh import is_first
from chomp.storage import join, parent_of
from chomp.tokenize import Tokenizer
from chomp.tracking.run_files import TEMPLATE, sources_hash, template_sources
from chomp.training.checkpoint_metadata import checkpoint_metadata
from chomp.training.next_batches import past_fingerprint, require_same_batches
from chomp.training.run_folder import RunFolder

State = TypeVar("State")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartingPoint(Generic[State]):
    """The state to go on from, and what is known of the run so far."""

    state: State
    run: CheckpointMetadata  # what every checkpoint of this attempt says, but for the template
    before: CheckpointMetadata  # of the steps behind it: tokens, steps that were left out
    folder: RunFolder

    @property
    def about(self) -> CheckpointMetadata:
        """What every checkpoint of this attempt says of the run, once the folder is described."""
        # Of the copy and not of its origin, which may be edited while the run trains. Process 0
        # writes both the copy and the metadata.
        sources = template_sources(join(self.folder.path, TEMPLATE)) if is_first() else {}
        return replace(self.run, template_hash=sources_hash(sources) if sources else "")


def starting_point(
    config: Any,
    initialize: Callable[[], State],
    *,
    folder: RunFolder,
    loader: TrainLoader,
    tokenizer: Tokenizer,
    mesh: Mesh,
) -> StartingPoint[State]:
    """The newest checkpoint that can be trusted, or what `initialize` makes; the loader follows.

    `config` is a template's run config. Raises `CheckpointError` for a checkpoint of another run,
    other data, or batches that are not those it was going to train on, where the run has not
    reached `optim.schedule_start`, and where it is past `train.steps`.
    """
    about = checkpoint_metadata(config, folder, loader=loader, tokenizer=tokenizer, mesh=mesh)

    def prove(found: StepFolder) -> None:
        _require_reached(config.optimizer.schedule_start, found)
        require_not_past(config.trainer.steps, found)
        loader.restore_streams(found.metadata.stream_states)
        require_same_batches(loader, found, total_steps=config.trainer.steps)

    begun = restore_latest_or_initialize(
        folder.checkpoints,
        initialize,
        about=about,
        mesh=mesh,
        config=config,
        settings=config.trainer,
        data_offset_at=loader.batches.examples_before,
        past_fingerprint=partial(past_fingerprint, loader),
        proof=prove,
    )
    _require_reached(config.optimizer.schedule_start, begun.found)
    if begun.found is None and folder.attempt > 1:
        there, at = folder.checkpoints, folder.attempt
        log.warning("%s has no checkpoint: attempt %d starts at step 0", there, at)
    else:
        log.info("starting from %s", "step 0" if begun.found is None else begun.found.path)
    about = replace(about, continues=begun.continues)
    before = about if begun.found is None else begun.found.metadata
    return StartingPoint(begun.state, about, before, folder)


def require_not_past(steps: int, found: StepFolder) -> None:
    """Raise `CheckpointError` for a checkpoint of a later step than the last one of the run.

    The run would save that state, and evaluate it, as the state of step `steps`.
    """
    if found.metadata.step <= steps:
        return
    there = [item.metadata.step for item in list_checkpoints(parent_of(found.path))]
    earlier = [step for step in there if step <= steps]
    raise CheckpointError(
        f"train.steps={steps} with {found.path}, whose state has trained for longer; "
        f"there are checkpoints of steps {', '.join(map(str, there))}",
        allowed=f"train.steps of at least {found.metadata.step}, or an earlier checkpoint",
        fix=f"set train.steps={found.metadata.step} or more, "
        + (
            f"or go back with --resume {earlier[-1]}"
            if earlier
            else "or start a new run in another folder"
        ),
    )


def _require_reached(schedule_start: int, found: StepFolder | None) -> None:
    """Raise `CheckpointError` for a schedule that starts after the step a run goes on from."""
    step = 0 if found is None else found.metadata.step
    if schedule_start > step:
        there = "a run that starts at step 0" if found is None else found.path
        raise CheckpointError(
            f"optim.schedule_start={schedule_start} with {there}: the steps before it "
            "would have no learning rate",
            allowed=f"a schedule that starts at step {step} or earlier",
            fix=f"set optim.schedule_start={step}, or continue from a checkpoint of step "
            f"{schedule_start} or later",
        )
