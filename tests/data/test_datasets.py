"""Examples by number: pure, complete in every epoch, and named by what decides them."""

import json
import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_stores import (
    CHUNK_TOKENS,
    EOS,
    NUMBERS,
    SHARD_TOKENS,
    NumberTokenizer,
    counted_documents,
    number_data,
    number_identity,
    rehash_manifest,
    write_store,
)

from chomp.data import (
    BatchSchedule,
    BlockShuffleConfig,
    EncodedBatch,
    LmComponentConfig,
    LmDataConfig,
    MixtureStage,
    PackingConfig,
    StoreWriter,
    StreamConfig,
    TokenizerConfig,
    TrainDataset,
    build_eval_datasets,
    build_train_dataset,
)
from chomp.errors import ConfigError, DataError, StorageError

SEQ_LEN = 8
# 10 rows and a rest, and 5 rows.
LENGTHS = {"a": [30, 20, 28, 4], "b": [12, 26]}
ROWS = {"a": 10, "b": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("components")


@pytest.fixture(scope="module")
def dataset(folder: Path) -> TrainDataset:
    return dataset_of(number_data(folder, LENGTHS, {"a": 0.75, "b": 0.25}))


def dataset_of(
    data: LmDataConfig,
    *,
    seq_len: int = SEQ_LEN,
    seed: int = 0,
    batch_size: int | list[tuple[int, int]] = 4,
    total_steps: int | None = None,
    tokenizer: NumberTokenizer = NUMBERS,
) -> TrainDataset:
    return build_train_dataset(
        data,
        tokenizer,
        seq_len=seq_len,
        seed=seed,
        batches=BatchSchedule(batch_size),
        total_steps=total_steps,
    )


def tokens_of(dataset: TrainDataset, start: int, stop: int) -> np.ndarray:
    return dataset.examples(start, stop).tokens


def rows_of(dataset: TrainDataset, name: str, epoch: int) -> list[tuple[int, ...]]:
    """The rows of one epoch of one component, in the order they are served."""
    size, index = ROWS[name], dataset.mixture.names.index(name)
    components, positions = dataset.mixture.assign(0, 200)
    mine = (components == index) & (positions // size == epoch)
    assert mine.sum() == size
    return [tuple(row) for row in tokens_of(dataset, 0, 200)[mine].tolist()]


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(0, 120), min_size=2, max_size=5).map(sorted))
def test_examples_are_the_same_however_they_are_asked_for(dataset: TrainDataset, cuts: list[int]):
    whole = dataset.examples(0, 120)
    for start, stop in pairwise(cuts):
        piece = dataset.examples(start, stop)
        np.testing.assert_array_equal(piece.tokens, whole.tokens[start:stop])
        np.testing.assert_array_equal(piece.loss_weight, whole.loss_weight[start:stop])
        np.testing.assert_array_equal(
            piece.attn_mask.segment_ids, whole.attn_mask.segment_ids[start:stop]
        )


def test_an_example_far_into_a_run_is_found_at_once(dataset: TrainDataset):
    again = dataset_of(dataset.config)
    far = 10**12
    np.testing.assert_array_equal(
        tokens_of(dataset, far, far + 9), tokens_of(again, far - 3, far + 9)[3:]
    )


@pytest.mark.parametrize("name", ["a", "b"])
def test_every_row_of_a_component_is_served_once_per_epoch_and_in_another_order(dataset, name):
    first, second, third = (rows_of(dataset, name, epoch) for epoch in range(3))
    assert len(set(first)) == ROWS[name]
    assert sorted(first) == sorted(second) == sorted(third)
    assert len({tuple(first), tuple(second), tuple(third)}) == 3


def test_components_are_mixed_by_their_weights(dataset: TrainDataset):
    from_b = (tokens_of(dataset, 0, 100).max(axis=1) > 10_000).sum()
    assert from_b == 25
    assert dataset.epochs(100) == {"a": 7.5, "b": 5.0}


def test_rows_carry_the_weights_and_the_documents_of_the_rules(folder: Path):
    data = number_data(folder, LENGTHS)
    strict = dataset_of(replace(data, train_on_eos=False)).examples(0, 15)
    loose = dataset_of(replace(data, mask_boundary_loss=False)).examples(0, 15)
    np.testing.assert_array_equal(strict.tokens, loose.tokens)
    assert (loose.loss_weight[:, :-1] == 1).all()
    at_ends = strict.tokens[:, 1:] == EOS
    assert at_ends.any()
    assert not strict.loss_weight[:, :-1][at_ends].any()


def test_the_seed_decides_the_order(dataset: TrainDataset):
    same, other = dataset_of(dataset.config), dataset_of(dataset.config, seed=1)
    np.testing.assert_array_equal(tokens_of(dataset, 0, 50), tokens_of(same, 0, 50))
    assert rows_of(dataset, "a", 0) != rows_of(other, "a", 0)
    assert sorted(rows_of(dataset, "a", 0)) == sorted(rows_of(other, "a", 0))


def test_adding_a_component_leaves_the_order_within_the_others(dataset: TrainDataset, folder: Path):
    more = dataset_of(number_data(folder, {**LENGTHS, "c": [40]}))
    for name in ("a", "b"):
        assert rows_of(more, name, 1) == rows_of(dataset, name, 1)


def test_a_component_of_weight_0_changes_nothing_and_needs_no_train_store(dataset: TrainDataset):
    idle = LmComponentConfig(weight=0.0)
    data = replace(dataset.config, components={**dataset.config.components, "idle": idle})
    more = dataset_of(data)
    np.testing.assert_array_equal(tokens_of(more, 0, 60), tokens_of(dataset, 0, 60))
    assert more.fingerprint() == dataset.fingerprint()


def test_the_fingerprint_changes_with_all_that_decides_the_examples(
    dataset: TrainDataset, folder: Path, tmp_path: Path
):
    data = dataset.config
    other_source, other_lengths = tmp_path / "source", tmp_path / "lengths"
    write_store(other_source, counted_documents(LENGTHS["a"]), source_fingerprint="another")
    write_store(other_lengths, counted_documents([29, 21, 28, 4]))

    def with_store(path: Path) -> LmDataConfig:
        changed = replace(data.components["a"], train_store=str(path))
        return replace(data, components={**data.components, "a": changed})

    renamed = dict(zip(["a", "c"], data.components.values(), strict=True))
    stages = [(0, {"a": 1.0, "b": 3.0}), (4, {"a": 1.0, "b": 1.0})]
    in_turns = packed(data)
    found = [
        dataset.fingerprint(),
        dataset_of(data, seed=1).fingerprint(),
        dataset_of(data, seq_len=SEQ_LEN + 1).fingerprint(),
        dataset_of(number_data(folder, LENGTHS, {"a": 0.7, "b": 0.3})).fingerprint(),
        dataset_of(replace(data, components=renamed)).fingerprint(),
        dataset_of(with_store(other_source)).fingerprint(),
        dataset_of(with_store(other_lengths)).fingerprint(),
        dataset_of(replace(data, shuffle=False)).fingerprint(),
        dataset_of(staged(data, *stages)).fingerprint(),
        dataset_of(in_turns, seq_len=32).fingerprint(),
        dataset_of(packed(data, long_documents="truncate"), seq_len=32).fingerprint(),
    ]
    assert len(set(found)) == len(found)
    # And with nothing else: not with the order of a file, the scale of weights, weights that stages
    # replace, or defaults that are written out.
    turned = {name: data.components[name] for name in reversed(data.components)}
    assert dataset_of(replace(data, components=turned)).fingerprint() == found[0]
    scaled = number_data(folder, LENGTHS, {"a": 3.0, "b": 1.0})
    assert dataset_of(scaled).fingerprint() == found[0]
    weighted = number_data(folder, LENGTHS, {"a": 0.0, "b": 5.0})
    assert dataset_of(staged(weighted, *stages)).fingerprint() == found[-3]
    assert dataset_of(replace(in_turns, packing=None), seq_len=32).fingerprint() == found[-2]


def test_held_out_rows_come_as_asked_for_and_a_batch_is_filled_with_padding(folder: Path):
    data = replace(number_data(folder, {"b": LENGTHS["b"]}), train_on_eos=False)
    (held_out,) = build_eval_datasets(data, NUMBERS, seq_len=8)
    assert held_out.num_rows == 6  # 39 targets, 7 a row
    asked = [np.arange(4), np.asarray([5, 4]), np.arange(0)]
    batches = [held_out.read(rows, 4) for rows in asked]
    for batch in batches:
        assert batch.example.tokens.shape == batch.example.loss_weight.shape == (4, 8)
    first, second, third = (batch.example for batch in batches)
    assert first.tokens[:, 0].tolist() == [10_001, 10_008, 10_014, 10_021]
    assert second.tokens[:2, 0].tolist() == [10_035, 10_028]
    segments = second.attn_mask.segment_ids
    assert (segments[:2] >= 0).any(axis=1).all()
    for padding in (second.tokens[2:], second.loss_weight[2:], third.tokens):
        assert not padding.any()
    assert (segments[2:] == -1).all()
    assert (third.attn_mask.segment_ids == -1).all()
    # Ends are scored even if training does not score them.
    assert sum(batch.example.loss_weight.sum() for batch in batches) == sum(LENGTHS["b"])


def test_held_out_rows_tell_the_document_of_the_token_that_each_position_predicts(folder: Path):
    (held_out,) = build_eval_datasets(number_data(folder, {"b": LENGTHS["b"]}), NUMBERS, seq_len=8)
    found = held_out.read(np.asarray([1, 5]), 3)
    # Document 0 has 13 tokens, its end included: the last that row 1 predicts are of document 1.
    assert found.documents.tolist() == [[0] * 5 + [1, 1, -1], [1] * 4 + [-1] * 4, [-1] * 8]
    assert not found.example.loss_weight[found.documents == -1].any()


def test_every_component_is_evaluated_under_its_name_and_tags(folder: Path):
    data = number_data(folder, {"b": LENGTHS["b"], "a": LENGTHS["a"]}, {"b": 0.5, "a": 1.0})
    tagged = replace(data.components["b"], tags=("text/web",))
    data = replace(data, components={**data.components, "b": tagged})
    found = build_eval_datasets(data, NUMBERS, seq_len=8)
    assert [(dataset.name, dataset.tags) for dataset in found] == [
        ("a", ("a",)),
        ("b", ("b", "text/web")),
    ]


def with_a(data: LmDataConfig, **changes: str | None) -> LmDataConfig:
    return replace(data, components={"a": replace(data.components["a"], **changes)})


@pytest.mark.parametrize(
    ("change", "asked", "told"),
    [
        (lambda a: LmDataConfig(), {}, "write data.components"),
        (lambda a: with_a(a, train_store=None), {}, "set data.components.a.train_store"),
        (lambda a: a, {"tokenizer": NumberTokenizer(60_000)}, "component 'a': .* tokenizer"),
        (lambda a: a, {"seq_len": 90}, "store .* of 86 tokens for rows of 90"),
        (
            lambda a: with_a(a, train_store=a.components["a"].validation_store),
            {},
            "'a': train_store .* is the validation split",
        ),
        (
            lambda a: replace(a, validation_fraction=0.2),
            {},
            r"is the train split .* at data\.validation_fraction=0\.2",
        ),
    ],
    ids=["no component", "no store", "another tokenizer", "too short", "leaking", "other fraction"],
)
def test_training_data_that_cannot_be_is_refused(folder: Path, change, asked, told: str):
    data = change(number_data(folder, {"a": LENGTHS["a"]}))
    with pytest.raises(DataError) as caught:
        dataset_of(data, **asked)
    assert re.search(told, str(caught.value))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: with_a(a, validation_store=None), "'a' has no validation_store"),
        (lambda a: replace(a, validation_fraction=0.2), "validation_store .* validation split"),
    ],
)
def test_held_out_data_that_cannot_be_is_refused(folder: Path, change, told: str):
    data = change(number_data(folder, {"a": LENGTHS["a"]}))
    with pytest.raises(DataError) as caught:
        build_eval_datasets(data, NUMBERS, seq_len=8)
    assert re.search(told, caught.value.given)


def test_a_lost_store_shows_before_the_first_step(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "copy")
    data = number_data(tmp_path / "copy", LENGTHS)
    shutil.rmtree(tmp_path / "copy/b/document_ends")
    with pytest.raises(StorageError) as caught:
        dataset_of(data)
    assert "component 'b': " in caught.value.given
    assert "copy/b/document_ends" in caught.value.given


@pytest.mark.parametrize("name", ["", " ", "code ", "/code", "code/"])
def test_a_component_needs_a_name(name: str):
    with pytest.raises(ConfigError) as caught:
        LmDataConfig(components={name: LmComponentConfig()})
    assert "data.components" in caught.value.given
    assert "names" in caught.value.allowed


@pytest.mark.parametrize(
    ("kind", "field", "values"),
    [
        (LmDataConfig, "validation_fraction", [1.0, -0.1, float("nan")]),
        (LmComponentConfig, "weight", [-1.0, float("nan"), float("inf")]),
        (PackingConfig, "max_documents_per_row", [0]),
        (BlockShuffleConfig, "block_rows", [0]),
        (BlockShuffleConfig, "window_blocks", [0]),
        (StreamConfig, "window_documents", [0]),
        (StreamConfig, "max_retries", [-1]),
        (StreamConfig, "retry_delay_s", [float("nan")]),
        (TokenizerConfig, "vocab_size", [256]),  # too small for the bytes and the end
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(kind, field: str, values: list[float]):
    for value in values:
        with pytest.raises(ConfigError) as caught:
            kind(**{field: value})
        assert caught.value.given == f"{field}={value}"


def test_a_field_that_another_kind_of_tokenizer_uses_is_refused():
    with pytest.raises(ConfigError) as caught:
        TokenizerConfig(kind="byte", vocab_size=300)
    assert "vocab_size=300 with data.tokenizer.kind=byte" in caught.value.given


def names_served(dataset: TrainDataset, start: int, stop: int) -> list[str]:
    components, _ = dataset.mixture.assign(start, stop)
    return [dataset.mixture.names[i] for i in components]


def staged(data: LmDataConfig, *stages: tuple[int, dict[str, float]]) -> LmDataConfig:
    return replace(
        data,
        stages=tuple(MixtureStage(start_step=step, weights=weights) for step, weights in stages),
    )


def test_stages_begin_with_their_steps_whatever_the_batch_sizes(folder: Path):
    data = number_data(folder, LENGTHS)
    stages = [(0, {"a": 1.0, "b": 0.0}), (3, {"a": 0.0, "b": 1.0}), (5, {"a": 1.0, "b": 1.0})]
    dataset = dataset_of(staged(data, *stages), batch_size=[(0, 2), (4, 5)])
    # Steps 0 to 2 take 6 examples, 3 takes 2, and 4 takes 5.
    assert set(names_served(dataset, 0, 6)) == {"a"}
    assert set(names_served(dataset, 6, 13)) == {"b"}
    assert names_served(dataset, 13, 33).count("a") == 10


def test_a_component_of_a_later_stage_alone_is_opened(folder: Path):
    data = number_data(folder, LENGTHS, {"a": 1.0, "b": 0.0})
    assert set(dataset_of(data).components) == {"a"}
    both = number_data(folder, LENGTHS)
    later = staged(both, (0, {"a": 1.0, "b": 0.0}), (9, {"a": 1.0, "b": 0.1}))
    assert set(dataset_of(later).components) == {"a", "b"}
    assert later.weights == {"a": 1.0, "b": 0.1}


@pytest.mark.parametrize(
    ("weights", "told", "fix"),
    [
        ({"a": 1.0, "b": 1.0, "c": 1.0}, "data.stages[1].weights with 'c'", "components"),
        ({"a": 1.0}, "data.stages[1].weights without 'b'", "add b: 0"),
    ],
)
def test_stages_name_every_component_and_no_other(folder: Path, weights, told, fix):
    data = number_data(folder, LENGTHS)
    even = {"a": 1.0, "b": 1.0}
    with pytest.raises(ConfigError) as caught:
        staged(data, (0, even), (5, weights))
    assert told in caught.value.given
    assert fix in caught.value.allowed + caught.value.fix
    for starts in ([5], [0, 7, 7], [0, 9, 3]):
        with pytest.raises(ConfigError) as caught:
            staged(data, *[(start, even) for start in starts])
        assert str(starts) in caught.value.given


def test_a_run_longer_than_its_data_is_refused_with_the_steps_there_are(folder: Path):
    data = replace(number_data(folder, LENGTHS), stop_strategy="first_exhausted")
    # Half of each: b, of 5 rows, has all of them served by example 10, of 3 batches of 4.
    dataset = dataset_of(data)
    assert dataset.num_examples in (9, 10)
    with pytest.raises(ConfigError) as caught:
        dataset_of(data, total_steps=3)
    assert "train.steps=3" in caught.value.given
    assert "train.steps" in caught.value.fix
    dataset_of(data, total_steps=2)
    dataset_of(replace(data, stop_strategy="all_exhausted"), total_steps=4)
    dataset_of(replace(data, stop_strategy="restart"), total_steps=1000)
    # And one in which a component would never come.
    with pytest.raises(ConfigError) as caught:
        dataset_of(number_data(folder, LENGTHS, {"a": 1.0, "b": 1e-6}), total_steps=100)
    assert "component 'b' with 1e-06" in caught.value.given
    # Less than one batch: no number of steps would do.
    with pytest.raises(ConfigError) as caught:
        dataset_of(data, batch_size=16, total_steps=3)
    assert "16 examples" in caught.value.allowed
    assert "train.batch_size" in caught.value.fix
    assert "train.steps=0" not in str(caught.value)


def test_a_forecast_above_four_epochs_is_a_warning_and_says_the_numbers(folder: Path, caplog):
    data = number_data(folder, LENGTHS)
    dataset_of(data, total_steps=5)
    assert caplog.text == ""
    dataset_of(data, total_steps=20)
    assert "component 'b' is read 8.0 times in 20 steps" in caplog.text
    assert "component 'a'" not in caplog.text


def packed(data: LmDataConfig, **settings) -> LmDataConfig:
    return replace(data, packing_mode="packed", packing=PackingConfig(**settings))


@pytest.mark.parametrize("name", ["sequential", "bin"])
def test_the_first_chomps_names_for_packing_mean_the_same(folder: Path, name: str):
    mode = {"sequential": "concat", "bin": "packed"}[name]
    data = number_data(folder, LENGTHS)
    one, other = replace(data, packing_mode=name), replace(data, packing_mode=mode)
    assert one == other
    assert one.packing_mode == mode


def test_settings_of_packed_rows_need_packed_rows():
    with pytest.raises(ConfigError) as caught:
        LmDataConfig(packing=PackingConfig())
    assert "data.packing_mode=concat" in caught.value.given


def test_the_order_of_rows_is_what_shuffle_says(folder: Path):
    data = number_data(folder, {"a": LENGTHS["a"]})
    firsts = {
        str(shuffle): dataset_of(replace(data, shuffle=shuffle)).examples(0, 10).tokens[:, 0]
        for shuffle in (True, False, BlockShuffleConfig(block_rows=2, window_blocks=2))
    }
    (full, none, block) = (first.tolist() for first in firsts.values())
    assert none == sorted(none)
    assert sorted(full) == sorted(block) == none
    assert len({tuple(full), tuple(none), tuple(block)}) == 3


def test_stream_semantics_let_attention_go_over_the_row(folder: Path):
    data = number_data(folder, LENGTHS)
    isolated = dataset_of(data).examples(0, 8)
    flowing = dataset_of(replace(data, stream_semantics=True)).examples(0, 8)
    assert flowing.attn_mask.segment_ids is None
    np.testing.assert_array_equal(flowing.loss_weight, isolated.loss_weight)


def test_a_store_that_was_moved_is_the_same_data(dataset: TrainDataset, folder: Path, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    for name in LENGTHS:
        parts = json.loads((tmp_path / "moved" / name / "parts.json").read_text())
        parts["names"] = [f"elsewhere/{part}" for part in parts["names"]]
        (tmp_path / "moved" / name / "parts.json").write_text(json.dumps(parts))
        manifest = json.loads((tmp_path / "moved" / name / "manifest.json").read_text())
        sums = {**manifest["checksums"], "parts.json": ["another"]}
        rehash_manifest(tmp_path / "moved" / name, checksums=sums)
    moved = number_data(tmp_path / "moved", LENGTHS, {"a": 0.75, "b": 0.25})
    assert dataset_of(moved).fingerprint() == dataset.fingerprint()


def test_stages_that_the_run_does_not_come_to_are_told(folder: Path, caplog):
    weights = {"a": 1.0, "b": 1.0}
    data = staged(number_data(folder, LENGTHS), (0, weights), (3, weights), (500, weights))
    dataset_of(data, total_steps=3)
    assert "data.stages[1] starts at step 3, and the run has 3 steps" in caplog.text
    assert "data.stages[2] starts at step 500, and the run has 3 steps" in caplog.text


def test_tokens_that_packing_leaves_out_are_told(folder: Path, caplog):
    data = number_data(folder, {"a": LENGTHS["a"]})
    dataset_of(packed(data), seq_len=16)
    assert caplog.text == ""
    dataset_of(packed(data, long_documents="drop"), seq_len=16)
    # With their ends, three of the documents have 31, 21 and 29 tokens.
    assert "component 'a': 3 documents are longer than a row, and 81 of their" in caplog.text


@pytest.mark.parametrize("counted", [[], [0], [199]])
def test_a_component_without_any_token_that_counts_is_refused(tmp_path: Path, counted: list[int]):
    data = number_data(tmp_path, {"a": [30, 20]}, {"a": 1.0})
    path = tmp_path / "weighted"
    writer = StoreWriter(
        str(path), number_identity(), NUMBERS,
        has_loss_weights=True, shard_tokens=SHARD_TOKENS, chunk_tokens=CHUNK_TOKENS,
    )  # fmt: skip
    weights = np.zeros(200, np.float32)
    weights[counted] = 0.5
    ids = np.arange(1, 201)
    writer.append(
        np.arange(1), EncodedBatch(ids=ids, lengths=np.asarray([200]), loss_weights=weights)
    )
    writer.finish(("numbers",), has_whole_parts=False)
    component = replace(data.components["a"], train_store=str(path))
    data = replace(data, components={"a": component})
    if counted:
        assert dataset_of(data).num_rows["a"] == 25
        return
    with pytest.raises(DataError) as caught:
        dataset_of(data)
    assert str(path) in caught.value.given
    assert "data.components.a" in caught.value.fix
