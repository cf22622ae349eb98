"""Text files as documents."""

from pathlib import Path

import pytest

from chomp.data import TextSource, source_documents, source_fingerprint
from chomp.errors import ConfigError, DataError


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for name in ["b", "a", "c"]:
        (tmp_path / f"{name}.txt").write_text(f"text {name}\n")
    return tmp_path


def source(*paths: Path) -> TextSource:
    return TextSource(paths=tuple(map(str, paths)))


def test_each_file_is_a_document_in_the_order_of_names(texts: Path):
    documents = list(source_documents(source(texts / "*.txt")))
    assert [document.text for document in documents] == ["text a\n", "text b\n", "text c\n"]
    assert documents[0].id == str(texts / "a.txt")


def test_patterns_keep_their_order_and_a_file_counts_once(texts: Path):
    documents = source_documents(source(texts / "c.txt", texts / "*.txt", texts / "a.txt"))
    assert [document.text[5] for document in documents] == ["c", "a", "b"]


def test_text_is_taken_as_it_is(tmp_path: Path):
    raw = "\ufeffline\r\nüñí\0code \u2028 end".encode()
    (tmp_path / "a.txt").write_bytes(raw)
    (document,) = source_documents(source(tmp_path / "a.txt"))
    assert document.text.encode() == raw


def test_blank_files_are_no_documents(texts: Path):
    (texts / "a.txt").write_text(" \n\t")
    (texts / "b.txt").write_text("")
    assert len(list(source_documents(source(texts / "*.txt")))) == 1


def test_the_fingerprint_is_of_the_content_and_not_of_the_names(texts: Path):
    before = source_fingerprint(source(texts / "*.txt"))
    (texts / "c.txt").rename(texts / "d.txt")
    assert source_fingerprint(source(texts / "*.txt")) == before


@pytest.mark.parametrize("content", ["text A\n", "text a", "", "text a\ntext b\n"])
def test_any_change_of_content_changes_the_fingerprint(texts: Path, content: str):
    before = source_fingerprint(source(texts / "*.txt"))
    (texts / "a.txt").write_text(content)
    assert source_fingerprint(source(texts / "*.txt")) != before


def test_moving_text_from_one_file_to_the_next_changes_the_fingerprint(texts: Path):
    before = source_fingerprint(source(texts / "*.txt"))
    (texts / "a.txt").write_text("text")
    (texts / "b.txt").write_text(" a\ntext b\n")
    assert source_fingerprint(source(texts / "*.txt")) != before


def test_a_pattern_without_files_is_named(texts: Path):
    for read in (source_fingerprint, lambda given: list(source_documents(given))):
        with pytest.raises(DataError) as caught:
            read(source(texts / "*.txt", texts / "*.md"))
        assert "/*.md'" in caught.value.given


def test_a_file_that_is_not_utf8_is_named_with_the_place(texts: Path):
    (texts / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError) as caught:
        list(source_documents(source(texts / "*.txt")))
    assert "b.txt" in caught.value.given
    assert "byte 3" in caught.value.given


def test_a_source_without_paths_is_refused():
    with pytest.raises(ConfigError) as caught:
        TextSource(paths=())
    assert "paths" in caught.value.given
