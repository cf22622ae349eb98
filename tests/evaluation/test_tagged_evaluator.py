"""Evaluation is sums over sums: no batch size, order or mesh changes a number."""

import logging
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.errors import ConfigError, DataError
from chomp.evaluation.losses import IN_FLIGHT, chosen_rows
from tests.evaluation.rows_in_memory import (
    BYTES,
    RowsInMemory,
    T,
    evaluator_of,
    losses_of,
    random_rows,
    without_times,
)

MODEL = np.float32(2.0)


@pytest.fixture(scope="module")
def datasets() -> list[RowsInMemory]:
    return [
        random_rows("code", num_rows=23, seed=0, tags=("text/code", "small")),
        random_rows("prose", num_rows=3, seed=1, tags=("text/prose",)),
    ]


@pytest.fixture(scope="module")
def metrics(datasets, one_device_mesh) -> dict[str, float]:
    return without_times(evaluator_of(datasets, one_device_mesh).evaluate(MODEL))


def test_a_small_table_gives_what_was_counted_by_hand(one_device_mesh):
    """Three documents: 1 2 0, then 3 4 5 0 in two rows, then 6 0.

    Weighted losses 2, 12 and 0.5; weights 1.5, 3.25 and 1; nats of tokens with bytes 1, 10 and
    none; bytes 2, 6 and none. What was not counted is NaN, where a sum would show it.
    """
    nan = math.nan
    table = RowsInMemory(
        "table",
        tokens=np.asarray([[1, 2, 0, 3, 4], [4, 5, 0, 6, 0]], np.int32),
        weight=np.asarray([[1, 0.5, 0, 2, 0], [1, 0.25, 0, 1, 0]], np.float32),
        documents=np.asarray([[0, 0, 1, 1, -1], [1, 1, 2, 2, -1]]),
    )
    losses = np.asarray([[1, 2, nan, 3, nan], [4, 8, nan, 0.5, nan]], np.float32)
    sizes = np.asarray([0, 1, 2, 3, 1, 4, 1], np.int32)
    evaluator = evaluator_of(
        [table], one_device_mesh, lambda model, _: model, batch_size=2, bytes_per_token=sizes
    )
    expected = {
        "tokens": 5.75,
        "documents": 3,
        "loss": 14.5 / 5.75,
        # Deviations of 41/23, 87.5/23 and 46.5/23 nats from 58/23 a token.
        "loss_stderr": 0.9930918724642563,
        "bpb": 11 / math.log(2) / 8,
        # Two documents have bytes; both are 1.75 nats off.
        "bpb_stderr": 0.6311790803889216,
    }
    keys = {
        f"eval/{tag}{name}": value for name, value in expected.items() for tag in ("", "table/")
    }
    assert without_times(evaluator.evaluate(losses)) == pytest.approx(keys, rel=1e-12)


def by_hand(datasets: Sequence[RowsInMemory]) -> dict[str, float]:
    """Total nats over tokens and total bits over bytes, one token at a time."""
    loss = tokens = bits = num_bytes = 0.0
    for dataset in datasets:
        for row, weights in zip(dataset.tokens, dataset.weight, strict=True):
            for here, following, weight in zip(row[:-1], row[1:], weights[:-1], strict=True):
                nats = 2.0 * (1.5 + math.sin(here))
                loss += nats * float(weight)
                tokens += float(weight)
                if BYTES[following] > 0:
                    bits += nats / math.log(2) * float(weight)
                    num_bytes += int(BYTES[following]) * float(weight)
    return {"loss": loss / tokens, "tokens": tokens, "bpb": bits / num_bytes}


def test_fractional_weights_enter_once_and_bits_per_byte_are_total_bits_over_bytes(
    datasets, metrics
):
    for prefix, members in (("", datasets), ("code/", datasets[:1]), ("prose/", datasets[1:])):
        for name, value in by_hand(members).items():
            assert metrics[f"eval/{prefix}{name}"] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 7, 8, 16])
def test_no_batch_size_changes_a_bit_of_any_value(batch_size, datasets, one_device_mesh, metrics):
    found = evaluator_of(datasets, one_device_mesh, batch_size=batch_size).evaluate(MODEL)
    assert without_times(found) == metrics


def test_neither_the_order_of_datasets_nor_that_of_their_rows_changes_a_value(
    datasets, one_device_mesh, metrics
):
    order = np.random.default_rng(5).permutation(23)
    code = datasets[0]
    shuffled = RowsInMemory(
        "code", code.tokens[order], code.weight[order], code.documents[order], code.tags[1:]
    )
    found = evaluator_of([datasets[1], shuffled], one_device_mesh).evaluate(MODEL)
    assert without_times(found) == pytest.approx(metrics, rel=1e-12)


@pytest.mark.parametrize(("batch_size", "max_batches"), [(3, None), (3, 2), (1, 5), (5, 1)])
def test_eight_devices_round_the_batch_up_and_change_no_value(
    batch_size, max_batches, datasets, one_device_mesh, eight_device_mesh
):
    alone, together = (
        without_times(
            evaluator_of(datasets, mesh, batch_size=batch_size, max_batches=max_batches).evaluate(
                MODEL
            )
        )
        for mesh in (one_device_mesh, eight_device_mesh)
    )
    assert together == pytest.approx(alone, rel=1e-6)


def test_a_limit_takes_so_many_rows_of_each_dataset_at_even_distances(datasets, one_device_mesh):
    evaluator = evaluator_of(datasets, one_device_mesh, batch_size=2, max_batches=2)
    found = evaluator.evaluate(MODEL)
    code, prose = datasets
    rows = [0, 5, 11, 17]  # of 23
    assert found["eval/code/tokens"] == pytest.approx(code.weight[rows].sum(dtype=np.float64))
    assert found["eval/prose/tokens"] == pytest.approx(prose.weight.sum(dtype=np.float64))
    assert found["eval/code/documents"] == len(
        np.unique(code.documents[rows][code.weight[rows] > 0])
    )


@given(st.integers(0, 500), st.integers(1, 60))
def test_chosen_rows_are_distinct_in_order_and_reach_over_the_whole_dataset(num_rows, limit):
    rows = chosen_rows(num_rows, limit).tolist()
    assert len(rows) == min(num_rows, limit)
    gaps = np.diff([*rows, num_rows])
    assert rows[:1] == [0][:num_rows]
    assert not rows or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)
    assert chosen_rows(num_rows, None).tolist() == list(range(num_rows))


def test_the_same_rows_are_evaluated_every_time(datasets, one_device_mesh):
    evaluator = evaluator_of(datasets, one_device_mesh, max_batches=2)
    assert without_times(evaluator.evaluate(MODEL)) == without_times(evaluator.evaluate(MODEL))


def test_no_mesh_has_to_be_set_by_the_caller(datasets, eight_device_mesh, metrics):
    assert jax.sharding.get_abstract_mesh().empty
    found = evaluator_of(datasets, eight_device_mesh).evaluate(MODEL)
    with jax.set_mesh(eight_device_mesh):
        assert without_times(evaluator_of(datasets, eight_device_mesh).evaluate(MODEL)) == (
            without_times(found)
        )
    assert without_times(found) == pytest.approx(metrics, rel=1e-6)


def test_losses_of_positions_that_do_not_count_are_nobodys(datasets, one_device_mesh, metrics):
    def poisoned(model: jax.Array, batch) -> jax.Array:
        return jnp.where(batch.loss_weight > 0, losses_of(model, batch), jnp.nan)

    found = evaluator_of(datasets, one_device_mesh, poisoned).evaluate(MODEL)
    assert without_times(found) == metrics


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_shows_wherever_it_counts_and_nowhere_else(
    wrong, datasets, one_device_mesh, metrics
):
    code, prose = datasets
    tokens, weight = prose.tokens.copy(), prose.weight.copy()
    tokens[1, 2], weight[1, 2] = 99, 1.0  # an id of its own
    marked = RowsInMemory("prose", tokens, weight, prose.documents, ["text/prose"])

    def failing(model: jax.Array, batch) -> jax.Array:
        return jnp.where(batch.tokens == 99, jnp.float32(wrong), losses_of(model, batch))

    found = evaluator_of([code, marked], one_device_mesh, failing).evaluate(MODEL)
    for name in ("loss", "prose/loss", "text/micro_loss", "macro_loss"):
        assert found[f"eval/{name}"] == pytest.approx(wrong, nan_ok=True)
    assert math.isnan(found["eval/loss_stderr"])
    assert found["eval/code/loss"] == metrics["eval/code/loss"]
    assert found["eval/code/loss_stderr"] == metrics["eval/code/loss_stderr"]


def test_without_a_tokenizer_there_are_losses_and_no_bits_per_byte(
    datasets, one_device_mesh, metrics
):
    found = evaluator_of(datasets, one_device_mesh, bytes_per_token=None).evaluate(MODEL)
    losses = {name: value for name, value in metrics.items() if "bpb" not in name}
    assert without_times(found) == losses


def test_ids_beyond_the_table_stand_for_no_bytes(datasets, one_device_mesh):
    found = evaluator_of(datasets, one_device_mesh, bytes_per_token=BYTES[:1]).evaluate(MODEL)
    assert not [name for name in found if "bpb" in name]


def test_every_name_has_the_prefix_and_times_are_told(datasets, one_device_mesh):
    found = evaluator_of(datasets, one_device_mesh, prefix="eval/ema").evaluate(MODEL)
    assert all(name.startswith("eval/ema/") for name in found)
    assert found["eval/ema/total_time"] >= found["eval/ema/loading_time"] >= 0


def test_rows_are_told_as_they_are_done_and_few_are_in_flight(datasets, one_device_mesh):
    read: list[int] = []

    class Watched(RowsInMemory):
        def read(self, rows, batch_size):
            read.append(len(rows))
            return super().read(rows, batch_size)

    code = datasets[0]
    watched = Watched("code", code.tokens, code.weight, code.documents)
    told: list[tuple[int, int]] = []

    def on_rows(done: int, total: int) -> None:
        assert sum(read) - done <= 4 * IN_FLIGHT
        told.append((done, total))

    evaluator_of([watched, datasets[1]], one_device_mesh).evaluate(MODEL, on_rows)
    assert told == [(done, 26) for done in (4, 8, 12, 16, 20, 23, 26)]


def test_evaluators_of_one_model_compile_it_once(datasets, one_device_mesh):
    traced: list[int] = []

    def counted(model: jax.Array, batch) -> jax.Array:
        traced.append(1)
        return losses_of(model, batch)

    for prefix in ("eval", "eval/ema"):
        evaluator_of(datasets, one_device_mesh, counted, prefix=prefix).evaluate(MODEL)
    assert len(traced) == 1


# ---- Nothing to evaluate ------------------------------------------------------------------------


def empty_rows(name: str, num_rows: int, tags: Sequence[str] = ()) -> RowsInMemory:
    """Rows none of whose positions counts."""
    zeros = np.zeros((num_rows, T), np.int32)
    return RowsInMemory(name, zeros, zeros.astype(np.float32), zeros.astype(np.int64), tags)


@pytest.mark.parametrize("num_rows", [0, 3])
def test_datasets_without_tokens_are_left_out_and_named_once(
    num_rows, datasets, one_device_mesh, metrics, caplog
):
    empty = empty_rows("void", num_rows, ("text/void", "small"))
    evaluator = evaluator_of([empty, *datasets], one_device_mesh)
    with caplog.at_level(logging.WARNING):
        found = without_times(evaluator.evaluate(MODEL))
        assert without_times(evaluator.evaluate(MODEL)) == found
    (warning,) = [record.message for record in caplog.records]
    assert "no held-out token counts in void. There is no loss of text/void, void, and" in warning
    zeros = {
        f"eval/{tag}/{name}": 0 for tag in ("void", "text/void") for name in ("tokens", "documents")
    }
    assert found == {**metrics, **zeros}


@pytest.mark.parametrize("datasets", [[], [empty_rows("a", 0), empty_rows("b", 0)]])
def test_datasets_that_have_no_row_are_refused_at_the_start(datasets, one_device_mesh):
    with pytest.raises(DataError) as caught:
        evaluator_of(datasets, one_device_mesh)
    assert "no row" in caught.value.given
    assert "data.validation_fraction" in caught.value.fix


def test_datasets_in_which_no_token_counts_are_refused(one_device_mesh):
    evaluator = evaluator_of([empty_rows("a", 2), empty_rows("b", 0)], one_device_mesh)
    with pytest.raises(DataError) as caught:
        evaluator.evaluate(MODEL)
    assert "no token" in caught.value.given


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"max_batches": 0}, {"max_batches": -1}])
def test_batches_of_nothing_are_refused(wrong, datasets, one_device_mesh):
    with pytest.raises(ConfigError) as caught:
        evaluator_of(datasets, one_device_mesh, **wrong)
    assert "one batch" in caught.value.allowed


def test_two_datasets_of_one_name_are_refused(datasets, one_device_mesh):
    with pytest.raises(ConfigError) as caught:
        evaluator_of([datasets[0], datasets[0]], one_device_mesh)
    assert "['code', 'code']" in caught.value.given


@pytest.mark.parametrize("tag", ["", "/a", "a//b", "a/", "ema", "ema/x"])
def test_a_tag_without_metric_names_of_its_own_is_refused(tag, one_device_mesh):
    tagged = random_rows("code", num_rows=1, seed=0, tags=(tag,))
    with pytest.raises(ConfigError) as caught:
        evaluator_of([tagged], one_device_mesh)
    assert f"'{tag}' of the evaluation dataset 'code'" in caught.value.given
