"""The batches after a checkpoint are those it was going to see, or the run does not go on."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from chomp.data import (
    BatchSchedule,
    LmComponentConfig,
    LmDataConfig,
    MemorySource,
    StreamConfig,
    TrainDataset,
    TrainLoader,
)
from chomp.data import build_train_dataset as build
from chomp.errors import CheckpointError
from chomp.hooks.next_batches import next_batch_hashes, require_same_batches
from tests.data.number_stores import NUMBERS

STEPS = 12


def streamed() -> TrainDataset:
    documents = tuple(" ".join(str(100 * i + j) for j in range(1, 4 + i % 7)) for i in range(1, 30))
    component = LmComponentConfig(
        source=MemorySource(documents=documents), stream=StreamConfig(window_documents=4)
    )
    data = LmDataConfig(components={"s": component}, validation_fraction=0.1)
    return build(data, NUMBERS, seq_len=8, seed=0, batches=BatchSchedule(4, 1))


class Elsewhere(TrainLoader):
    """A loader whose streams end up a row away from where they are put."""

    def restore_streams(self, states: Mapping[str, Any] | None) -> None:
        """Put them one row back."""
        moved = {name: {**s, "served": s["served"] - 1} for name, s in (states or {}).items()}
        super().restore_streams(moved)


def test_streams_are_at_the_place_the_checkpoint_expects_or_refused(one_device_mesh):
    unbroken = TrainLoader(streamed(), one_device_mesh)
    tried = []
    for step in range(STEPS):
        unbroken.batch(step)
        states = unbroken.stream_states(step + 1)
        saved = next_batch_hashes(unbroken, step + 1, STEPS, states)
        states = json.loads(json.dumps(states))  # as a checkpoint has them
        facts: dict[str, Any] = {"step": step + 1, "total_steps": STEPS}

        same = TrainLoader(streamed(), one_device_mesh)
        same.restore_streams(states)
        require_same_batches(same, saved, **facts)
        same.close()
        if states["s"]["served"] == 0:
            continue  # nothing lies before it in its window
        tried.append(step)
        other = Elsewhere(streamed(), one_device_mesh)
        other.restore_streams(states)
        with pytest.raises(CheckpointError, match=r"streams \['s'\] are not at the place.*Fix: "):
            require_same_batches(other, saved, **facts)
        other.close()
    unbroken.close()
    assert tried
