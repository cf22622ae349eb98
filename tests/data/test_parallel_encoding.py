"""Documents to tokens on all cores: the same batches, in the same order, as on one."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from worker_processes import needs_proc, workers_of

from chomp.data import Document, LocatedDocument, Position, encode_documents, encode_in_order
from chomp.data.store import build as encoding
from chomp.errors import DataError
from chomp.tokenize import ByteTokenizer, UnencodableText, save_tokenizer

BYTES = ByteTokenizer()


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


def test_with_one_process_everything_is_encoded_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encoding, "_CHARACTERS_ENCODED_HERE", 1)
    documents = located([f"text {i}" for i in range(2500)])
    batches = [batch for batch, _ in encode_in_order(documents, BYTES, "nowhere", processes=1)]
    assert [len(batch) for batch in batches] == [1024, 1024, 452]
    assert [item for batch in batches for item in batch] == documents


def test_batches_are_cut_by_documents_or_characters(monkeypatch: pytest.MonkeyPatch):
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


@pytest.mark.usefixtures("_small")
def test_processes_give_the_same_batches_in_the_same_order(folder: str):
    # Long documents first and last in turn: what is asked later is often ready earlier.
    documents = located([f"{i} " * (500 if i % 9 == 0 else i % 5) for i in range(200)])
    alone = list(encode_in_order(documents, BYTES, folder, processes=1))
    assert len(alone) > 40
    together = list(encode_in_order(documents, BYTES, folder, processes=2))
    assert [batch for batch, _ in together] == [batch for batch, _ in alone]
    for (batch, one), (_, other) in zip(alone, together, strict=True):
        expected = encode_documents([item.document for item in batch], BYTES)
        for tokens in (one, other):
            np.testing.assert_array_equal(tokens.ids, expected.ids)
            np.testing.assert_array_equal(tokens.lengths, expected.lengths)
            assert tokens.ids.dtype == expected.ids.dtype
            assert tokens.loss_weights is None


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


@needs_proc
@pytest.mark.usefixtures("_small")
def test_a_killed_process_is_an_error_and_the_others_end(folder: str):
    batches = encode_in_order(located(["x" * 150] * 200), BYTES, folder, processes=2)
    for _ in range(3):
        next(batches)
    os.kill(workers_of(folder)[0], signal.SIGKILL)
    with pytest.raises(DataError) as caught:
        list(batches)
    assert "exited with code -9" in caught.value.given
    assert workers_of(folder) == []
