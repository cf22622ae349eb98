"""Evaluation is sums over sums: no batch size, mesh or tag order changes a number."""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import EvalDataset, GrugLmExample
from chomp.evaluation import DatasetSums, TaggedEvaluator, tagged_metrics
from chomp.kernels.attention import AttentionMask
from experiments.grug.base.model import GrugModelConfig, Transformer

T, V = 6, 10
# Id 0 is the end of a document and stands for no bytes; the others stand for 1 to 4.
BYTES = np.asarray([0, 1, 2, 3, 4, 1, 2, 3, 4, 1], np.int32)


class RowsInMemory(EvalDataset):
    """Rows with weights of any size, which token stores do not have."""

    def __init__(self, name: str, *, num_rows: int, seed: int, tags: Sequence[str] = ()) -> None:
        self.name = name
        self.tags = (name, *tags)
        draw = np.random.default_rng(seed)
        self.tokens = draw.integers(0, V, size=(num_rows, T), dtype=np.int32)
        self.weight = draw.uniform(0.0, 2.0, size=(num_rows, T)).astype(np.float32)
        self.weight[:, -1] = 0.0

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    def batch(self, index: int, batch_size: int) -> GrugLmExample:
        rows = np.arange(index * batch_size, (index + 1) * batch_size)
        exists = rows < self.num_rows
        rows = np.where(exists, rows, 0)
        return GrugLmExample(
            tokens=self.tokens[rows],
            loss_weight=self.weight[rows] * exists[:, None],
            attn_mask=AttentionMask.causal(
                segment_ids=np.where(exists[:, None], 0, -1) * np.ones((1, T), np.int32)
            ),
        )


def losses_of(model: jax.Array, batch: GrugLmExample) -> jax.Array:
    """A loss for every position that anyone can compute: it depends on the token there."""
    return model * (1.5 + jnp.sin(batch.tokens.astype(jnp.float32)))


def by_hand(model: float, datasets: Sequence[RowsInMemory]) -> DatasetSums:
    """The four sums in float64, one token at a time."""
    loss = tokens = bits = num_bytes = 0.0
    for dataset in datasets:
        for row, weights in zip(dataset.tokens, dataset.weight, strict=True):
            for here, following, weight in zip(row[:-1], row[1:], weights[:-1], strict=True):
                nats = model * (1.5 + math.sin(here))
                loss += nats * float(weight)
                tokens += float(weight)
                if BYTES[following] > 0:
                    bits += nats / math.log(2) * float(weight)
                    num_bytes += int(BYTES[following]) * float(weight)
    return DatasetSums(loss, tokens, bits, num_bytes)


@pytest.fixture(scope="module")
def datasets() -> list[RowsInMemory]:
    return [
        RowsInMemory("code", num_rows=7, seed=0, tags=("text/code", "small")),
        RowsInMemory("prose", num_rows=3, seed=1, tags=("text/prose",)),
    ]


def evaluated(datasets, mesh, *, batch_size=4, max_batches=None, table=BYTES, prefix="eval"):
    evaluator = TaggedEvaluator(
        datasets,
        losses_of,
        mesh=mesh,
        batch_size=batch_size,
        max_batches=max_batches,
        bytes_per_token=table,
        prefix=prefix,
    )
    with jax.set_mesh(mesh):
        return evaluator.evaluate(jnp.float32(2.0))


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith("_time")}


@pytest.fixture(scope="module")
def metrics(datasets, one_device_mesh) -> dict[str, float]:
    return evaluated(datasets, one_device_mesh)


def test_fractional_weights_enter_once_in_loss_and_bits_per_byte(datasets, metrics):
    for prefix, members in (("", datasets), ("code/", datasets[:1]), ("prose/", datasets[1:])):
        expected = by_hand(2.0, members)
        assert metrics[f"eval/{prefix}loss"] == pytest.approx(expected.loss / expected.tokens, 1e-5)
        assert metrics[f"eval/{prefix}tokens"] == pytest.approx(expected.tokens, rel=1e-5)
        bits_per_byte = expected.bits / expected.num_bytes
        assert metrics[f"eval/{prefix}bpb"] == pytest.approx(bits_per_byte, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_no_value_depends_on_the_batch_size(batch_size, datasets, one_device_mesh, metrics):
    found = without_times(evaluated(datasets, one_device_mesh, batch_size=batch_size))
    assert found == pytest.approx(without_times(metrics), rel=1e-5)


def test_a_mesh_of_eight_rounds_the_batch_up_and_changes_no_value(
    datasets, eight_device_mesh, metrics
):
    found = without_times(evaluated(datasets, eight_device_mesh, batch_size=3))
    assert found == pytest.approx(without_times(metrics), rel=1e-5)


def test_the_same_rows_are_evaluated_every_time(datasets, one_device_mesh, metrics):
    assert without_times(evaluated(datasets, one_device_mesh)) == without_times(metrics)


def test_a_limit_on_batches_holds_for_each_dataset(datasets, one_device_mesh):
    found = evaluated(datasets, one_device_mesh, batch_size=2, max_batches=1)
    for dataset in datasets:
        first_rows = dataset.weight[:2].sum()
        assert found[f"eval/{dataset.name}/tokens"] == pytest.approx(float(first_rows), rel=1e-5)


def test_evaluating_no_batch_gives_no_loss_and_no_crash(datasets, one_device_mesh):
    found = without_times(evaluated(datasets, one_device_mesh, max_batches=0))
    assert found
    assert all(name.endswith("tokens") and value == 0 for name, value in found.items())


def test_without_a_tokenizer_there_are_losses_and_no_bits_per_byte(
    datasets, one_device_mesh, metrics
):
    found = evaluated(datasets, one_device_mesh, table=None)
    assert not [name for name in found if "bpb" in name]
    losses = {name: value for name, value in without_times(metrics).items() if "bpb" not in name}
    assert without_times(found) == pytest.approx(losses, rel=1e-6)


def test_ids_beyond_the_table_stand_for_no_bytes(datasets, one_device_mesh):
    found = evaluated(datasets, one_device_mesh, table=BYTES[:1])
    assert not [name for name in found if "bpb" in name]


def test_every_name_has_the_prefix_and_times_are_told(datasets, one_device_mesh):
    found = evaluated(datasets, one_device_mesh, prefix="eval/ema")
    assert all(name.startswith("eval/ema/") for name in found)
    assert found["eval/ema/total_time"] >= found["eval/ema/loading_time"] >= 0


def test_tagged_evaluator_accepts_grug_lm_examples(datasets, one_device_mesh):
    cfg = GrugModelConfig(
        vocab_size=V, hidden_dim=8, intermediate_dim=8, num_layers=1, num_heads=1, num_kv_heads=1
    )

    def model_losses(model: Transformer, batch: GrugLmExample) -> jax.Array:
        return model.next_token_loss(
            batch.tokens, batch.loss_weight, mask=batch.attn_mask, reduction="none"
        )

    evaluator = TaggedEvaluator(
        datasets,
        model_losses,
        mesh=one_device_mesh,
        batch_size=4,
        max_batches=None,
        bytes_per_token=BYTES,
    )
    with jax.set_mesh(one_device_mesh):
        model = jax.jit(partial(Transformer.init, cfg))(key=jax.random.key(0))
        found = evaluator.evaluate(model)
    assert found["eval/loss"] == pytest.approx(math.log(V), rel=0.01)


# ---- Tags and their parents, from sums alone ----------------------------------------------------

TAGS = st.sampled_from(["a", "a/b", "a/b/c", "a/d", "e/f", "e/g", "h"])
SUMS = st.builds(
    DatasetSums,
    loss=st.floats(0.1, 100),
    tokens=st.sampled_from([0.0, 0.5, 8.0, 1e6]),
    bits=st.floats(0.1, 100),
    num_bytes=st.sampled_from([0.0, 3.0, 1e6]),
)


def brute_force(
    sums: dict[str, DatasetSums], tags: dict[str, list[str]], with_bytes: bool
) -> dict[str, float]:
    """Every metric by asking, for each, which datasets it is about."""
    everything = sorted({tag for own in tags.values() for tag in own})
    parents = {tag[:i] for tag in everything for i, letter in enumerate(tag) if letter == "/"}
    found: dict[str, float] = {}

    def sums_of(names: set[str]) -> tuple[float, float, float, float]:
        members = [sums[name] for name in names]
        return (
            math.fsum(m.loss for m in members),
            math.fsum(m.tokens for m in members),
            math.fsum(m.bits for m in members),
            math.fsum(m.num_bytes for m in members),
        )

    def tagged(tag: str) -> set[str]:
        return {name for name, own in tags.items() if tag in own}

    def put(prefix: str, names: set[str]) -> None:
        loss, tokens, bits, num_bytes = sums_of(names)
        found[f"{prefix}tokens"] = tokens
        if tokens > 0:
            found[f"{prefix}loss"] = loss / tokens
        if with_bytes and num_bytes > 0:
            found[f"{prefix}bpb"] = bits / num_bytes

    def put_macro(prefix: str, over: list[str]) -> None:
        parts = [sums_of(tagged(tag)) for tag in over]
        losses = [loss / tokens for loss, tokens, _, _ in parts if tokens > 0]
        ratios = [bits / size for _, tokens, bits, size in parts if tokens > 0 and size > 0]
        if losses:
            found[f"{prefix}macro_loss"] = math.fsum(losses) / len(losses)
        if with_bytes and ratios:
            found[f"{prefix}macro_bpb"] = math.fsum(ratios) / len(ratios)

    put("", set(sums))
    if len(everything) > 1:
        put_macro("", everything)
    for tag in everything:
        put(f"{tag}/", tagged(tag))
    for parent in parents:
        below = [tag for tag in everything if tag.startswith(f"{parent}/")]
        names = set().union(*(tagged(tag) for tag in below))
        if parent not in everything:
            put(f"{parent}/", names)
        loss, tokens, _, _ = sums_of(names)
        if tokens > 0:
            found[f"{parent}/micro_loss"] = loss / tokens
            put_macro(f"{parent}/", below)
    return found


@settings(deadline=None)  # a loaded machine is no failure
@given(
    st.dictionaries(
        st.sampled_from(["one", "two", "three", "four"]),
        st.tuples(SUMS, st.lists(TAGS, unique=True, max_size=4)),
        min_size=1,
    ),
    st.booleans(),
)
def test_tags_and_parents_equal_a_brute_force(datasets, with_bytes):
    sums = {name: item for name, (item, _) in datasets.items()}
    tags = {name: [name, *own] for name, (_, own) in datasets.items()}
    found = tagged_metrics(sums, tags, with_bytes=with_bytes)
    assert found == pytest.approx(brute_force(sums, tags, with_bytes), rel=1e-9)


def test_a_tag_without_tokens_has_no_loss_and_does_not_drag_an_average_down():
    sums = {"full": DatasetSums(6.0, 2.0, 8.0, 4.0), "empty": DatasetSums()}
    tags = {"full": ["full", "x/full"], "empty": ["empty", "x/empty", "y/empty"]}
    found = tagged_metrics(sums, tags, with_bytes=True)
    assert found["empty/tokens"] == found["y/tokens"] == 0
    assert not {"empty/loss", "x/empty/loss", "y/loss", "y/micro_loss"} & set(found)
    assert found["macro_loss"] == found["x/macro_loss"] == found["x/micro_loss"] == 3.0
    assert found["macro_bpb"] == 2.0


def test_a_parent_counts_a_dataset_once_though_two_of_its_tags_lie_below():
    sums = {"d": DatasetSums(6.0, 2.0, 8.0, 4.0), "e": DatasetSums(1.0, 1.0, 1.0, 1.0)}
    tags = {"d": ["d", "x/y", "x/z"], "e": ["e", "x/z"]}
    found = tagged_metrics(sums, tags, with_bytes=False)
    assert found["x/tokens"] == 3.0
    assert found["x/micro_loss"] == pytest.approx(7.0 / 3.0)


def test_a_single_tag_has_no_macro_average():
    found = tagged_metrics({"d": DatasetSums(1.0, 1.0)}, {"d": ["d"]}, with_bytes=False)
    assert set(found) == {"tokens", "loss", "d/tokens", "d/loss"}
