"""Which documents are behind a batch, and when a document is seen: two ways to ask one thing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from number_stores import EOS, NUMBERS, number_data

from chomp.data import (
    BatchSchedule,
    BlockShuffleConfig,
    LmComponentConfig,
    LmDataConfig,
    MemorySource,
    MixtureStage,
    StreamConfig,
    TrainDataset,
    build_train_dataset,
    occurrences,
    row_origin,
)
from chomp.errors import ConfigError, DataError

LENGTHS = {"a": [30, 20, 28, 4, 9, 17], "b": [12, 26, 5]}
STEPS = 9
STAGES = (
    MixtureStage(start_step=0, weights={"a": 2.0, "b": 1.0}),
    MixtureStage(start_step=4, weights={"a": 1.0, "b": 3.0}),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("components")


def opened(data: LmDataConfig) -> TrainDataset:
    batches = BatchSchedule([(0, 3), (5, 4)], grad_accum=2)
    return build_train_dataset(data, NUMBERS, seq_len=16, seed=0, batches=batches)


@pytest.fixture(scope="module", params=["concat", "packed", "blocks"])
def dataset(request: pytest.FixtureRequest, folder: Path) -> TrainDataset:
    data = replace(number_data(folder, LENGTHS), stages=STAGES)
    if request.param == "packed":
        data = replace(data, packing_mode="packed")
    if request.param == "blocks":
        data = replace(data, shuffle=BlockShuffleConfig(block_rows=2, window_blocks=2))
    return opened(data)


def document_tokens(name: str, number: int) -> list[int]:
    """The tokens of a document, as number_data has written them."""
    first = 10_000 * "abc".index(name) + sum(LENGTHS[name][:number])
    return [*range(first + 1, first + 1 + LENGTHS[name][number]), EOS]


def rows_of_step(dataset: TrainDataset, step: int) -> np.ndarray:
    start = dataset.batches.examples_before(step)
    return dataset.examples(start, start + dataset.batches.examples(step)).tokens


def test_every_part_of_a_row_is_the_part_of_the_document_it_names(dataset: TrainDataset):
    for step in range(STEPS):
        for row, tokens in enumerate(rows_of_step(dataset, step)):
            origin = row_origin(dataset, step, row)
            filled = 0
            for part in origin.parts:
                assert part.column == filled
                number = int(part.document_id.removeprefix("numbers:"))
                document = document_tokens(origin.component, number)
                assert part.document_length == len(document)
                expected = document[part.offset : part.offset + part.length]
                assert tokens[part.column : part.column + part.length].tolist() == expected
                filled += part.length
            assert not tokens[filled:].any()


def test_a_document_is_seen_exactly_in_the_rows_that_name_it(dataset: TrainDataset):
    # Both components number their documents alike, so an occurrence is told apart by its component.
    named: dict[str, set[tuple[str, int, int, int]]] = {}
    for step in range(STEPS):
        for row in range(dataset.batches.examples(step)):
            origin = row_origin(dataset, step, row)
            for part in origin.parts:
                seen = (origin.component, origin.epoch, step, row)
                named.setdefault(part.document_id, set()).add(seen)
    for number in range(len(LENGTHS["a"])):
        found = occurrences(dataset, f"numbers:{number}", STEPS)
        assert found is not None
        told = {(item.component, item.epoch, item.step, item.row) for item in found}
        assert told == named.get(f"numbers:{number}", set())
        assert [item.step for item in found] == sorted(item.step for item in found)


def test_a_document_nobody_has_is_not_one_that_is_never_seen(dataset: TrainDataset):
    assert occurrences(dataset, "numbers:999", STEPS) is None
    assert occurrences(dataset, "elsewhere:0", STEPS) is None
    assert occurrences(dataset, "numbers:0", 0) == []


@pytest.mark.parametrize(("step", "row"), [(0, 6), (0, -1), (5, 8), (-1, 0)])
def test_rows_that_are_not_there_are_refused(dataset: TrainDataset, step: int, row: int):
    with pytest.raises(ConfigError) as caught:
        row_origin(dataset, step, row)
    assert f"row {row} of step {step}" in caught.value.given


def test_what_a_stream_has_read_is_not_kept():
    source = MemorySource(documents=tuple(f"{i} {i + 1} {i + 2}" for i in range(1, 60)))
    component = LmComponentConfig(source=source, stream=StreamConfig())
    dataset = opened(LmDataConfig(components={"s": component}))
    with pytest.raises(DataError) as caught:
        row_origin(dataset, 0, 0)
    assert "component 's'" in caught.value.given
    dataset.close()
