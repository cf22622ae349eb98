"""Where a document came from: a record of a part of its source, as a name and as a number.

A part is a file, or whatever else a source counts its records in. The name of a document is the
name of its part if the part is one document, else `part:record`.
"""

import bisect
import re
from collections.abc import Sequence

import numpy as np

from chomp.data.documents import Position
from chomp.data.store.flat_array import FlatArray
from chomp.errors import DataError

# A location is one number: the part in the high bits, the record in the low ones.
_RECORD_BITS = 40
_RECORD = re.compile(r"[0-9]{1,13}")  # as many digits as the bits have


def location_of(position: Position) -> int:
    """A position as the one number that stores hold; in the order of positions."""
    if position.part >= 1 << (63 - _RECORD_BITS) or position.record >= 1 << _RECORD_BITS:
        raise DataError(
            f"record {position.record} in file {position.part} of a source",
            allowed=f"at most {1 << (63 - _RECORD_BITS):,} files in one component",
            fix="put several documents into one file, as JSON lines, or make two components",
        )
    return position.part << _RECORD_BITS | position.record


def position_of(location: int) -> Position:
    """The position that a number stands for."""
    return Position(part=location >> _RECORD_BITS, record=location & ((1 << _RECORD_BITS) - 1))


class DocumentLocations:
    """The location of every document of a store, by number; they only go up."""

    def __init__(self, numbers: FlatArray, parts: Sequence[str], *, has_whole_parts: bool) -> None:
        self._numbers = numbers
        self._parts = parts
        self._has_whole_parts = has_whole_parts  # each part is one document, which has its name

    def document_id(self, document: int) -> str:
        """The name that finds the document again in its source."""
        position = position_of(self[document])
        name = self._parts[position.part]
        return name if self._has_whole_parts else f"{name}:{position.record}"

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, document: int) -> int:
        return int(self._numbers.read(np.asarray([document]), np.asarray([1]))[0])

    def find(self, document_id: str) -> int | None:
        """The number of the document with that name; None if it is not in this store."""
        name, record = document_id, "0"
        if not self._has_whole_parts:
            name, _, record = document_id.rpartition(":")
        if name not in self._parts or not _RECORD.fullmatch(record):
            return None
        if int(record) >> _RECORD_BITS:
            return None
        wanted = location_of(Position(part=self._parts.index(name), record=int(record)))
        found = bisect.bisect_left(self, wanted)
        is_found = found < len(self) and self.document_id(found) == document_id
        return found if is_found else None
