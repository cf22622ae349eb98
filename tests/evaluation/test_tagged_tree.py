"""Tags, their parents and errors by document, against a table that is filtered cell by cell."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.evaluation import DocumentSums, tagged_metrics

TAGS = st.sampled_from(["a", "a/b", "a/b/c", "a/d", "e/f", "e/g", "h"])


class Line(NamedTuple):
    """A document in the table."""

    dataset: str
    loss: float
    tokens: float
    bits: float
    num_bytes: float


def sums_of(lines: list[Line], name: str) -> DocumentSums:
    mine = [line[1:] for line in lines if line.dataset == name]
    columns = np.asarray(mine, np.float64).reshape(-1, 4).T
    return DocumentSums(**dict(zip(Line._fields[1:], columns, strict=True)))


def spreadsheet(
    lines: list[Line], tags: dict[str, list[str]], with_bytes: bool
) -> dict[str, float]:
    """Every metric by asking, for each, which lines it is about."""
    everything = sorted({tag for own in tags.values() for tag in own})
    parents = {tag[:i] for tag in everything for i, letter in enumerate(tag) if letter == "/"}
    found: dict[str, float] = {}

    def tagged(*wanted: str) -> list[Line]:
        return [line for line in lines if set(wanted) & set(tags[line.dataset])]

    def ratio(cells: list[tuple[str, float, float]]) -> tuple[float, float] | None:
        total = math.fsum(size for _, _, size in cells)
        if total == 0:
            return None
        mean = math.fsum(amount for _, amount, _ in cells) / total
        rests: dict[str, list[float]] = {}
        for dataset, amount, size in cells:
            rests.setdefault(dataset, []).append(amount - mean * size)
        # Those of one document are one dataset.
        groups = [group for group in rests.values() if len(group) > 1]
        alone = [group[0] for group in rests.values() if len(group) == 1]
        squares = sum(
            len(group) / (len(group) - 1) * sum((x - sum(group) / len(group)) ** 2 for x in group)
            for group in [*groups, *([alone] if len(alone) > 1 else [])]
        )
        squares += alone[0] ** 2 if len(alone) == 1 else 0.0
        return mean, math.sqrt(squares) / total if len(cells) > 1 else math.nan

    def loss(chosen: list[Line]) -> tuple[float, float] | None:
        return ratio([(line.dataset, line.loss, line.tokens) for line in chosen])

    def bits(chosen: list[Line]) -> tuple[float, float] | None:
        if not with_bytes:
            return None
        cells = [(line.dataset, line.bits, line.num_bytes) for line in chosen if line.num_bytes]
        return ratio(cells)

    def put(prefix: str, chosen: list[Line]) -> None:
        found[f"{prefix}tokens"] = math.fsum(line.tokens for line in chosen)
        found[f"{prefix}documents"] = len(chosen)
        for name, value in (("loss", loss(chosen)), ("bpb", bits(chosen))):
            if value is not None:
                found[f"{prefix}{name}"], stderr = value
                if not math.isnan(stderr):
                    found[f"{prefix}{name}_stderr"] = stderr

    def put_macro(prefix: str, over: list[str]) -> None:
        for name, of in (("macro_loss", loss), ("macro_bpb", bits)):
            values = [value[0] for tag in over if (value := of(tagged(tag))) is not None]
            if values:
                found[f"{prefix}{name}"] = math.fsum(values) / len(values)

    put("", lines)
    if len(everything) > 1:
        put_macro("", everything)
    for tag in everything:
        put(f"{tag}/", tagged(tag))
    for parent in parents:
        below = [tag for tag in everything if tag.startswith(f"{parent}/")]
        if parent not in everything:
            put(f"{parent}/", tagged(*below))
        micro = loss(tagged(*below))
        if micro is not None:
            found[f"{parent}/micro_loss"] = micro[0]
            put_macro(f"{parent}/", below)
    return found


AMOUNTS = st.floats(0.1, 100)
DOCUMENTS = st.tuples(
    AMOUNTS, st.sampled_from([0.5, 8.0, 1e6]), AMOUNTS, st.sampled_from([0.0, 3.0, 1e6])
)


@settings(deadline=None)  # a loaded machine is no failure
@given(
    st.dictionaries(
        st.sampled_from(["one", "two", "three", "four"]),
        st.tuples(st.lists(DOCUMENTS, max_size=4), st.lists(TAGS, unique=True, max_size=4)),
        min_size=1,
    ),
    st.booleans(),
)
def test_every_metric_of_a_tag_tree_equals_a_spreadsheet(datasets, with_bytes):
    lines = [Line(name, *cells) for name, (own, _) in datasets.items() for cells in own]
    tags = {name: [name, *own] for name, (_, own) in datasets.items()}
    sums = {name: sums_of(lines, name) for name in datasets}
    found = tagged_metrics(sums, tags, with_bytes=with_bytes)
    assert found == pytest.approx(spreadsheet(lines, tags, with_bytes), rel=1e-9, abs=1e-12)


def one(loss: float, tokens: float, bits: float = 0.0, num_bytes: float = 0.0) -> DocumentSums:
    return sums_of([Line("d", loss, tokens, bits, num_bytes)], "d")


NOTHING = DocumentSums.joined(())


def test_a_tag_without_tokens_has_no_loss_and_does_not_drag_an_average_down():
    sums = {"full": one(6.0, 2.0, 8.0, 4.0), "empty": NOTHING}
    tags = {"full": ["full", "x/full"], "empty": ["empty", "x/empty", "y/empty"]}
    found = tagged_metrics(sums, tags, with_bytes=True)
    assert found["empty/tokens"] == found["y/tokens"] == found["y/documents"] == 0
    assert not {"empty/loss", "x/empty/loss", "y/loss", "y/micro_loss"} & set(found)
    assert found["macro_loss"] == found["x/macro_loss"] == found["x/micro_loss"] == 3.0
    assert found["macro_bpb"] == 2.0


def test_a_parent_counts_a_dataset_once_though_two_of_its_tags_lie_below():
    sums = {"d": one(6.0, 2.0), "e": one(1.0, 1.0)}
    tags = {"d": ["d", "x/y", "x/z"], "e": ["e", "x/z"]}
    found = tagged_metrics(sums, tags, with_bytes=False)
    assert (found["x/tokens"], found["x/documents"]) == (3.0, 2.0)
    assert found["x/micro_loss"] == pytest.approx(7.0 / 3.0)


def test_a_parent_that_is_a_tag_itself_keeps_its_own_loss_apart_from_what_lies_below():
    sums = {"d": one(6.0, 2.0), "e": one(1.0, 1.0), "f": one(20.0, 4.0)}
    tags = {"d": ["d", "x"], "e": ["e", "x/y"], "f": ["f", "x/y/z"]}
    found = tagged_metrics(sums, tags, with_bytes=False)
    assert (found["x/loss"], found["x/micro_loss"], found["x/macro_loss"]) == (3.0, 21 / 5, 3.0)
    assert (found["x/y/loss"], found["x/y/micro_loss"]) == (1.0, 5.0)


def test_a_single_tag_has_no_macro_average_and_a_single_document_no_error():
    found = tagged_metrics({"d": one(1.0, 1.0)}, {"d": ["d"]}, with_bytes=False)
    assert set(found) == {
        f"{tag}{name}" for tag in ("", "d/") for name in ("tokens", "documents", "loss")
    }


def test_how_far_datasets_are_from_each_other_is_no_uncertainty():
    near, far = (
        [Line("d", loss, 10.0, 0.0, 0.0) for loss in losses] for losses in ([9, 11], [99, 101])
    )
    sums = {"near": sums_of(near, "d"), "far": sums_of(far, "d")}
    found = tagged_metrics(sums, {"near": ["near"], "far": ["far"]}, with_bytes=False)
    # By hand: residuals -1 and 1 in each; 2/1 * 2 for each of the two, over 40 tokens.
    assert found["near/loss_stderr"] == pytest.approx(math.sqrt(4) / 20)
    assert found["loss_stderr"] == pytest.approx(math.sqrt(8) / 40)


def test_the_error_of_documents_that_are_alike_is_none_however_many_they_are():
    """Moments would cancel here, and leave the root of their rounding: 1e-8 of the loss."""
    sizes = np.linspace(1.0, 1e6, 1000)
    same = DocumentSums(loss=sizes / 3, tokens=sizes, bits=sizes, num_bytes=sizes)
    found = same.loss_per_token
    assert found is not None
    assert found.stderr is not None
    assert found.stderr < 1e-16
