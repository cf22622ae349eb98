"""Documents as tokens: ends and beginnings, the weight of every position, on one core or all."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_processes import needs_proc, workers_of

from chomp.data import (
    Document,
    LocatedDocument,
    Position,
    Span,
    encode_documents,
    encode_in_order,
)
from chomp.data.store import build as encoding
from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer, UnencodableText, save_tokenizer, train_bpe

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


# --- on all cores ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> str:
    save_tokenizer(BYTES, str(tmp_path / "tokenizer"))
    return str(tmp_path / "tokenizer")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few documents, and processes after the first hundred characters."""
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", 4)
    monkeypatch.setattr(encoding, "_BATCH_CHARACTERS", 100)
    monkeypatch.setattr(encoding, "_CHARACTERS_ENCODED_HERE", 100)


def located(texts: Sequence[str]) -> list[LocatedDocument]:
    return [
        LocatedDocument(Position(0, i), Document(id=f"memory:{i}", text=text))
        for i, text in enumerate(texts)
    ]


def test_small_sources_are_encoded_here_without_a_process():
    # A folder that is not there would end a process at once.
    documents = located(["some", "", "small text"])
    ((batch, tokens),) = encode_in_order(documents, BYTES, "not a folder", processes=8)
    assert batch == documents
    np.testing.assert_array_equal(tokens.ids, [*b"some", 256, 256, *b"small text", 256])
    assert tokens.lengths.tolist() == [5, 1, 11]
    assert list(encode_in_order([], BYTES, "not a folder", processes=8)) == []


def test_batches_are_cut_by_documents_or_characters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "_CHARACTERS_ENCODED_HERE", 1)  # one process: all of it here
    monkeypatch.setattr(encoding, "_BATCH_DOCUMENTS", 3)
    monkeypatch.setattr(encoding, "_BATCH_CHARACTERS", 10)
    ids = Document(id="came tokenized", ids=np.arange(12))
    documents = [
        *located(["a", "b", "c", "d", "e" * 9, "f" * 40, "g"]),
        LocatedDocument(Position(0, 7), ids),
        *located(["h"]),
    ]
    batches = encode_in_order(documents, BYTES, "nowhere", processes=1)
    assert [len(batch) for batch, _ in batches] == [3, 2, 1, 2, 1]


@needs_proc
@pytest.mark.usefixtures("_small")
def test_documents_are_read_only_as_far_ahead_as_there_is_work_and_leaving_ends_it(folder: str):
    read = []

    def documents() -> Iterator[LocatedDocument]:
        for item in located(["x" * 60] * 200):
            read.append(item)
            yield item

    batches = encode_in_order(documents(), BYTES, folder, processes=2)
    for _ in range(5):
        next(batches)
    # Two documents a batch: five were given, at most four are on their way.
    assert 10 <= len(read) <= 18
    assert len(workers_of(folder)) == 2
    batches.close()
    assert workers_of(folder) == []


@needs_proc
@pytest.mark.usefixtures("_small")
def test_an_error_of_a_document_or_of_the_source_comes_out_and_ends_the_processes(folder: str):
    def documents() -> Iterator[LocatedDocument]:
        yield from located(["x" * 150] * 6)
        raise DataError("the source is broken")

    given = []
    with pytest.raises(DataError) as caught:
        given += [batch for batch, _ in encode_in_order(documents(), BYTES, folder, processes=2)]
    assert "the source is broken" in caught.value.given
    assert workers_of(folder) == []
    broken = located(["x" * 150] * 6 + ["half a pair: \ud83e"])
    with pytest.raises(UnencodableText) as caught:
        list(encode_in_order(broken, BYTES, folder, processes=2))
    assert "document memory:6: character 13" in caught.value.given
    assert workers_of(folder) == []
