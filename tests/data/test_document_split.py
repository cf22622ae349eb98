"""The held-out split: a function of each document alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.data import Document, Position, Span, documents_of_split, is_held_out
from chomp.errors import DataError

fractions = st.floats(0.01, 0.99)
# Plain data, of which the tests make documents: checked types draw random numbers, which
# hypothesis forbids inside its strategies.
contents = st.lists(st.tuples(st.text(), st.none() | st.text(max_size=2)), max_size=20)


def documents_of(contents: list[tuple[str, str | None]]) -> list[Document]:
    return [
        Document(id=str(number), text=text, split_key=key)
        for number, (text, key) in enumerate(contents)
    ]


@given(contents, fractions)
def test_every_document_is_on_exactly_one_side_and_in_order(contents, fraction):
    found = documents_of(contents)
    train = list(documents_of_split(found, "train", fraction))
    validation = list(documents_of_split(found, "validation", fraction))
    assert train == [document for document in found if not is_held_out(document, fraction)]
    assert validation == [document for document in found if is_held_out(document, fraction)]


@given(st.text(), st.text(), st.text(), fractions)
def test_equal_texts_and_equal_keys_are_on_one_side(text, other, key, fraction):
    first, second = Document(id="a", text=text), Document(id="b", text=text)
    assert is_held_out(first, fraction) == is_held_out(second, fraction)
    first = Document(id="a", text=text, split_key=key)
    second = Document(id="b", text=other, split_key=key)
    assert is_held_out(first, fraction) == is_held_out(second, fraction)


@given(st.text(), fractions, fractions)
def test_a_larger_fraction_only_adds_to_what_is_held_out(text, one, another):
    document = Document(id="a", text=text)
    smaller, larger = sorted((one, another))
    assert is_held_out(document, smaller) <= is_held_out(document, larger)


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.3, 0.9])
def test_about_the_asked_fraction_is_held_out(fraction):
    count = 2000
    held_out = sum(is_held_out(Document(id="", text=f"no. {i}"), fraction) for i in range(count))
    # Six standard deviations: by chance once in 500 million.
    assert abs(held_out - count * fraction) < 6 * (count * fraction * (1 - fraction)) ** 0.5
    # A text that UTF-8 cannot hold has a side too.
    assert is_held_out(Document(id="a", text="\ud800"), fraction) in (True, False)


@given(st.lists(st.integers(0, 200), max_size=4), fractions)
def test_equal_ids_are_on_one_side_whatever_their_width(ids, fraction):
    sides = {
        is_held_out(Document(id=str(dtype), ids=np.array(ids, dtype)), fraction)
        for dtype in (np.uint8, np.int16, np.uint32, np.int64)
    }
    assert len(sides) == 1


@given(st.text(max_size=5), st.text(max_size=5), fractions)
def test_a_conversation_is_on_the_side_of_its_text(start, end, fraction):
    talk = Document(id="a", spans=(Span(start, False), Span(end, True)))
    assert is_held_out(talk, fraction) == is_held_out(Document(id="b", text=start + end), fraction)


def test_conversations_and_ids_fall_on_both_sides():
    talks = [Document(id="a", spans=(Span(str(n), True),)) for n in range(100)]
    rows = [Document(id="a", ids=np.array([n])) for n in range(100)]
    for documents in (talks, rows):
        assert {is_held_out(document, 0.5) for document in documents} == {True, False}


def test_a_document_is_empty_without_anything_to_learn_from():
    empty = [
        Document(id="a"),
        Document(id="a", text=" \n\t\u3000"),
        Document(id="a", ids=np.array([], np.int32)),
        Document(id="a", spans=(Span("", True), Span(" ", False))),
    ]
    full = [
        Document(id="a", text=" x"),
        Document(id="a", ids=np.array([0])),
        Document(id="a", spans=(Span(" ", True), Span("x", False))),
    ]
    assert [document.is_empty for document in empty + full] == [True] * 4 + [False] * 3


def test_documents_are_equal_by_their_numbers_too():
    one, same, other = (Document(id="a", ids=np.array(ids)) for ids in ([1, 2], [1, 2], [1, 3]))
    assert one == same != other
    assert hash(one) == hash(same)
    weights = np.ones(2, np.float32)
    assert one != Document(id="a", ids=np.array([1, 2]), loss_weights=weights)
    assert one != Document(id="a", text="1 2")
    assert one != "a"


def test_a_document_has_one_content():
    with pytest.raises(DataError) as caught:
        Document(id="a:1", text="x", ids=np.array([1]))
    assert "a:1" in caught.value.given
    with pytest.raises(DataError) as caught:
        Document(id="a:1", text="x", spans=(Span("x", True),))
    assert "a:1" in caught.value.given


def test_positions_are_ordered_by_part_and_then_by_record():
    positions = [Position(), Position(0, 7), Position(1), Position(part=1, record=1), Position(2)]
    assert sorted(reversed(positions)) == positions
