"""Training documents as prompts: the same from a store and from a stream, by their number."""

from pathlib import Path

import pytest
from number_stores import NUMBERS, counted_documents, number_data

from chomp.data import (
    LmComponentConfig,
    LmDataConfig,
    MemorySource,
    StreamConfig,
    TokenStore,
    TrainedTexts,
    is_held_out,
    source_documents,
)
from chomp.errors import DataError

LENGTHS = [3, 6, 2, 5]


def texts_of_store(folder: Path) -> TrainedTexts:
    # The other one has longer documents and the smaller part of the run.
    return TrainedTexts(
        number_data(folder, {"a": LENGTHS, "b": [9]}, {"a": 3.0, "b": 1.0}), NUMBERS
    )


def texts_of_stream(documents: tuple[str, ...], fraction: float = 1e-12) -> TrainedTexts:
    source = MemorySource(documents=documents)
    component = LmComponentConfig(source=source, stream=StreamConfig())
    data = LmDataConfig(components={"a": component}, validation_fraction=fraction)
    return TrainedTexts(data, NUMBERS)


def both(folder: Path) -> list[TrainedTexts]:
    written = [" ".join(map(str, ids)) for ids in counted_documents(LENGTHS)]
    return [texts_of_store(folder), texts_of_stream(tuple(written))]


def test_a_document_is_counted_around_and_the_next_long_enough_is_taken(tmp_path: Path):
    one, two, three, four = counted_documents(LENGTHS)
    for texts in both(tmp_path):
        assert [texts.prompt(2, number) for number in range(5)] == [
            each[:2] for each in (one, two, three, four, one)
        ]
        assert [texts.prompt(5, number) for number in range(4)] == [two[:5], two[:5], four, four]


def test_where_none_is_long_enough_a_document_is_all_there_is_of_it_without_its_end(tmp_path: Path):
    one, two, *_ = counted_documents(LENGTHS)
    for texts in both(tmp_path):
        assert [texts.prompt(7, number) for number in range(2)] == [one, two]


def test_no_held_out_document_of_a_stream_is_among_them():
    documents = tuple(f"{number} {number + 1}" for number in range(1, 200, 3))
    held_out = {
        document.text
        for document in source_documents(MemorySource(documents=documents))
        if is_held_out(document, 0.5)
    }
    texts = texts_of_stream(documents, 0.5)
    begun = {NUMBERS.decode(texts.prompt(2, number)) for number in range(50)}
    assert held_out
    assert begun <= set(documents) - held_out


def test_of_a_store_no_more_is_read_than_is_asked_for(tmp_path: Path, monkeypatch):
    read: list[int] = []
    whole = TokenStore.read

    def counted(store, starts, lengths):
        read.append(int(lengths.sum()))
        return whole(store, starts, lengths)

    monkeypatch.setattr(TokenStore, "read", counted)
    texts = texts_of_store(tmp_path)
    assert read == []
    assert texts.prompt(2, 1) == counted_documents(LENGTHS)[1][:2]
    assert read == [2]


def test_a_tail_is_the_last_tokens_before_the_end_of_the_same_document(tmp_path: Path):
    one, two, three, _ = counted_documents(LENGTHS)
    for texts in both(tmp_path):
        assert [texts.prompt(2, number, is_tail=True) for number in range(3)] == [
            each[-2:] for each in (one, two, three)
        ]
        assert texts.prompt(5, 0, is_tail=True) == two[-5:]
        assert texts.prompt(7, 0, is_tail=True) == one
        assert texts.prompt(3, 1, is_tail=True) == two[-3:]  # after more has been read


def test_a_longer_beginning_can_be_asked_for_later(tmp_path: Path):
    _, two, *_ = counted_documents(LENGTHS)
    for texts in both(tmp_path):
        assert [texts.prompt(size, 1) for size in (2, 5, 3)] == [two[:2], two[:5], two[:3]]


def test_documents_without_a_token_begin_nothing():
    with pytest.raises(DataError) as caught:
        texts_of_stream((" ",)).prompt(3)
    assert "no token" in caught.value.given
    assert "samples.max_tokens=0" in caught.value.fix
