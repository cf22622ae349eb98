"""Which document a token belongs to: the same answers as counting every token would give."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data.store.array import FlatArray, FlatArrayWriter
from chomp.data.store.store import DOCUMENTS_PER_MARK, DocumentIndex, marks_of

M = DOCUMENTS_PER_MARK
RANDOM = np.random.default_rng(0)
# Numbers of documents around marks, and lengths from one token to more than between two marks.
LENGTHS = {
    "one document of one token": [1],
    "one long document": [700],
    "one document less than a mark": RANDOM.integers(1, 4, M - 1),
    "documents up to a mark": RANDOM.integers(1, 4, M),
    "one document behind a mark": RANDOM.integers(1, 4, M + 1),
    "single tokens over two marks": np.ones(2 * M + 1, np.int64),
    "long and short ones": np.where(RANDOM.random(3 * M) < 0.9, 1, 40),
    "a long one over each mark": np.where(np.arange(2 * M + 9) % M == M - 1, 2000, 1),
}


class Case:
    """Documents, their index, and for every token the document that owns it."""

    def __init__(self, path: Path, lengths: np.ndarray) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.ends = np.cumsum(self.lengths)
        self.total = int(self.ends[-1])
        # The place behind the last token belongs to nobody: to the document after the last.
        self.owner = np.append(np.repeat(np.arange(len(lengths)), lengths), len(lengths))
        writer = FlatArrayWriter(str(path), "int64", shard_len=512, chunk_len=64, is_new=True)
        writer.write(0, self.ends)
        array = FlatArray.open(str(path))
        self.marks = marks_of(array)
        self.index = DocumentIndex(array, self.marks)


@pytest.fixture(scope="module", params=LENGTHS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("index") / "ends", LENGTHS[request.param])


def assert_beginnings_are_right(case: Case, windows: list[tuple[int, int]]) -> None:
    starts, lengths = np.asarray(windows, np.int64).reshape(-1, 2).T
    first, window, place = case.index.beginnings(starts, lengths)
    assert first.tolist() == case.owner[starts].tolist()
    expected = [
        (number, token - start)
        for number, (start, length) in enumerate(windows)
        for token in range(start + 1, start + length)
        if case.owner[token] != case.owner[token - 1]
    ]
    assert list(zip(window.tolist(), place.tolist(), strict=True)) == expected


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_beginnings_are_what_counting_tokens_gives(case: Case, data: st.DataObject):
    # Half of all starts are where something happens: at documents, and at those around marks.
    marked = [0, case.total, *case.marks.tolist()]
    eventful = st.sampled_from([*marked, *case.ends[:: max(len(case.ends) // 8, 1)].tolist()])
    near = st.builds(lambda place, off: place + off, eventful, st.integers(-2, 2))
    starts = (st.integers(0, case.total) | near).map(lambda s: min(max(s, 0), case.total))
    lengths = st.integers(0, 5) | st.integers(0, case.total)
    windows = st.lists(st.tuples(starts, lengths), max_size=6)
    cut = [(start, min(n, case.total - start)) for start, n in data.draw(windows)]
    assert_beginnings_are_right(case, cut)


def test_beginnings_around_every_mark_and_at_both_ends(case: Case):
    places = {0, case.total, *case.marks.tolist()}
    starts = {place + off for place in places for off in (-1, 0, 1)}
    windows = [
        (start, length)
        for start in sorted(starts)
        for length in (0, 1, 2, 3)
        if start >= 0 and start + length <= case.total
    ]
    assert_beginnings_are_right(case, windows)


def test_the_whole_line_holds_every_beginning_but_the_first(case: Case):
    assert_beginnings_are_right(case, [(0, case.total)])


def test_spans_are_where_documents_begin_and_end(case: Case):
    begins = case.ends - case.lengths
    spans = [case.index.span(document) for document in range(0, len(case.ends), 3)]
    assert spans == list(zip(begins[::3].tolist(), case.ends[::3].tolist(), strict=True))
    last = len(case.ends) - 1
    assert case.index.span(last) == (begins[last], case.total)


def test_ends_of_a_run_of_documents_come_back(case: Case):
    assert len(case.index) == len(case.ends)
    half = len(case.ends) // 2
    np.testing.assert_array_equal(case.index.ends(half, len(case.ends)), case.ends[half:])
    assert case.index.ends(half, half).tolist() == []


def test_marks_are_every_256th_end(case: Case):
    assert case.marks.tolist() == case.ends[M - 1 :: M].tolist()
