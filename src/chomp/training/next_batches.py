"""Proof that a resumed run goes on with the data it would have had: hashes of its next batches.

The data's fingerprint says that the stores are the same; these say that order, mixture and masks
still come out of them as they did, whatever version of the code reads them now. What a stream gives
next cannot be known without taking it: there it is the position that is hashed, as the loader tells
it when the state is saved and again when the streams have been put back.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from chomp.checkpoint import CheckpointMetadata, StepFolder
from chomp.config import fingerprint
from chomp.data import BatchSchedule, Mixture, TrainLoader
from chomp.data.mixture import first_difference
from chomp.data.store.token_store import MANIFEST, read_manifest
from chomp.errors import CheckpointError
from chomp.storage import exists, join

# Enough to notice another order, and cheap: a batch of 32 x 1024 tokens takes about 1 ms.
_HASHED_BATCHES = 2


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
    steps = range(completed_steps, min(completed_steps + _HASHED_BATCHES, total_steps))
    return [_hash_of_batch(loader, step) for step in steps]


def past_fingerprint(loader: TrainLoader, saved: CheckpointMetadata) -> str:
    """The fingerprint that the present data has by the mixture that a checkpoint was saved with.

    Where the stages have changed since, it tells whether the components are still the same.
    """
    dataset, past = loader.dataset, _past_mixture(saved.config)
    parts = saved.config["data"]["components"]
    dropped = [name for name in past.names if name not in dataset.components]
    stores = {name: parts[name]["train_store"] for name in dropped}
    if not all(path and exists(join(path, MANIFEST)) for path in stores.values()):
        return dataset.fingerprint()  # what no stage has any more is a stream, or gone: refused
    others = {name: read_manifest(path).fingerprint() for name, path in stores.items()}
    return dataset.fingerprint(past, others=others)


def require_same_batches(loader: TrainLoader, found: StepFolder, *, total_steps: int) -> None:
    """Raise `CheckpointError` unless the data agrees with a checkpoint.

    Its past: every example before the checkpoint comes from the same row as it did. Its future:
    the next batches are those that the checkpoint expects, up to a step from which on the stages
    are others. The loader's streams have to be restored by then.
    """
    saved, mixture = found.metadata, loader.dataset.mixture
    step, past = saved.step, _past_mixture(saved.config)
    agreed = step + _HASHED_BATCHES
    differing = first_difference(past, mixture, loader.batches.examples_before(agreed))
    if differing is not None:
        agreed = loader.batches.step_of(differing)
    if agreed < step:
        raise CheckpointError(
            f"{found.path} with data.stages that differ from its own at step {agreed}",
            allowed=f"stages by which the {step} steps that are done have the same examples",
            fix=f"keep its stages before step {step}, and let new ones start at step {step} or "
            "later",
        )
    # What the loader says now, not what the checkpoint says: that would agree with itself. But a
    # stream that only the old or only the new stages have was not read yet.
    there, streams = loader.stream_states(step) or {}, None
    if saved.stream_states is not None:
        streams = {name: there.get(name, state) for name, state in saved.stream_states.items()}
    now = next_batch_hashes(loader, step, min(agreed, total_steps), streams)
    # A run that was made longer has batches after its last checkpoint that nobody has seen yet.
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


def _past_mixture(config: Mapping[str, Any]) -> Mixture:
    """The mixture of a run config as a checkpoint has it."""
    data, sizes = config["data"], config["trainer"]["batch_size"]
    pairs = sizes if isinstance(sizes, int) else [(start, size) for start, size in sizes]
    batches = BatchSchedule(pairs, config["trainer"]["grad_accum"])
    stages = [
        (batches.examples_before(stage["start_step"]), stage["weights"]) for stage in data["stages"]
    ]
    return Mixture(stages or {name: part["weight"] for name, part in data["components"].items()})


def _hash_of_batch(loader: TrainLoader, step: int) -> str:
    batch = loader.host_batch(step)
    digest = hashlib.sha256()
    for array in (batch.tokens, batch.loss_weight, batch.attn_mask.segment_ids):
        if array is not None:
            rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
            digest.update(f"{rows.dtype} {rows.shape}".encode())
            digest.update(rows.data)
    return digest.hexdigest()
