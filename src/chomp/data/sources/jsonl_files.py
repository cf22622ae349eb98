"""Files with one JSON object a line, plain or compressed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chomp.config import Config
from chomp.data.documents import Position
from chomp.data.sources.decompression import numbered_lines
from chomp.data.sources.file_hashes import hash_of_files
from chomp.data.sources.record_fields import Record, shown
from chomp.data.sources.source_files import files_of, records_of_parts, require_paths
from chomp.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class JsonlSource(Config):
    """JSON lines: one object a line; `.gz` and `.zst` by suffix. Local or cloud, with `*`.

    Record n is line n+1. A blank line is an empty record.
    """

    has_whole_parts: ClassVar[bool] = False

    kind: Literal["jsonl"] = "jsonl"
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        require_paths("jsonl", self.paths, "web/*.jsonl.gz")

    def part_names(self) -> tuple[str, ...]:
        """The files."""
        return files_of(self.paths)

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The object of each line; what is skipped is neither decoded nor parsed."""
        return records_of_parts(parts, start, _objects_of)

    def fingerprint(self) -> str:
        """SHA-256 of the files' contents in order."""
        return hash_of_files(self.part_names(), salt=self.kind)


def _objects_of(path: str, first: int) -> Iterator[tuple[int, Record]]:
    for number, line in numbered_lines(path, first):
        if number == 0:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line and not line.isspace():
            yield number, _object_of(line, path, number)


def _object_of(line: bytes, path: str, number: int) -> dict[str, Any]:
    try:
        # Decoded here: json.loads would take UTF-16 and lone surrogates for text.
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _refusal(
            path, number, f"is not UTF-8 at byte {error.start} of its line", "UTF-8 text"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _refusal(
            path, number, f"is not JSON ({error}): {shown(line)}", "one JSON object a line"
        ) from error
    if not isinstance(value, dict):
        raise _refusal(path, number, f"holds {shown(value)}", "one JSON object a line")
    return value


def _refusal(path: str, number: int, fault: str, allowed: str) -> DataError:
    return DataError(
        f"record {path}:{number} (line {number + 1}) {fault}",
        allowed=allowed,
        fix="correct or remove that line",
    )
