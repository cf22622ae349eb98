"""Documents written into the config itself, for trials and tests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

from chomp.config import Config, canonical_json, fingerprint
from chomp.data.documents import Position
from chomp.data.sources.record_fields import Record
from chomp.data.sources.source_files import records_of_parts
from chomp.errors import require


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
