"""The corpus every Python brings along, on the real standard library and on made-up ones."""

import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from chomp.data import (
    Document,
    EmbeddedSource,
    documents_of_split,
    embedded_documents,
    is_held_out,
    source_documents,
    source_fingerprint,
)
from chomp.errors import DataError

FRACTION = 0.05
LONG = "A docstring that is long enough to count as prose."
TOPICS = "topics = {'while': 'The while statement repeats.', 'assert': 'The assert statement.'}\n"


@pytest.fixture(scope="module")
def real() -> dict[str, list[Document]]:
    return {part: list(embedded_documents(part)) for part in ("code", "prose")}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a folder with the given files the interpreter's standard library."""

    def make(files: dict[str, str | bytes]) -> Path:
        for name, content in {"pydoc_data/topics.py": TOPICS, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        monkeypatch.setattr(
            sysconfig, "get_paths", lambda *args, **kwargs: {"stdlib": str(tmp_path)}
        )
        return tmp_path

    return make


def ids_of(part: str) -> list[str]:
    return [document.id for document in embedded_documents(part)]


def test_the_real_library_fills_both_splits_of_both_parts_with_distinct_texts(real):
    for documents in real.values():
        for split, at_least in {"train": 300, "validation": 10}.items():
            assert len(list(documents_of_split(documents, split, FRACTION))) >= at_least
        assert len({document.id for document in documents}) == len(documents)
        assert all(document.text.encode().strip() for document in documents)
    assert sum(len(document.text) for document in real["code"]) > 5_000_000
    assert sum(len(document.text) for document in real["prose"]) > 1_000_000
    texts = {document.id: document.text for document in real["prose"]}
    assert 'The "while" statement' in texts["topic/while"]


def test_docstrings_of_a_held_out_file_are_held_out_too(real):
    sides = {document.id: is_held_out(document, FRACTION) for document in real["code"]}
    docstrings = [document for document in real["prose"] if document.id.endswith("#docstrings")]
    assert len(docstrings) > 300
    for document in docstrings:
        assert is_held_out(document, FRACTION) == sides[document.id.removesuffix("#docstrings")]


def test_sources_are_code_and_their_docstrings_are_prose(library):
    library({"a.py": f'"""{LONG}"""\n\ndef f():\n    """{LONG} Of f."""\n', "sub/b.py": "x = 1\n"})
    assert ids_of("code") == ["a.py", "sub/b.py"]
    prose = {document.id: document.text for document in embedded_documents("prose")}
    assert prose == {
        "a.py#docstrings": f"{LONG}\n\n{LONG} Of f.",
        "topic/assert": "The assert statement.",
        "topic/while": "The while statement repeats.",
    }


def test_documents_come_in_the_order_of_their_paths_and_blank_ones_not_at_all(library):
    library({f"{name}.py": "x = 1\n" for name in ["b", "a/c", "a", "a/b", "B"]})
    library({"blank.py": " \n", "short.py": '"""Short."""\n'})
    assert ids_of("code") == ["B.py", "a.py", "a/b.py", "a/c.py", "b.py", "short.py"]
    assert ids_of("prose") == ["topic/assert", "topic/while"]


@pytest.mark.parametrize(
    "name", ["test/x.py", "lib2to3/tests/x.py", "site-packages/x.py", "__pycache__/x.py", "x.txt"]
)
def test_what_is_not_the_library_is_left_out(library, name):
    library({"a.py": "x = 1\n", name: "y = 1\n"})
    assert ids_of("code") == ["a.py"]


def test_files_that_cannot_be_read_or_decoded_are_left_out(library):
    folder = library({"a.py": "x = 1\n", "latin.py": b"# -*- coding: latin-1 -*-\nname = '\xe9'\n"})
    (folder / "nowhere.py").symlink_to(folder / "gone.py")
    (folder / "itself.py").symlink_to(folder / "itself.py")
    assert ids_of("code") == ["a.py"]
    assert len(source_fingerprint(EmbeddedSource(part="code"))) == 64
    assert len(ids_of("prose")) == 2


def test_files_that_are_no_modules_are_code_without_prose(library):
    library({"template.py": f'"""{LONG}"""\ndef {{name}}(:\n', "nul.py": f'"""{LONG}"""\n\0'})
    assert ids_of("code") == ["nul.py", "template.py"]
    assert ids_of("prose") == ["topic/assert", "topic/while"]


def test_old_escapes_neither_warn_nor_lose_a_docstring(library):
    library({"a.py": f'"""{LONG} \\d"""\n'})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ids_of("prose")[0] == "a.py#docstrings"


def test_docstrings_hold_only_what_utf8_can(library):
    library({"a.py": f'"""{LONG} \\ud800"""\n'})
    assert next(iter(embedded_documents("prose"))).text == f"{LONG} ?"


@pytest.mark.parametrize("part", ["code", "prose"])
def test_a_changed_file_changes_fingerprint_and_documents(library, part):
    source = EmbeddedSource(part=part)
    seen = []
    for docstring in (LONG, LONG + " Changed.", LONG):
        library({"a.py": f'"""{docstring}"""\n'})
        seen.append((source_fingerprint(source), [d.text for d in source_documents(source)]))
    assert seen[0] == seen[2]
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_fingerprints_are_of_names_contents_and_the_part(library):
    def fingerprint(part: str = "code") -> str:
        return source_fingerprint(EmbeddedSource(part=part))

    folder = library({"a.py": "x = 1\n"})
    seen = [fingerprint(), fingerprint("prose")]
    library({"b.py": "x = 2\n"})
    seen.append(fingerprint())
    (folder / "b.py").rename(folder / "c.py")
    seen += [fingerprint(), fingerprint("prose")]
    assert len(set(seen)) == 5
    library({"pydoc_data/topics.py": "topics = {'if': 'The if statement.'}\n"})
    assert fingerprint() == seen[3]
    assert fingerprint("prose") != seen[4]


def test_a_python_without_sources_is_named(library):
    folder = library({})
    with pytest.raises(DataError) as caught:
        list(embedded_documents("code"))
    assert str(folder) in caught.value.given


@pytest.mark.parametrize("content", [None, b"\xff", b"topics = build()\n"])
def test_a_python_without_help_topics_still_has_code(library, content):
    folder = library({"a.py": "x = 1\n"})
    topics = folder / "pydoc_data" / "topics.py"
    topics.unlink() if content is None else topics.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(embedded_documents("prose"))
    assert str(topics) in caught.value.given
    assert len(source_fingerprint(EmbeddedSource(part="code"))) == 64
    assert ids_of("code") == ["a.py"]
