"""Whether a run may go on from a checkpoint: the same data, in the same order, on its schedule.

The data's fingerprint proves that the stores are the same. Hashes of the next few batches prove
that order, mixture and masks still come out of them as they did, whatever version of the code reads
them now. A stream cannot be read ahead: there its position is hashed.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from chomp.checkpoint import CheckpointMetadata, StepFolder, list_checkpoints
from chomp.config import fingerprint
from chomp.data import (
    MANIFEST,
    BatchSchedule,
    Mixture,
    TrainLoader,
    first_difference,
    read_manifest,
)
from chomp.errors import CheckpointError
from chomp.executor.status import read_info
from chomp.storage import exists, is_local, join, parent_of

# Enough to notice another order, and cheap: a batch of 32 x 1024 tokens takes about 1 ms.
_HASHED_BATCHES = 2


def without_prefix(config: Any, folder: str) -> Any:
    """The config with `train.initialize_from` relative to the output prefix that it lies in.

    Moving all outputs to another prefix makes no run another one.
    """
    source, info = config.trainer.initialize_from, read_info(folder)
    if source is None or info is None or not is_local(source):
        return config
    prefix = re.fullmatch(rf"(.*)/{re.escape(info.name)}-[0-9a-f]{{12}}", os.path.abspath(folder))
    path = os.path.abspath(source)
    if prefix is None or not path.startswith(f"{prefix[1]}/"):
        return config
    inside = f"<prefix>{path.removeprefix(prefix[1])}"
    return replace(config, trainer=replace(config.trainer, initialize_from=inside))


def next_batch_hashes(
    loader: TrainLoader,
    completed_steps: int,
    total_steps: int,
    stream_states: Mapping[str, Any] | None,
) -> list[str]:
    """A hash for each of the next few batches, of all hosts' rows; for streams, of their states.

    A batch that is cut into other micro-batches has the same hash.
    """
    if stream_states is not None:
        return [fingerprint(stream_states)]
    hashes = []
    for step in range(completed_steps, min(completed_steps + _HASHED_BATCHES, total_steps)):
        batch, digest = loader.host_batch(step), hashlib.sha256()
        for array in (batch.tokens, batch.loss_weight, batch.attn_mask.segment_ids):
            if array is not None:
                rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
                digest.update(f"{rows.dtype} {rows.shape}".encode())
                digest.update(rows.data)
        hashes.append(digest.hexdigest())
    return hashes


def past_fingerprint(loader: TrainLoader, saved: CheckpointMetadata) -> str:
    """The fingerprint that the present data has by the mixture that a checkpoint was saved with.

    If the stages have changed since, it tells whether the components are still the same.
    """
    dataset, past = loader.dataset, _past_mixture(saved.config)
    components = saved.config["data"]["components"]
    dropped = [name for name in past.names if name not in dataset.components]
    stores = {name: components[name]["train_store"] for name in dropped}
    if not all(path and exists(join(path, MANIFEST)) for path in stores.values()):
        return dataset.fingerprint()  # a dropped component is a stream, or gone: refused
    others = {name: read_manifest(path).fingerprint() for name, path in stores.items()}
    return dataset.fingerprint(past, others=others)


def require_same_batches(loader: TrainLoader, found: StepFolder, *, total_steps: int) -> None:
    """Raise `CheckpointError` unless the data agrees with a checkpoint.

    Its past: every example before the checkpoint comes from the same row as it did. Its future:
    the next batches are those that the checkpoint expects, up to a step from which the stages
    differ. The loader's streams must be restored by then.
    """
    saved, step = found.metadata, found.metadata.step
    same_until, examples_before = step + _HASHED_BATCHES, loader.batches.examples_before
    past = _past_mixture(saved.config)
    differing = first_difference(past, loader.dataset.mixture, examples_before(same_until))
    if differing is not None:
        same_until = loader.batches.step_of(differing)
    if same_until < step:
        raise CheckpointError(
            f"{found.path} with data.stages that differ from its own at step {same_until}",
            allowed=f"stages that give the {step} completed steps the same examples",
            fix=f"keep its stages before step {step}; new ones may start at step {step} or later",
        )
    # What the loader says now: the checkpoint's own states would agree with themselves. A stream
    # that only the old or only the new stages have was not read yet.
    states, streams = loader.stream_states(step) or {}, None
    if saved.stream_states is not None:
        streams = {name: states.get(name, state) for name, state in saved.stream_states.items()}
    now = next_batch_hashes(loader, step, min(same_until, total_steps), streams)
    # A run that was made longer has batches after its last checkpoint that were not hashed.
    for index, (before, after) in enumerate(zip(saved.next_batches, now, strict=False)):
        if before != after:
            what = f"the batch of step {step + index} is not the one"
            if streams is not None:
                what = f"before step {step} the streams {sorted(streams)} are not at the place"
            raise CheckpointError(
                f"{what} the checkpoint expects ({before[:12]} saved, {after[:12]} now)",
                allowed="the same tokens, weights and documents in the same order",
                fix="continue with the version of chomp and the data that the run began with, "
                "or start a new run from its weights (train.initialize_from)",
            )


def require_not_past(steps: int, found: StepFolder) -> None:
    """Raise `CheckpointError` for a checkpoint after the run's last step.

    The run would save and evaluate that state as the state of step `steps`.
    """
    step = found.metadata.step
    if step > steps:
        saved = [each.metadata.step for each in list_checkpoints(parent_of(found.path))]
        earlier = [each for each in saved if each <= steps]
        go_back = f"go back with --resume {earlier[-1]}" if earlier else "start a new run elsewhere"
        raise CheckpointError(
            f"train.steps={steps} with {found.path}, whose state has trained for longer; "
            f"there are checkpoints of steps {', '.join(map(str, saved))}",
            allowed=f"train.steps of at least {step}, or an earlier checkpoint",
            fix=f"set train.steps={step} or more, or {go_back}",
        )


def require_schedule_start(schedule_start: int, found: StepFolder | None) -> None:
    """Raise `CheckpointError` for a start before the schedule's; None: a start at step 0."""
    step = 0 if found is None else found.metadata.step
    if schedule_start > step:
        begins = "a run that starts at step 0" if found is None else found.path
        raise CheckpointError(
            f"optim.schedule_start={schedule_start} with {begins}: the steps before it "
            "would have no learning rate",
            allowed=f"a schedule that starts at step {step} or earlier",
            fix=f"set optim.schedule_start={step}, or continue from step {schedule_start} or later",
        )


def _past_mixture(config: Mapping[str, Any]) -> Mixture:
    """The mixture of a run config that was read from a checkpoint."""
    data, sizes = config["data"], config["trainer"]["batch_size"]
    pairs = sizes if isinstance(sizes, int) else [(start, size) for start, size in sizes]
    start_of = BatchSchedule(pairs, config["trainer"]["grad_accum"]).examples_before
    stages = [(start_of(stage["start_step"]), stage["weights"]) for stage in data["stages"]]
    return Mixture(stages or {name: part["weight"] for name, part in data["components"].items()})
