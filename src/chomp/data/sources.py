"""Where documents come from: a config per kind of source, one function that reads any."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from chomp.config import Config
from chomp.data.documents import Document
from chomp.data.embedded import EmbeddedPart, embedded_documents, embedded_fingerprint
from chomp.errors import DataError, message, require
from chomp.storage import glob_files, read_bytes


@dataclass(frozen=True, kw_only=True)
class EmbeddedSource(Config):
    """A part of the running interpreter's standard library."""

    kind: Literal["embedded"] = "embedded"
    part: EmbeddedPart = "code"


@dataclass(frozen=True, kw_only=True)
class TextSource(Config):
    """UTF-8 text files, each one document. Patterns may hold `*`; local or cloud."""

    kind: Literal["text"] = "text"
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        require(
            len(self.paths) > 0,
            given="a text source without paths",
            allowed="one path or pattern, or more",
            fix='name the files, for example paths: ["texts/*.txt"]',
        )


Source = EmbeddedSource | TextSource


def source_documents(source: Source) -> Iterator[Document]:
    """The documents of a source, always in the same order."""
    if isinstance(source, EmbeddedSource):
        return embedded_documents(source.part)
    return _text_documents(source)


def source_fingerprint(source: Source) -> str:
    """SHA-256 of the content behind a source: if it differs, so may the documents."""
    if isinstance(source, EmbeddedSource):
        return embedded_fingerprint(source.part)
    digest = hashlib.sha256()
    for path in _text_files(source):
        digest.update(hashlib.sha256(read_bytes(path)).digest())
    return digest.hexdigest()


def _text_files(source: TextSource) -> list[str]:
    files: list[str] = []
    for pattern in source.paths:
        found = glob_files(pattern)
        if not found:
            raise DataError(
                message(
                    given=f"source path {pattern!r}, which matches no file",
                    allowed="paths or patterns that match at least one file each",
                    fix="correct the path; it is read relative to the current folder",
                )
            )
        files += found
    # A file that two patterns match is one document.
    return list(dict.fromkeys(files))


def _text_documents(source: TextSource) -> Iterator[Document]:
    for path in _text_files(source):
        try:
            text = read_bytes(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                message(
                    given=f"{path}, which is not UTF-8 at byte {error.start}",
                    allowed="UTF-8 text",
                    fix="convert the file, for example with iconv",
                )
            ) from error
        if text.strip():
            yield Document(id=path, text=text)
