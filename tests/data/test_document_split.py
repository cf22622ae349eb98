"""The held-out split: a function of each document alone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chomp.data import Document, documents_of_split, is_held_out

fractions = st.floats(0.01, 0.99)
documents = st.lists(
    st.builds(
        Document, id=st.text(max_size=3), text=st.text(), split_key=st.none() | st.text(max_size=2)
    ),
    max_size=20,
)


@given(documents, fractions)
def test_every_document_is_on_exactly_one_side_and_in_order(found, fraction):
    train = list(documents_of_split(found, "train", fraction))
    validation = list(documents_of_split(found, "validation", fraction))
    assert train == [document for document in found if not is_held_out(document, fraction)]
    assert validation == [document for document in found if is_held_out(document, fraction)]


@given(documents, fractions, st.randoms())
def test_the_side_of_a_document_does_not_depend_on_the_others(found, fraction, random):
    shuffled = random.sample(found, len(found) // 2)
    expected = [document for document in shuffled if is_held_out(document, fraction)]
    assert list(documents_of_split(shuffled, "validation", fraction)) == expected


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


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([0.01, 0.05, 0.3, 0.9]), st.integers(0, 10**9))
def test_about_the_asked_fraction_is_held_out(fraction, salt):
    count = 2000
    held_out = sum(is_held_out(Document(id="", text=f"{salt} {i}"), fraction) for i in range(count))
    # Six standard deviations: by chance once in 500 million.
    assert abs(held_out - count * fraction) < 6 * (count * fraction * (1 - fraction)) ** 0.5


def test_texts_that_utf8_cannot_hold_have_a_side_too():
    assert is_held_out(Document(id="a", text="\ud800"), 0.5) in (True, False)
