"""From any source to documents: one loop that can begin at any record.

A source is a config with three questions it can answer (`RecordSource`); the files beside this one
hold one kind each. Every record has a position, and a position means the same record whenever the
content is the same, so work that was stopped goes on where it was.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from chomp.data.documents import Document, LocatedDocument, Position
from chomp.data.sources.formats import Format, Record, TextFormat

START = Position()
_TEXT = TextFormat()


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
