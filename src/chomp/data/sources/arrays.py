"""Token ids that somebody has made already, in numpy files."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Integer
from numpy.lib import format as npy

from chomp.config import Config, setting
from chomp.data.documents import Position
from chomp.data.sources.formats import Record
from chomp.data.sources.local_files import files_of, hash_of_files, records_of_parts, require_paths
from chomp.errors import DataError
from chomp.storage import is_local, read_bytes
from chomp.storage.errors import storage_errors

# Axes: L tokens of a file with one axis.

# Tokens searched for separators at once: 16 MiB of a boolean mask.
_TOKENS_PER_SEARCH = 1 << 24


@dataclass(frozen=True, kw_only=True)
class ArraysSource(Config):
    """`.npy` files of token ids. Local ones are mapped, never loaded; patterns may hold `*`.

    With two axes each row is a document. With one, documents are separated by `separator_id`,
    which belongs to none of them; two in a row have an empty record between them.
    """

    has_whole_parts: ClassVar[bool] = False

    kind: Literal["arrays"] = "arrays"
    paths: tuple[str, ...]
    separator_id: int | None = setting(default=None, ge=0, lt=2**24)  # for files with one axis

    def __post_init__(self) -> None:
        require_paths("arrays", self.paths, "tokens/*.npy")

    def part_names(self) -> tuple[str, ...]:
        """The files."""
        return files_of(self.paths)

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The ids of each document; rows have no keys."""

        def documents_of(path: str, first: int) -> Iterator[tuple[int, Record]]:
            return enumerate(self._ids_of(path, first), start=first)

        return records_of_parts(parts, start, documents_of)

    def fingerprint(self) -> str:
        """SHA-256 of the files' contents in order, and of what separates documents in them."""
        return hash_of_files(self.part_names(), salt=f"{self.kind} {self.separator_id}")

    def _ids_of(self, path: str, first: int) -> Iterator[Integer[np.ndarray, " N"]]:
        array = _opened(path)
        if array.ndim == 2:
            rows: Iterator[np.ndarray] = (array[row] for row in range(first, len(array)))
        elif self.separator_id is None:
            raise DataError(
                f"{path} has one axis, and separator_id is not set",
                allowed="arrays with two axes, or one axis and the id that separates documents",
                fix="set separator_id to the end-of-document id of its tokenizer",
            )
        else:
            rows = _separated(array, self.separator_id, first)
        # Copied, so that a document does not hold the whole file in memory.
        return (np.array(row) for row in rows)


def _opened(path: str) -> np.ndarray:
    try:
        if is_local(path):
            with storage_errors(path, "read"):
                array: np.ndarray = npy.open_memmap(path, mode="r")
        else:
            array = npy.read_array(io.BytesIO(read_bytes(path)), allow_pickle=False)
    except ValueError as error:
        raise _refusal(path, " ".join(str(error).split()).rstrip(".")) from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise _refusal(path, f"it has the type {array.dtype} and {array.ndim} axes")
    return array


def _separated(
    ids: Integer[np.ndarray, " L"], separator_id: int, first: int
) -> Iterator[np.ndarray]:
    """The documents between separators from number `first` on."""
    begin = number = 0
    for start in range(0, len(ids), _TOKENS_PER_SEARCH):
        ends = start + np.flatnonzero(ids[start : start + _TOKENS_PER_SEARCH] == separator_id)
        # Documents before the first one wanted are counted, not looked at.
        skipped = min(max(first - number, 0), len(ends))
        if skipped:
            begin = int(ends[skipped - 1]) + 1
        for end in ends[skipped:].tolist():
            yield ids[begin:end]
            begin = end + 1
        number += len(ends)
    if begin < len(ids) and number >= first:
        yield ids[begin:]


def _refusal(path: str, fault: str) -> DataError:
    return DataError(
        f"{path} cannot be used: {fault}",
        allowed="a .npy file of whole numbers with one axis or two",
        fix="write the file with numpy.save; it may have been cut short",
    )
