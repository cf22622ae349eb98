"""Proof that a resumed run goes on with the data it would have had: hashes of its next batches.

The data's fingerprint says that the stores are the same; these say that order, mixture and masks
still come out of them as they did, whatever version of the code reads them now. What a stream gives
next cannot be known without taking it: there it is the position that is hashed, as the loader tells
it when the state is saved and again when the streams have been put back.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chomp.config import fingerprint
from chomp.data import TrainLoader
from chomp.errors import CheckpointError, message

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


def require_same_batches(
    loader: TrainLoader, saved: Sequence[str], *, step: int, total_steps: int
) -> None:
    """Raise `CheckpointError` unless the batches after `step` are those that the checkpoint saw.

    The loader's streams have to be restored by then.
    """
    # What the loader says now, not what the checkpoint says: that would agree with itself.
    streams = loader.stream_states(step)
    now = next_batch_hashes(loader, step, total_steps, streams)
    # A run that was made longer has batches after its last checkpoint that nobody has seen yet.
    for index, (before, after) in enumerate(zip(saved, now, strict=False)):
        if before != after:
            what = f"the batch of step {step + index} is not the one"
            if streams is not None:
                what = f"before step {step} the streams {sorted(streams)} are not at the place"
            raise CheckpointError(
                message(
                    given=f"{what} the checkpoint expects ({before[:12]} saved, {after[:12]} now)",
                    allowed="the same tokens, weights and documents in the same order",
                    fix="continue with the version of chomp and the data that the run began with, "
                    "or start a new run from its weights (train.initialize_from)",
                )
            )


def _hash_of_batch(loader: TrainLoader, step: int) -> str:
    batch = loader.host_batch(step)
    digest = hashlib.sha256()
    for array in (batch.tokens, batch.loss_weight, batch.attn_mask.segment_ids):
        if array is not None:
            rows = np.ascontiguousarray(array).reshape(-1, array.shape[-1])
            digest.update(f"{rows.dtype} {rows.shape}".encode())
            digest.update(rows.data)
    return digest.hexdigest()
