"""Rows over a store: training rows lie side by side, evaluation rows score each token once."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from number_stores import EOS, counted_documents, line_of, write_store

from chomp.data import ConcatRows, GrugLmExample, TokenStore
from chomp.errors import ConfigError, DataError

document_lengths = st.lists(st.integers(1, 25), min_size=1, max_size=8)
# Every row length on one store: writing it is what takes time.
ROW_LENGTHS = (2, 3, 4, 7, 12, 20)
law = settings(max_examples=12, deadline=None)


@contextmanager
def store_of(lengths: list[int]) -> Iterator[TokenStore]:
    with tempfile.TemporaryDirectory() as folder:
        yield write_store(Path(folder) / "store", counted_documents(lengths))


def all_rows(rows: ConcatRows) -> tuple[np.ndarray, np.ndarray]:
    found = rows.read(np.arange(rows.num_rows))
    assert found.loss_weights is None
    return found.tokens, found.segment_ids


def scored_tokens(rows: ConcatRows, **rules: bool) -> list[int]:
    tokens, segments = all_rows(rows)
    example = GrugLmExample.from_rows(tokens, segments, eos_id=EOS, **rules)
    scored: list[int] = tokens[:, 1:][example.loss_weight[:, :-1] == 1].tolist()
    return scored


@law
@given(document_lengths)
def test_training_rows_lie_side_by_side_and_only_the_rest_is_dropped(lengths):
    line = line_of(counted_documents(lengths))
    with store_of(lengths) as store:
        for seq_len in (n for n in ROW_LENGTHS if n <= len(line)):
            tokens, segments = all_rows(ConcatRows(store, seq_len))
            assert tokens.dtype == segments.dtype == np.int32
            assert tokens.ravel().tolist() == line[: len(line) // seq_len * seq_len]
            assert segments.min() >= 0


@law
@given(document_lengths)
def test_evaluation_scores_every_token_once_except_where_documents_start(lengths):
    documents = counted_documents(lengths)
    expected = Counter(token for document in documents for token in [*document, EOS][1:])
    document_of = np.repeat(np.arange(len(lengths)), np.asarray(lengths) + 1)
    with store_of(lengths) as store:
        for seq_len in ROW_LENGTHS:
            rows = ConcatRows(store, seq_len, is_eval=True)
            assert Counter(scored_tokens(rows)) == expected
            # Whose they are follows from the document that each row begins in.
            firsts = rows.read(np.arange(rows.num_rows)).first_documents
            starts = np.arange(rows.num_rows) * (seq_len - 1)
            assert firsts.tolist() == document_of[starts].tolist()
            # Unmasked, only the very first token has nothing before it.
            line = line_of(documents)
            assert scored_tokens(rows, mask_boundary_loss=False) == line[1:]


@law
@given(document_lengths, st.booleans())
def test_segments_count_documents_from_0_in_each_row_and_padding_is_the_end(lengths, is_eval):
    with store_of([*lengths, 20]) as store:
        for seq_len in ROW_LENGTHS:
            rows = ConcatRows(store, seq_len, is_eval=is_eval)
            for i, (row, ids) in enumerate(zip(*all_rows(rows), strict=True)):
                num_tokens = int((ids >= 0).sum())
                assert num_tokens == seq_len or (is_eval and i == rows.num_rows - 1)
                # An end belongs to the document it ends; the next token begins the next one.
                expected = np.cumsum([0, *(row[: num_tokens - 1] == EOS)])
                assert ids.tolist() == [*expected, *[-1] * (seq_len - num_tokens)]
                assert not row[num_tokens:].any()


def test_rows_are_read_in_the_order_asked_for_and_may_repeat(tmp_path: Path):
    rows = ConcatRows(write_store(tmp_path / "store", counted_documents([100])), 10)
    tokens = rows.read(np.asarray([7, 0, 7])).tokens
    assert tokens[:, 0].tolist() == [71, 1, 71]
    assert rows.read(np.asarray([], np.int64)).tokens.shape == (0, 10)


def test_a_row_as_long_as_the_store_is_one_row(tmp_path: Path):
    store = write_store(tmp_path / "store", counted_documents([9]))
    assert ConcatRows(store, 10).num_rows == 1
    assert ConcatRows(store, 10, is_eval=True).num_rows == 1
    assert ConcatRows(store, 100, is_eval=True).num_rows == 1


@pytest.mark.parametrize("is_eval", [False, True])
def test_rows_in_which_nothing_can_be_predicted_are_refused(tmp_path: Path, is_eval: bool):
    store = write_store(tmp_path / "store", counted_documents([9]))
    with pytest.raises(ConfigError) as caught:
        ConcatRows(store, 1, is_eval=is_eval)
    assert "rows of 1 tokens" in caught.value.given
    assert "2 tokens" in caught.value.allowed


@pytest.mark.parametrize("documents", [[], [[]]])
def test_a_store_with_nothing_to_predict_has_no_evaluation_row(tmp_path: Path, documents):
    rows = ConcatRows(write_store(tmp_path / "store", documents), 5, is_eval=True)
    assert rows.num_rows == 0
    assert rows.read(np.arange(0)).tokens.shape == (0, 5)
    assert rows.rows_with(0, 1) == []


def test_a_store_shorter_than_one_row_is_refused(tmp_path: Path):
    store = write_store(tmp_path / "store", counted_documents([8]))
    with pytest.raises(DataError) as caught:
        ConcatRows(store, 10)
    assert "9 tokens" in caught.value.given
    assert "rows of 10" in caught.value.given
