"""Where documents come from: a config per kind of source, each in its own file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from chomp.config import Config
from chomp.data.documents import Position
from chomp.data.sources.arrays import ArraysSource
from chomp.data.sources.embedded import EmbeddedPart, embedded_documents, embedded_fingerprint
from chomp.data.sources.hugging_face import HuggingFaceSource
from chomp.data.sources.jsonl_files import JsonlSource
from chomp.data.sources.memory_documents import MemorySource
from chomp.data.sources.parquet_files import ParquetSource
from chomp.data.sources.record_fields import Record
from chomp.data.sources.text_files import TextSource
from chomp.errors import DataError

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
