"""Packed rows: every piece once, no row overfull, and as few rows as best fit makes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import PackingRule, cut_documents, pack, pack_documents

law = settings(max_examples=150, deadline=None)
row_lengths = st.integers(1, 40)
document_bounds = st.integers(1, 6)
document_lengths = st.lists(st.integers(0, 100), max_size=60).map(lambda n: np.asarray(n, np.int64))


@st.composite
def packings(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    row_len = draw(row_lengths)
    # Few distinct lengths as well as many: equal ones are placed as a group.
    lengths = st.integers(1, row_len) | st.sampled_from([1, -(-row_len // 3), -(-row_len // 2)])
    pieces = draw(st.lists(lengths, max_size=80))
    return np.asarray(pieces, np.int64), row_len, draw(document_bounds)


def rows_of(lengths: np.ndarray, row_len: int, max_documents: int) -> list[list[int]]:
    order, counts = pack(lengths, row_len, max_documents)
    return [row.tolist() for row in np.split(order, np.cumsum(counts))[:-1]]


def placed_one_by_one(lengths: np.ndarray, row_len: int, max_documents: int) -> list[list[int]]:
    """Best-fit decreasing as a textbook has it: rows as lists of pieces."""
    rows: list[list[int]] = []
    for piece in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        room = [row_len - sum(lengths[i] for i in row) for row in rows]
        fits = [
            (room[r], max_documents - len(rows[r]), r)
            for r in range(len(rows))
            if room[r] >= lengths[piece] and len(rows[r]) < max_documents
        ]
        if fits:
            rows[min(fits)[2]].append(piece)
        else:
            rows.append([piece])
    return rows


def assert_filled_as_one_by_one(lengths: np.ndarray, row_len: int, max_documents: int) -> None:
    # Rows alike in room and places are interchangeable, so what must agree is how rows are filled.
    expected = placed_one_by_one(lengths, row_len, max_documents)
    found = rows_of(lengths, row_len, max_documents)
    assert sorted((lengths[row].sum(), len(row)) for row in found) == sorted(
        (lengths[row].sum(), len(row)) for row in expected
    )


def first_fit_decreasing(lengths: np.ndarray, row_len: int, max_documents: int) -> int:
    """How many rows first fit makes of the same pieces."""
    room, places = np.empty(0, np.int64), np.empty(0, np.int64)
    for length in np.sort(lengths)[::-1]:
        fits = np.flatnonzero((room >= length) & (places > 0))
        if len(fits) == 0:
            room, places = np.append(room, row_len), np.append(places, max_documents)
            fits = np.asarray([len(room) - 1])
        room[fits[0]] -= length
        places[fits[0]] -= 1
    return len(room)


def web_lengths(count: int, seed: int = 0) -> np.ndarray:
    lengths = np.random.default_rng(seed).lognormal(np.log(400), 1.0, count)
    return np.maximum(lengths, 1).astype(np.int64)


@law
@given(packings())
def test_every_piece_is_in_exactly_one_row_and_no_row_is_overfull(packing):
    lengths, row_len, max_documents = packing
    rows = rows_of(*packing)
    assert sorted(piece for row in rows for piece in row) == list(range(len(lengths)))
    for row in rows:
        assert 1 <= len(row) <= max_documents
        assert lengths[row].sum() <= row_len


@law
@given(packings())
def test_rows_are_filled_as_by_best_fit_decreasing_one_piece_at_a_time(packing):
    lengths, row_len, max_documents = packing
    assert_filled_as_one_by_one(lengths, row_len, max_documents)


@pytest.mark.parametrize("seed", range(12))
def test_rows_that_become_alike_are_all_used_again(seed: int):
    # Many pieces of few lengths: rows reach the same room in different ways.
    random = np.random.default_rng(seed)
    row_len, max_documents = int(random.integers(10, 40)), int(random.integers(3, 9))
    lengths = random.integers(1, row_len // 2 + 1, 200)
    assert_filled_as_one_by_one(lengths, row_len, max_documents)


@law
@given(packings())
def test_rows_read_forward_and_stand_in_the_order_of_their_first_pieces(packing):
    rows = rows_of(*packing)
    assert all(row == sorted(row) for row in rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


@pytest.mark.parametrize(("seed", "max_documents"), [(0, 64), (1, 8), (2, 3)])
def test_rows_of_web_lengths_are_as_full_as_those_of_first_fit(seed: int, max_documents: int):
    pieces = cut_documents(web_lengths(2000, seed), 2048, "split")[2]
    num_rows = len(pack(pieces, 2048, max_documents)[1])
    assert num_rows <= 1.002 * first_fit_decreasing(pieces, 2048, max_documents)
    assert max_documents < 64 or pieces.sum() / (num_rows * 2048) > 0.99


def test_a_plan_is_the_same_every_time_and_for_any_integer_type():
    lengths = cut_documents(web_lengths(5000), 2048, "split")[2]
    first, again = pack(lengths, 2048, 16), pack(lengths.astype(np.int32), 2048, 16)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])


def test_nothing_to_pack_makes_no_rows():
    assert rows_of(np.zeros(0, np.int64), 10, 4) == []


@law
@given(document_lengths, row_lengths)
def test_splitting_keeps_every_token_once_in_order(lengths: np.ndarray, row_len: int):
    pieces = document, _, sizes = cut_documents(lengths, row_len, "split")
    tokens = [
        (document, token)
        for document, offset, length in zip(*pieces, strict=True)
        for token in range(offset, offset + length)
    ]
    assert tokens == [(d, t) for d, length in enumerate(lengths) for t in range(length)]
    # Only the last piece of a document may be short.
    assert all(sizes[:-1][np.diff(document) == 0] == row_len)


@law
@given(document_lengths, row_lengths)
def test_truncating_keeps_beginnings_and_dropping_keeps_short_documents(
    lengths: np.ndarray, row_len: int
):
    document, offset, length = cut_documents(lengths, row_len, "truncate")
    assert document.tolist() == np.flatnonzero(lengths).tolist()
    assert length.tolist() == [min(n, row_len) for n in lengths if n]
    assert not offset.any()
    document, offset, length = cut_documents(lengths, row_len, "drop")
    assert document.tolist() == [i for i, n in enumerate(lengths) if 0 < n <= row_len]
    assert length.tolist() == [n for n in lengths if 0 < n <= row_len]
    assert not offset.any()


@law
@given(document_lengths, row_lengths, document_bounds, st.sampled_from(["split", "truncate"]))
def test_documents_are_packed_as_the_pieces_they_are_cut_into(
    lengths: np.ndarray, row_len: int, max_documents: int, long_documents
):
    rule = PackingRule(row_len=row_len, max_documents=max_documents, long_documents=long_documents)
    packed = pack_documents(lengths, rule)
    whole = cut_documents(lengths, row_len, long_documents)
    pieces = zip(packed.document, packed.offset, packed.length, strict=True)
    assert sorted(pieces) == list(zip(*whole, strict=True))
    ends = np.cumsum(packed.pieces_per_row)
    filled = np.diff(np.cumsum([0, *packed.length])[[0, *ends]])
    assert (filled <= row_len).all()
    assert (packed.pieces_per_row <= max_documents).all()
    assert packed.long_documents == (lengths > row_len).sum()
    assert packed.dropped_tokens == lengths.sum() - whole[2].sum()
