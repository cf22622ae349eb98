"""Documents as tokens: ends and beginnings, and the weight of every position."""

import pickle
from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chomp.data import Document, EncodedBatch, Span, encode_documents
from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer, UnencodableText, train_bpe

EOS, BOS = 256, 299


class BeginningTokenizer(ByteTokenizer):
    """Bytes with a BOS; ids as arrays, which is how processes send them."""

    vocab_size = 300
    bos_id = BOS

    def encode_batch(self, texts: Sequence[str]) -> list[Sequence[int]]:
        return [array("I", ids) for ids in super().encode_batch(texts)]


BYTES = ByteTokenizer()
TOKENIZERS = {"plain": BYTES, "with BOS": BeginningTokenizer()}
both = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=list(TOKENIZERS))

texts = st.text(st.characters(codec="utf-8"), max_size=5)
weights = st.floats(0, 8, width=32)
# Plain data, of which the tests make documents: checked shapes draw random numbers, which
# hypothesis forbids inside its strategies.
contents = st.one_of(
    texts,
    st.lists(st.tuples(texts, st.booleans()), min_size=1, max_size=4),
    st.lists(st.integers(0, EOS), max_size=5).map(np.array),
    st.lists(st.tuples(st.integers(0, EOS), weights), max_size=5).map(tuple),
)


def document_of(content: object) -> Document:
    """A text, pairs as spans, an array as ids, or a tuple of ids with their weights."""
    if isinstance(content, str):
        return Document(id="a", text=content)
    if isinstance(content, list):
        return Document(id="a", spans=tuple(Span(*pair) for pair in content))
    if isinstance(content, np.ndarray):
        return Document(id="a", ids=content.astype(np.int32))
    return Document(
        id="a",
        ids=np.array([pair[0] for pair in content], np.uint16),
        loss_weights=np.array([pair[1] for pair in content], np.float32),
    )


def expected_tokens(document: Document, bos_id: int | None) -> list[int]:
    if document.ids is not None:
        ids = document.ids.tolist()
        return ids if ids[-1:] == [EOS] else [*ids, EOS]
    text = document.text or "".join(span.text for span in document.spans)
    return [*([] if bos_id is None else [bos_id]), *text.encode(), EOS]


def expected_weights(document: Document, bos_id: int | None) -> list[float]:
    """By walking over the tokens: each position has the weight of the token after it."""
    tokens = expected_tokens(document, bos_id)
    if document.loss_weights is not None:
        given = document.loss_weights.tolist()
        return given + [0.0] * (len(tokens) - len(given))
    if not document.spans:
        return [1.0] * len(tokens)
    is_trained = [] if bos_id is None else [False]
    for span in document.spans:
        is_trained += [span.is_trained] * len(span.text.encode())
    is_trained.append(document.spans[-1].is_trained)  # the EOS
    return [float(flag) for flag in is_trained[1:]] + [0.0]


@both
@given(contents=st.lists(contents, max_size=6))
def test_a_batch_is_its_documents_one_after_the_other(tokenizer, contents):
    documents = list(map(document_of, contents))
    found = encode_documents(documents, tokenizer)
    expected = [expected_tokens(document, tokenizer.bos_id) for document in documents]
    assert found.lengths.tolist() == list(map(len, expected))
    assert found.ids.tolist() == list(chain(*expected))
    has_weights = any(document.spans or document.loss_weights is not None for document in documents)
    if has_weights:
        wanted = [expected_weights(document, tokenizer.bos_id) for document in documents]
        assert found.loss_weights.tolist() == list(chain(*wanted))
    else:
        assert found.loss_weights is None


@both
def test_a_conversation_as_a_table(tokenizer):
    document = Document(
        id="a", spans=(Span("u", False), Span("A", True), Span("\n", True), Span("u", False))
    )
    found = encode_documents([document], tokenizer)
    rows = {ord("u"): 1, ord("A"): 1, ord("\n"): 0}
    table = [(BOS, 0)] if tokenizer.bos_id else []
    # "u" predicts the trained "A", "A" the trained line end, which predicts the masked "u".
    table += [*rows.items(), (ord("u"), 0), (EOS, 0)]
    assert list(zip(found.ids.tolist(), found.loss_weights.tolist(), strict=True)) == table


@both
def test_the_end_of_a_trained_turn_is_trained_and_predicts_nothing(tokenizer):
    document = Document(id="a", spans=(Span("u", False), Span("A", True)))
    found = encode_documents([document], tokenizer)
    assert found.ids.tolist()[-3:] == [ord("u"), ord("A"), EOS]
    assert found.loss_weights.tolist()[-3:] == [1, 1, 0]


def test_an_end_that_is_there_is_not_put_twice():
    weights = np.array([1, 0.5, 0.25], np.float32)
    found = encode_documents(
        [Document(id="a", ids=np.array([7, 8, EOS]), loss_weights=weights)], BYTES
    )
    assert found.ids.tolist() == [7, 8, EOS]
    assert found.loss_weights.tolist() == [1, 0.5, 0.25]
    weights = np.array([1, 0.5], np.float32)
    found = encode_documents([Document(id="a", ids=np.array([7, 8]), loss_weights=weights)], BYTES)
    assert found.loss_weights.tolist() == [1, 0.5, 0]  # 8 is what predicts the end


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_ids_of_any_width_are_taken(dtype):
    found = encode_documents([Document(id="a", ids=np.array([0, 127], dtype))], BYTES)
    assert found.ids.tolist() == [0, 127, EOS]
    assert found.ids.dtype == np.uint16  # the smallest that holds 256


@pytest.mark.parametrize("bad", [-1, 257, 2**31, 2**40])
def test_ids_that_the_tokenizer_does_not_have_are_named(bad):
    documents = [Document(id="a", text="a"), Document(id="b.npy:3", ids=np.array([1, bad, 2]))]
    with pytest.raises(DataError) as caught:
        encode_documents(documents, BYTES)
    assert f"document b.npy:3 has the id {bad} at 1" in caught.value.given
    assert "0 to 256" in caught.value.allowed


@both
def test_a_text_that_cannot_be_written_is_named_by_its_document(tokenizer):
    spans = (Span("x", False), Span("y\ud800", True))
    documents = [
        Document(id="a:1", spans=(Span("u", False), Span("A", True))),
        Document(id="a:2", ids=np.array([1])),
        Document(id="a:3", spans=spans),
    ]
    with pytest.raises(UnencodableText) as caught:
        encode_documents(documents, tokenizer)
    assert "document a:3: character 1" in caught.value.given


def test_spans_are_tokenized_each_by_itself():
    tokenizer = train_bpe(["abab abab"] * 50, vocab_size=270)
    (whole,), (half,) = (tokenizer.encode_batch([text]) for text in ("abab", "ab"))
    document = Document(id="a", spans=(Span("ab", False), Span("ab", True)))
    found = encode_documents([document, Document(id="b", text="abab")], tokenizer)
    assert whole != half * 2
    assert found.ids.tolist() == [*half, *half, tokenizer.eos_id, *whole, tokenizer.eos_id]


def test_nothing_is_an_empty_batch():
    found = encode_documents([], BYTES)
    assert (len(found.ids), len(found.lengths), found.loss_weights) == (0, 0, None)


def test_a_batch_travels_between_processes():
    found = encode_documents([Document(id="a", spans=(Span("u", False), Span("A", True)))], BYTES)
    again = pickle.loads(pickle.dumps(found))
    assert isinstance(again, EncodedBatch)
    for name in ("ids", "lengths", "loss_weights"):
        assert np.array_equal(getattr(again, name), getattr(found, name))
        assert getattr(again, name).dtype == getattr(found, name).dtype
