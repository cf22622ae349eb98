"""Every kind of source, its documents in order, and where each of them is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from chomp.config import Config, canonical_json, fingerprint
from chomp.data.documents import Document, LocatedDocument, Position
from chomp.data.sources.arrays import ArraysSource
from chomp.data.sources.embedded import EmbeddedPart, embedded_documents, embedded_fingerprint
from chomp.data.sources.formats import Format, Record, TextFormat
from chomp.data.sources.hugging_face import HuggingFaceSource
from chomp.data.sources.local_files import JsonlSource, TextSource, records_of_parts
from chomp.data.sources.parquet_files import ParquetSource
from chomp.errors import DataError, require

__all__ = [
    "ArraysSource",
    "EmbeddedSource",
    "HuggingFaceSource",
    "JsonlSource",
    "MemorySource",
    "ParquetSource",
    "Source",
    "TextSource",
    "source_fingerprint",
]
START = Position()
_TEXT = TextFormat()


@dataclass(frozen=True, kw_only=True)
class MemorySource(Config):
    """The documents themselves: texts, or mappings with the keys the format names."""

    has_whole_parts: ClassVar[bool] = False

    kind: Literal["memory"] = "memory"
    documents: tuple[str | dict[str, Any], ...]

    def __post_init__(self) -> None:
        require(
            len(self.documents) > 0,
            "a memory source without documents",
            allowed="one document or more",
            fix='give texts, as in documents: ["some text"], or mappings',
        )

    def __hash__(self) -> int:
        """By content; mappings have no hash of their own."""
        return hash(canonical_json(self))

    def part_names(self) -> tuple[str, ...]:
        """One part, named "memory"."""
        return ("memory",)

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The documents as they were given."""

        def given(_: str, first: int) -> Iterator[tuple[int, Record]]:
            return enumerate(islice(self.documents, first, None), start=first)

        return records_of_parts(parts, start, given)

    def fingerprint(self) -> str:
        """SHA-256 of the documents as canonical JSON."""
        return fingerprint(["memory", self.documents])


@dataclass(frozen=True, kw_only=True)
class EmbeddedSource(Config):
    """A part of the running interpreter's standard library."""

    has_whole_parts: ClassVar[bool] = True

    kind: Literal["embedded"] = "embedded"
    part: EmbeddedPart = "code"

    def part_names(self) -> tuple[str, ...]:
        """The ids of the documents, each of which is a part."""
        return tuple(document.id for document in embedded_documents(self.part))

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The documents, which come whole."""
        documents = {document.id: document for document in embedded_documents(self.part)}
        # The one record of a part is number 0: any later start means the next part.
        for part in range(start.part + (start.record > 0), len(parts)):
            if parts[part] not in documents:
                raise DataError(
                    f"this Python's standard library has no document {parts[part]}",
                    allowed="the Python version that listed the documents",
                    fix="use the Python version that this was started with, or start over",
                )
            yield Position(part), documents[parts[part]]

    def fingerprint(self) -> str:
        """SHA-256 of what the documents are made from."""
        return embedded_fingerprint(self.part)


Source = (
    EmbeddedSource
    | TextSource
    | JsonlSource
    | ParquetSource
    | HuggingFaceSource
    | MemorySource
    | ArraysSource
)


def source_fingerprint(source: Source) -> str:
    """SHA-256 of the content behind a source: if it differs, so may the documents."""
    return source.fingerprint()


@runtime_checkable
class RecordSource(Protocol):
    """What every kind of source answers, whatever its files look like."""

    # Whether each part is one document, which then has the part's name for its id.
    has_whole_parts: ClassVar[bool]

    def part_names(self) -> tuple[str, ...]:
        """The parts in their fixed order: files, mostly."""
        ...

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The records of `parts` from `start` on; of records with keys, these at least."""
        ...

    def fingerprint(self) -> str:
        """SHA-256 of the content."""
        ...


def part_names(source: RecordSource) -> tuple[str, ...]:
    """The parts of a source in order: its files, or one name where there are none."""
    return source.part_names()


def document_id(source: RecordSource, part_name: str, record: int) -> str:
    """The name of a document: its part's if the part is one document, else `part:record`."""
    return part_name if source.has_whole_parts else f"{part_name}:{record}"


def located_documents(
    source: RecordSource,
    format: Format = _TEXT,
    *,
    start: Position = START,
    parts: Sequence[str] | None = None,
) -> Iterator[LocatedDocument]:
    """The documents of a source from `start` on, always in the same order.

    `parts` are names listed earlier, for whoever must not see files that came since. Records are
    skipped without being parsed. Empty documents are passed over; all else that is no document is
    a `DataError` that names file and record.
    """
    names = tuple(source.part_names() if parts is None else parts)
    for position, record in source.records(names, start, format.keys):
        name = document_id(source, names[position.part], position.record)
        document = format.document(record, name)
        if not document.is_empty:
            yield LocatedDocument(position, document)


def source_documents(source: RecordSource, format: Format = _TEXT) -> Iterator[Document]:
    """The documents of a source, always in the same order."""
    for _, document in located_documents(source, format):
        yield document
