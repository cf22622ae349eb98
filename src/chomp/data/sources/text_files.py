"""Text files, each one document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from chomp.config import Config
from chomp.data.documents import Position
from chomp.data.sources.file_hashes import hash_of_files
from chomp.data.sources.record_fields import Record
from chomp.data.sources.source_files import files_of, records_of_parts, require_paths
from chomp.errors import DataError
from chomp.storage import read_bytes


@dataclass(frozen=True, kw_only=True)
class TextSource(Config):
    """UTF-8 text files, each one document. Patterns may hold `*`; local or cloud."""

    has_whole_parts: ClassVar[bool] = True

    kind: Literal["text"] = "text"
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        require_paths("text", self.paths, "texts/*.txt")

    def part_names(self) -> tuple[str, ...]:
        """The files."""
        return files_of(self.paths)

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The text of each file; a text has no keys."""
        return records_of_parts(parts, start, _text_of)

    def fingerprint(self) -> str:
        """SHA-256 of the files' contents in order."""
        return hash_of_files(self.part_names(), salt=self.kind)


def _text_of(path: str, first: int) -> Iterator[tuple[int, Record]]:
    if first > 0:
        return
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 at byte {error.start}",
            allowed="UTF-8 text",
            fix="convert the file, for example with iconv",
        ) from error
    yield 0, text
