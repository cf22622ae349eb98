"""The batches after a checkpoint are those it was going to see, or the run does not go on."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from chomp.checkpoint import CheckpointMetadata, StepFolder
from chomp.config import config_to_mapping
from chomp.data import (
    BatchSchedule,
    LmComponentConfig,
    LmDataConfig,
    MemorySource,
    MixtureStage,
    StreamConfig,
    TrainDataset,
    TrainLoader,
)
from chomp.data import build_train_dataset as build
from chomp.errors import CheckpointError
from chomp.training.resume import next_batch_hashes, require_same_batches
from tests.data.number_stores import NUMBERS

STEPS = 12


def streamed() -> TrainDataset:
    documents = tuple(" ".join(str(100 * i + j) for j in range(1, 4 + i % 7)) for i in range(1, 30))
    component = LmComponentConfig(
        source=MemorySource(documents=documents), stream=StreamConfig(window_documents=4)
    )
    data = LmDataConfig(components={"s": component}, validation_fraction=0.1)
    return build(data, NUMBERS, seq_len=8, seed=0, batches=BatchSchedule(4, 1))


def checkpoint(loader: TrainLoader, step: int, **facts: Any) -> StepFolder:
    """What a checkpoint of that step says of the data."""
    trainer = {"batch_size": 4, "grad_accum": 1}
    metadata = CheckpointMetadata(
        step=step,
        run_id="run",
        attempt=1,
        config_hash="",
        config={"data": config_to_mapping(loader.dataset.config), "trainer": trainer},
        data_fingerprint=loader.dataset.fingerprint(),
        data_offset=4 * step,
        tokens_seen=0,
        **facts,
    )
    return StepFolder("a/checkpoint", metadata)


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
        found = checkpoint(unbroken, step + 1, stream_states=states, next_batches=saved)

        same = TrainLoader(streamed(), one_device_mesh)
        same.restore_streams(states)
        require_same_batches(same, found, total_steps=STEPS)
        same.close()
        if states["s"]["served"] == 0:
            continue  # nothing lies before it in its window
        tried.append(step)
        other = Elsewhere(streamed(), one_device_mesh)
        other.restore_streams(states)
        with pytest.raises(CheckpointError, match=r"streams \['s'\] are not at the place.*Fix: "):
            require_same_batches(other, found, total_steps=STEPS)
        other.close()
    unbroken.close()
    assert tried


def with_stages(*stages: tuple[int, dict[str, float]]) -> TrainDataset:
    documents = tuple(" ".join(str(100 * i + j) for j in range(1, 4 + i % 7)) for i in range(1, 30))
    component = LmComponentConfig(
        source=MemorySource(documents=documents), stream=StreamConfig(window_documents=4)
    )
    data = LmDataConfig(
        components={"s": component, "t": component},
        stages=tuple(MixtureStage(start_step=step, weights=weights) for step, weights in stages),
        validation_fraction=0.1,
    )
    return build(data, NUMBERS, seq_len=8, seed=0, batches=BatchSchedule(4, 1))


def test_a_stream_may_come_or_go_with_stages_that_agree_with_the_past(one_device_mesh):
    first, both = (0, {"s": 1.0, "t": 0.0}), (5, {"s": 1.0, "t": 1.0})
    for before, after in (([first], [first, both]), ([first, both], [first])):
        past = TrainLoader(with_stages(*before), one_device_mesh)
        for step in range(3):
            past.batch(step)
        states = past.stream_states(3)
        hashes = next_batch_hashes(past, 3, STEPS, states)
        found = checkpoint(past, 3, stream_states=states, next_batches=hashes)
        now = TrainLoader(with_stages(*after), one_device_mesh)
        now.restore_streams(states)
        require_same_batches(now, found, total_steps=STEPS)
        for step in range(3, 8):
            now.batch(step)
        wrong = TrainLoader(with_stages(first, (2, both[1])), one_device_mesh)
        with pytest.raises(CheckpointError, match=r"at step 2\. Allowed: .* Fix: .*step 3"):
            require_same_batches(wrong, found, total_steps=STEPS)
        for loader in (past, now, wrong):
            loader.close()
