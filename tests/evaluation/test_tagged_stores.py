"""Evaluation of token stores: the same documents give the same numbers, however they are cut."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

from chomp.data import (
    Document,
    EvalDataset,
    LmComponentConfig,
    LmDataConfig,
    StoreWriter,
    build_eval_datasets,
    encode_documents,
)
from chomp.errors import DataError
from chomp.evaluation import TaggedEvaluator
from chomp.kernels.precision import Precision
from chomp.tracking import JsonlTracker
from chomp.training import build_tagged_eval_callback
from experiments.grug.base.train import losses_of as template_losses
from tests.data.number_stores import FRACTION, NUMBERS, number_identity, write_store
from tests.evaluation.harness_model import model_on
from tests.evaluation.rows_in_memory import evaluator_of, without_times

SIZES = np.asarray([0, *(len(str(i)) for i in range(1, 60))], np.int32)


def documents_of(seed: int, count: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(1, 60, size=length).tolist() for length in draw.integers(1, 30, count)]


def held_out(
    folder: Path, stores: dict[str, Sequence[Sequence[int]]], *, seq_len: int, **rules: bool
) -> list[EvalDataset]:
    """Datasets of those documents; a folder that is there is used as it is."""
    for name, documents in stores.items():
        if not (folder / name).exists():
            write_store(folder / name, documents, split="validation")
    components = {
        name: LmComponentConfig(validation_store=str(folder / name), tags=(f"text/{name}",))
        for name in stores
    }
    data = LmDataConfig(components=components, validation_fraction=FRACTION, **rules)
    return build_eval_datasets(data, NUMBERS, seq_len=seq_len)


@pytest.fixture(scope="module")
def stores() -> dict[str, list[list[int]]]:
    return {"code": documents_of(0, 12), "prose": documents_of(1, 5)}


def test_neither_row_length_nor_order_of_documents_changes_a_value(
    stores, tmp_path, one_device_mesh
):
    reordered = {name: documents[::-1] for name, documents in stores.items()}
    found = []
    for folder, documents in (("as they come", stores), ("backwards", reordered)):
        for seq_len in (5, 8, 400):
            datasets = held_out(tmp_path / folder, documents, seq_len=seq_len)
            evaluator = evaluator_of(datasets, one_device_mesh, bytes_per_token=SIZES)
            found.append(without_times(evaluator.evaluate(np.float32(2.0))))
    # A row of 400 holds a whole store; over rows of 5 documents go on from batch to batch.
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-6)
    assert found[0]["eval/code/documents"] == 12
    assert found[0]["eval/tokens"] == sum(len(d) for own in stores.values() for d in own)


@pytest.mark.parametrize("masked", [True, False])
def test_each_loss_is_of_the_document_its_token_is_in(masked, stores, tmp_path, one_device_mesh):
    """Error by document, from the documents themselves."""
    (dataset,) = held_out(tmp_path, {"code": stores["code"]}, seq_len=7, mask_boundary_loss=masked)
    found = evaluator_of([dataset], one_device_mesh).evaluate(np.float32(2.0))
    line = [(token, i) for i, ids in enumerate(stores["code"]) for token in [*ids, 0]]
    sums = np.zeros((len(stores["code"]), 2))
    for (here, before), (_, document) in pairwise(line):
        if before == document or not masked:
            sums[document] += 2.0 * (1.5 + np.sin(here)), 1.0
    loss, tokens = sums.sum(axis=0)
    off = sums[:, 0] - loss / tokens * sums[:, 1]
    assert found["eval/loss"] == pytest.approx(loss / tokens, rel=1e-6)
    expected = np.sqrt(len(sums) / (len(sums) - 1) * np.square(off).sum()) / tokens
    assert found["eval/loss_stderr"] == pytest.approx(expected, rel=1e-6)


def test_weights_that_documents_bring_count_once(tmp_path, one_device_mesh):
    writer = StoreWriter(
        str(tmp_path / "code"), number_identity(split="validation"), NUMBERS, has_loss_weights=True
    )
    ids, weights = np.arange(1, 8), np.asarray([0.0, 0.5, 2.0, 0.0, 0.25, 1.0, 0.0], np.float32)
    document = Document(id="0", ids=ids, loss_weights=weights)
    writer.append(np.asarray([0]), encode_documents([document], NUMBERS))
    writer.finish(("numbers",), has_whole_parts=False)
    (dataset,) = held_out(tmp_path, {"code": [[]]}, seq_len=3)
    found = evaluator_of([dataset], one_device_mesh, bytes_per_token=SIZES).evaluate(np.float32(1))
    loss = float(np.sum(weights * (1.5 + np.sin(ids))))
    assert found["eval/tokens"] == 3.75
    assert found["eval/loss"] == pytest.approx(loss / 3.75, rel=1e-6)


@pytest.mark.parametrize("documents", [[], [[]]])
def test_a_store_in_which_nothing_is_predicted_is_a_dataset_without_tokens(
    documents, stores, tmp_path, one_device_mesh, caplog
):
    datasets = held_out(tmp_path, {"code": stores["code"], "void": documents}, seq_len=8)
    found = evaluator_of(datasets, one_device_mesh).evaluate(np.float32(1.0))
    assert found["eval/void/tokens"] == found["eval/text/void/documents"] == 0
    assert found["eval/macro_loss"] == found["eval/loss"]
    assert "no held-out token counts in void." in caplog.text
    with pytest.raises(DataError) as caught:
        evaluator_of(datasets[1:], one_device_mesh)
    assert "no row" in caught.value.given


def test_a_prompt_from_a_store_without_documents_is_refused(tmp_path):
    (void,) = held_out(tmp_path, {"void": []}, seq_len=8)
    with pytest.raises(DataError) as caught:
        void.prompt(4)
    assert "component 'void'" in caught.value.given


def test_a_prompt_is_either_end_of_the_first_held_out_document_that_is_long_enough(tmp_path):
    (texts,) = held_out(tmp_path, {"code": [[1, 2], [3, 4, 5, 6, 7], [8, 9]]}, seq_len=8)
    for number in (0, 1, 3):
        assert texts.prompt(3, number) == [3, 4, 5]
        assert texts.prompt(3, number, is_tail=True) == [5, 6, 7]  # not the token that ends it
    assert texts.prompt(9, 2) == texts.prompt(9, 2, is_tail=True) == [8, 9]


# ---- A real model -------------------------------------------------------------------------------

LOSSES = partial(template_losses, Precision())


def test_a_model_has_the_same_metrics_on_one_device_and_on_eight(
    stores, tmp_path, one_device_mesh, eight_device_mesh
):
    found = []
    for mesh, batch_size in ((one_device_mesh, 3), (eight_device_mesh, 5)):
        datasets = held_out(tmp_path, stores, seq_len=16)
        evaluator = evaluator_of(
            datasets, mesh, LOSSES, batch_size=batch_size, bytes_per_token=SIZES
        )
        found.append(without_times(evaluator.evaluate(model_on(mesh))))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert {"eval/text/code/bpb_stderr", "eval/text/macro_bpb"} < found[0].keys()


def test_metrics_of_averaged_weights_are_those_of_evaluating_them(
    stores, tmp_path, one_device_mesh
):
    datasets = held_out(tmp_path, stores, seq_len=16)
    current = model_on(one_device_mesh)
    average = jax.tree.map(lambda weight: 0.5 * weight, current)

    def evaluator(prefix: str) -> TaggedEvaluator:
        return evaluator_of(datasets, one_device_mesh, LOSSES, batch_size=3, prefix=prefix)

    tracker = JsonlTracker(tmp_path / "metrics.jsonl", attempt=1)
    evaluators = {"current": evaluator("eval"), "ema": evaluator("eval/ema")}
    callback = build_tagged_eval_callback(evaluators, tracker)
    found = without_times(callback({"current": current, "ema": average}, 1))
    tracker.finish()
    for model, prefix in ((current, "eval/"), (average, "eval/ema/")):
        direct = without_times(evaluator("direct").evaluate(model))
        for name, value in direct.items():
            assert found[name.replace("direct/", prefix)] == value
    assert found["eval/loss"] != found["eval/ema/loss"]
