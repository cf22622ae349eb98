"""Validation sets of one's own: evaluated whole, never trained on, kept out of training data."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import Mesh

from chomp.config import config_from_mapping, config_hash, config_to_mapping
from chomp.data import (
    BatchSchedule,
    JsonlSource,
    LmComponentConfig,
    LmDataConfig,
    LmValidationConfig,
    MemorySource,
    MixtureStage,
    StreamConfig,
    TokenizerConfig,
    TokenStore,
    build_eval_datasets,
    build_train_dataset,
    contamination_summary,
    with_data_steps,
)
from chomp.data.contamination import CONTAMINATION
from chomp.errors import ConfigError, DataError
from chomp.evaluation import TaggedEvaluator
from chomp.executor import ExecutorStep, PlannedStep, plan_steps, run_plan
from chomp.kernels.loss import next_tokens
from chomp.tokenize import ByteTokenizer

EOS = 256
WEB = [f"page {i} of the web" for i in range(40)]
NEWS = ["the first news", "the second news, which is longer", "page 7 of the web", "x"]
CODE = ["def f(): pass", "page 11 of the web"]


@pytest.fixture(autouse=True)
def _markers_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let configs hold markers where their annotations promise what the executor puts there."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def source_of(folder: Path, name: str, texts: list[str]) -> JsonlSource:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return JsonlSource(paths=(str(path),))


@pytest.fixture
def data(tmp_path: Path) -> LmDataConfig:
    """One component and two sets, each with a document that is in the component too."""
    return LmDataConfig(
        tokenizer=TokenizerConfig(kind="byte"),
        components={"web": LmComponentConfig(source=source_of(tmp_path, "web", WEB))},
        validation={
            "news": LmValidationConfig(
                source=source_of(tmp_path, "news", NEWS), tags=("mine/news", "mine/all")
            ),
            "code": LmValidationConfig(
                source=source_of(tmp_path, "code", CODE), tags=("mine/all",)
            ),
        },
        validation_fraction=0.0,
    )


def build(data: LmDataConfig, prefix: Path) -> tuple[LmDataConfig, dict[str, PlannedStep]]:
    """The data with everything built, and the steps that did it."""
    run = ExecutorStep(name="run", fn=print, config=with_data_steps(data))
    *steps, last = plan_steps([run], prefix=str(prefix))
    failures = run_plan(steps, lambda planned: planned.step.fn(planned.config))
    for failure in failures:
        raise failure.error or AssertionError(failure)
    built: Any = last.config
    return built, {planned.step.name: planned for planned in steps}


def texts_of(store: str) -> list[str]:
    opened = TokenStore.open(store)
    spans = [opened.documents.span(number) for number in range(len(opened.documents))]
    ids = [opened.read(np.asarray([a]), np.asarray([b - a])) for a, b in spans]
    return [bytes(each[:-1].astype(np.uint8)).decode() for each in ids]


# ---- Evaluation -------------------------------------------------------------------------------


def losses_by_target(model: jax.Array, batch: Any) -> jax.Array:
    """A loss that depends on the next token alone, so that a plain loop can compute it."""
    return model * (next_tokens(batch.tokens) % 13 + 1).astype(jnp.float32)


@pytest.mark.parametrize(
    ("batch_size", "mesh_name"),
    [(1, "one_device_mesh"), (16, "one_device_mesh"), (3, "eight_device_mesh")],
)
def test_sets_are_evaluated_whole_as_a_plain_loop_counts_them(
    data: LmDataConfig, tmp_path: Path, batch_size: int, mesh_name: str, request: Any
):
    mesh: Mesh = request.getfixturevalue(mesh_name)
    built, _ = build(data, tmp_path / "outputs")
    datasets = build_eval_datasets(built, ByteTokenizer(), seq_len=16)
    assert [dataset.name for dataset in datasets] == ["code", "news"]
    evaluator = TaggedEvaluator(
        datasets,
        losses_by_target,
        mesh=mesh,
        batch_size=batch_size,
        max_batches=None,
        bytes_per_token=None,
    )
    found = evaluator.evaluate(jnp.float32(1.5))
    targets = {
        name: [token for text in texts for token in [*text.encode(), EOS][1:]]
        for name, texts in (("news", NEWS), ("code", CODE))
    }
    for tag, names in {
        "news": ["news"],
        "mine/news": ["news"],
        "code": ["code"],
        "mine/all": ["news", "code"],
    }.items():
        tokens = [token for name in names for token in targets[name]]
        assert found[f"eval/{tag}/tokens"] == len(tokens)
        mean = sum(1.5 * (token % 13 + 1) for token in tokens) / len(tokens)
        assert found[f"eval/{tag}/loss"] == pytest.approx(mean, rel=1e-12)
    assert found["eval/tokens"] == sum(map(len, targets.values()))


def test_a_component_without_a_held_out_part_has_no_validation_store(
    data: LmDataConfig, tmp_path: Path
):
    built, steps = build(data, tmp_path / "outputs")
    assert "tokens/web-validation" not in steps
    assert built.components["web"].validation_store is None
    both = replace(data, validation_fraction=0.2)
    built, _ = build(both, tmp_path / "outputs")
    names = [item.name for item in build_eval_datasets(built, ByteTokenizer(), seq_len=16)]
    assert names == ["code", "news", "web"]


def test_sets_are_never_trained_on_with_weights_or_stages(data: LmDataConfig, tmp_path: Path):
    stages = (
        MixtureStage(start_step=0, weights={"web": 1.0}),
        MixtureStage(start_step=2, weights={"web": 2.0}),
    )
    for each in (data, replace(data, stages=stages)):
        assert each.weights["news"] == each.weights["code"] == 0
        built, _ = build(each, tmp_path / "outputs")
        dataset = build_train_dataset(
            built, ByteTokenizer(), seq_len=16, seed=0, batches=BatchSchedule(4, 1), total_steps=5
        )
        assert list(dataset.components) == ["web"]


# ---- Contamination ----------------------------------------------------------------------------


def test_documents_of_a_set_are_left_out_of_training_and_reported(
    data: LmDataConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        built, _ = build(data, tmp_path / "outputs")
    store = str(built.components["web"].train_store)
    kept = [text for i, text in enumerate(WEB) if i not in (7, 11)]
    assert texts_of(store) == kept
    report = json.loads((Path(store) / CONTAMINATION).read_text())
    ids = {name: [Path(each).name for each in found] for name, found in report["documents"].items()}
    assert report["left_out"] is True
    assert ids == {"news": ["web.jsonl:7"], "code": ["web.jsonl:11"]}
    assert "1 of news" in contamination_summary(store)
    warned = [record.getMessage() for record in caplog.records]
    assert any("web.jsonl:7" in text and "'news'" in text for text in warned)


def test_allowed_contamination_is_trained_on_and_reported_all_the_same(
    data: LmDataConfig, tmp_path: Path
):
    left_out, _ = build(data, tmp_path / "outputs")
    built, _ = build(replace(data, allow_contamination=True), tmp_path / "outputs")
    store = str(built.components["web"].train_store)
    assert store != left_out.components["web"].train_store
    assert texts_of(store) == WEB
    report = json.loads((Path(store) / CONTAMINATION).read_text())
    assert report["left_out"] is False
    assert {name: len(found) for name, found in report["documents"].items()} == {
        "news": 1,
        "code": 1,
    }


def test_a_clean_set_leaves_no_report_and_the_same_tokens(data: LmDataConfig, tmp_path: Path):
    clean = {"news": LmValidationConfig(source=source_of(tmp_path, "clean", ["nothing shared"]))}
    built, _ = build(replace(data, components=only(data, "web"), validation=clean), tmp_path / "o")
    store = str(built.components["web"].train_store)
    assert texts_of(store) == WEB
    assert not (Path(store) / CONTAMINATION).exists()
    assert contamination_summary(store) == ""


def only(data: LmDataConfig, *names: str) -> dict[str, LmComponentConfig]:
    return {name: data.components[name] for name in names}


def test_a_trained_tokenizer_learns_nothing_from_a_set(data: LmDataConfig, tmp_path: Path):
    bpe = replace(data, tokenizer=TokenizerConfig(kind="bpe", vocab_size=300))
    built, _ = build(bpe, tmp_path / "with")
    kept = [text for i, text in enumerate(WEB) if i not in (7, 11)]
    without = LmDataConfig(
        tokenizer=bpe.tokenizer,
        components={"web": LmComponentConfig(source=source_of(tmp_path, "kept", kept))},
        validation_fraction=0.0,
    )
    alone, _ = build(without, tmp_path / "without")
    files = [Path(str(each.tokenizer.path)) / "tokenizer.json" for each in (built, alone)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_stream_leaves_out_the_documents_of_a_set_too(
    data: LmDataConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    part = replace(data.components["web"], stream=StreamConfig(shuffle=False, window_documents=8))
    streamed = replace(data, components={**data.components, "web": part})
    built, _ = build(streamed, tmp_path / "outputs")
    dataset = build_train_dataset(
        built, ByteTokenizer(), seq_len=64, seed=0, batches=BatchSchedule(1, 1)
    )
    try:
        with caplog.at_level(logging.WARNING):
            line = dataset.rows(0, 8).tokens.reshape(-1).tolist()
    finally:
        dataset.close()
    ends = [i for i, token in enumerate(line) if token == EOS]
    texts = [bytes(line[a + 1 : b]).decode() for a, b in zip([-1, *ends], ends, strict=False)]
    kept = [text for i, text in enumerate(WEB) if i not in (7, 11)]
    assert texts[: len(kept)] == kept[: len(texts)]
    assert len(texts) > 12
    assert sum("validation set 'news'" in record.getMessage() for record in caplog.records) == 1


# ---- What a config may say ----------------------------------------------------------------------


def test_without_sets_nothing_is_another_run_or_another_store():
    plain = LmDataConfig(
        tokenizer=TokenizerConfig(kind="byte"),
        components={"web": LmComponentConfig(source=MemorySource(documents=tuple(WEB)))},
    )
    run = ExecutorStep(name="run", fn=print, config=with_data_steps(plain))
    paths = {step.step.name: Path(step.path).name for step in plan_steps([run], prefix="p")}
    # As they were before there were validation sets.
    assert paths["tokens/web-train"] == "web-train-17603021e139"
    assert paths["tokens/web-validation"] == "web-validation-3b91e98db9ea"
    assert config_hash(plain)[:12] == "68feaec2ce6e"


def test_a_config_with_sets_reads_back_as_it_was_written(data: LmDataConfig):
    again = config_from_mapping(LmDataConfig, config_to_mapping(data))
    assert again == data
    assert config_hash(again) == config_hash(data)


def test_a_set_changes_the_train_split_and_no_held_out_split(data: LmDataConfig, tmp_path: Path):
    held_out = replace(data, validation_fraction=0.2)
    without = replace(held_out, components=only(data, "web"), validation={})

    def paths(each: LmDataConfig) -> dict[str, str]:
        run = ExecutorStep(name="run", fn=print, config=with_data_steps(each))
        planned = plan_steps([run], prefix=str(tmp_path / "o"))
        return {step.step.name: step.path for step in planned}

    before, after = paths(without), paths(held_out)
    assert before["tokens/web-train"] != after["tokens/web-train"]
    assert before["tokens/web-validation"] == after["tokens/web-validation"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data, folder: {"validation": {"news": LmValidationConfig(store="s")}}, "news"),
        (lambda data, folder: {"components": {**data.components, "ema": WEB_PART}}, "ema"),
        (
            lambda data, folder: {
                "stages": (MixtureStage(start_step=0, weights={"web": 1.0, "news": 1.0}),)
            },
            "news",
        ),
        (
            lambda data, folder: {"components": {"web": data.components["web"], "news": WEB_PART}},
            "news",
        ),
        (
            lambda data, folder: {"validation": {" a": data.validation["news"]}},
            " a",
        ),
    ],
    ids=["no source", "reserved name", "a weight for a set", "one name twice", "odd name"],
)
def test_wrong_sets_are_refused_with_their_name(
    change: Any, words: str, data: LmDataConfig, tmp_path: Path
):
    with pytest.raises(ConfigError) as caught:
        replace(data, **change(data, tmp_path))
    assert words in caught.value.given


WEB_PART = LmComponentConfig(source=JsonlSource(paths=("elsewhere.jsonl",)))


def test_the_training_files_are_no_validation_set(data: LmDataConfig, tmp_path: Path):
    same = {"news": LmValidationConfig(source=source_of(tmp_path, "copy", WEB))}
    wrong = replace(data, components=only(data, "web"), validation=same)
    with pytest.raises(ConfigError) as caught:
        with_data_steps(wrong)
    assert "data.validation.news" in caught.value.given
    assert "data.components.web" in caught.value.given
    with_data_steps(replace(wrong, allow_contamination=True))


def test_an_empty_or_missing_set_is_an_error_with_its_name(data: LmDataConfig, tmp_path: Path):
    empty = {"news": LmValidationConfig(source=source_of(tmp_path, "empty", [" "]))}
    with pytest.raises(DataError) as caught:
        build(replace(data, components=only(data, "web"), validation=empty), tmp_path / "o")
    assert "news" in caught.value.given
    missing = {"news": LmValidationConfig(source=JsonlSource(paths=(str(tmp_path / "gone"),)))}
    with pytest.raises(Exception, match="gone") as found:
        with_data_steps(replace(data, components=only(data, "web"), validation=missing))
    assert isinstance(found.value, DataError | OSError)


def test_a_set_that_covers_all_training_documents_says_why_nothing_is_left(
    data: LmDataConfig, tmp_path: Path
):
    cover = {"news": LmValidationConfig(source=source_of(tmp_path, "cover", [*WEB, "more"]))}
    with pytest.raises(DataError) as caught:
        build(replace(data, components=only(data, "web"), validation=cover), tmp_path / "o")
    assert "data.validation" in caught.value.given
