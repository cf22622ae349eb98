"""Every kind of source, its documents in order, and where each of them is.

A source has parts (files, mostly), a part has records, and a record becomes a document by the
format of its component. `FileSource` holds what the four kinds of files share.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import orjson
from jaxtyping import Integer
from numpy.lib import format as npy

from chomp.config import canonical_json, fingerprint, setting
from chomp.data.documents import Document, LocatedDocument, Position
from chomp.data.formats import Format, Record, TextFormat, missing_key, shown
from chomp.data.huggingface import HuggingFaceSource
from chomp.data.source_files import (
    BaseSource,
    files_of,
    hash_of_files,
    numbered_lines,
    optional_package,
)
from chomp.data.stdlib_corpus import EmbeddedPart, embedded_documents, embedded_fingerprint
from chomp.errors import DataError, StorageError, require
from chomp.storage import is_local, open_stream, read_bytes
from chomp.storage.errors import storage_errors

# Axes: N tokens of a document, L tokens of a file with one axis.

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Rows of a parquet file turned into Python objects at once; a row group may have a million.
_ROWS_PER_BATCH = 512
# Tokens searched for separators at once: 16 MiB of a boolean mask.
_TOKENS_PER_SEARCH = 1 << 24
START = Position()
_TEXT = TextFormat()


class FileSource(BaseSource):
    """Files by paths or patterns that may hold `*`; local, or behind fsspec."""

    example: ClassVar[str]  # of a pattern, for errors

    kind: Any
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        article = "an" if self.kind[0] in "aeiou" else "a"
        require(
            len(self.paths) > 0 and all(path.strip() for path in self.paths),
            f"{article} {self.kind} source with{' an empty path' if self.paths else 'out paths'}",
            allowed="at least one path or pattern",
            fix=f'name the files, for example paths: ["{self.example}"]',
        )

    def part_names(self) -> tuple[str, ...]:
        """The files."""
        return files_of(self.paths)

    def fingerprint(self) -> str:
        """SHA-256 of the files' contents in order."""
        return hash_of_files(self.part_names(), salt=self.kind)


@dataclass(frozen=True, kw_only=True)
class TextSource(FileSource):
    """UTF-8 text files, each one document. Patterns may hold `*`; local or cloud."""

    has_whole_parts: ClassVar[bool] = True
    example: ClassVar[str] = "texts/*.txt"

    kind: Literal["text"] = "text"
    paths: tuple[str, ...]

    def records_of_part(
        self, part: str, first: int, keys: tuple[str, ...]
    ) -> Iterator[tuple[int, Record]]:
        """The text of the file, which has no keys."""
        if first > 0:
            return
        try:
            text = read_bytes(part).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{part} is not UTF-8 at byte {error.start}",
                allowed="UTF-8 text",
                fix="convert the file, for example with iconv",
            ) from error
        yield 0, text


@dataclass(frozen=True, kw_only=True)
class JsonlSource(FileSource):
    """JSON lines: one object a line; `.gz` and `.zst` by suffix. Local or cloud, with `*`.

    Record n is line n+1. A blank line is an empty record.
    """

    example: ClassVar[str] = "web/*.jsonl.gz"

    kind: Literal["jsonl"] = "jsonl"
    paths: tuple[str, ...]

    def records_of_part(
        self, part: str, first: int, keys: tuple[str, ...]
    ) -> Iterator[tuple[int, Record]]:
        """The object of each line; what is skipped is neither decoded nor parsed."""

        def bad_line(fault: str, allowed: str = "one JSON object a line") -> DataError:
            return DataError(
                f"record {part}:{number} (line {number + 1}) {fault}",
                allowed=allowed,
                fix="correct or remove that line",
            )

        for number, line in numbered_lines(part, first):
            if number == 0:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if not line or line.isspace():
                continue
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                # Python's reader takes NaN, and halves of pairs in unused fields. Decoded here:
                # it would take UTF-16 for text.
                try:
                    value = json.loads(line.decode("utf-8"))
                except UnicodeDecodeError as error:
                    fault = f"is not UTF-8 at byte {error.start} of its line"
                    raise bad_line(fault, "UTF-8 text") from error
                except (ValueError, RecursionError) as error:
                    raise bad_line(f"is not JSON ({error}): {shown(line)}") from error
            if not isinstance(value, dict):
                raise bad_line(f"holds {shown(value)}")
            yield number, value


@dataclass(frozen=True, kw_only=True)
class ParquetSource(FileSource):
    """Parquet files, each row a record. Local or cloud, with `*`."""

    example: ClassVar[str] = "web/*.parquet"

    kind: Literal["parquet"] = "parquet"
    paths: tuple[str, ...]

    def records_of_part(
        self, part: str, first: int, keys: tuple[str, ...]
    ) -> Iterator[tuple[int, Record]]:
        """The named columns of each row; row groups before `first` are not read."""
        arrow = optional_package("pyarrow", extra="parquet", purpose=f"source {part}")
        parquet = optional_package("pyarrow.parquet", extra="parquet", purpose=f"source {part}")

        def values_of(column: Any) -> list[Any]:
            """The values as Python objects, lists of numbers as arrays."""
            if hasattr(column.type, "value_field"):
                kind = column.type.value_type
                if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
                    # A million ids as a million Python integers would cost more than tokenizing.
                    lists = (item.values for item in column)
                    return [None if v is None else v.to_numpy(zero_copy_only=False) for v in lists]
            try:
                values: list[Any] = column.to_pylist()
            except UnicodeDecodeError:
                for row, item in enumerate(column, start=number):
                    try:
                        item.as_py()
                    except UnicodeDecodeError as error:
                        raise DataError(
                            f"record {part}:{row} is not UTF-8 at byte {error.start} of its text",
                            allowed="UTF-8 text",
                            fix="correct or remove that row",
                        ) from error
                raise
            return values

        number, end = first, 0  # of the batch's first row; of the row behind those passed
        with open_stream(part) as stream:
            try:
                file = parquet.ParquetFile(stream)
                names = file.schema_arrow.names
                for key in keys:
                    if key not in names:
                        raise missing_key(f"{part}:{first}", key, names)
                for group in range(file.num_row_groups):
                    num_rows = file.metadata.row_group(group).num_rows
                    if end + num_rows <= first:
                        end += num_rows
                        continue
                    for batch in file.iter_batches(
                        _ROWS_PER_BATCH, row_groups=[group], columns=list(keys)
                    ):
                        begin, end = end, end + len(batch)
                        if end <= first:
                            continue
                        number = max(begin, first)
                        rows = batch.slice(number - begin)
                        columns = {
                            name: values_of(column)
                            for name, column in zip(rows.schema.names, rows.columns, strict=True)
                        }
                        for row in range(len(rows)):
                            record = {name: values[row] for name, values in columns.items()}
                            yield number + row, record
            except StorageError:
                raise
            # pyarrow raises OSError for pages that do not decompress.
            except (arrow.ArrowException, OSError) as error:
                reason = " ".join(str(error).split()).rstrip(".")
                raise DataError(
                    f"record {part}:{number} or a later one cannot be read: {reason}",
                    allowed="a whole parquet file",
                    fix="copy or write the file again: it was cut short, is damaged or of another "
                    "kind",
                ) from error


@dataclass(frozen=True, kw_only=True)
class ArraysSource(FileSource):
    """`.npy` files of token ids. Local ones are mapped, never loaded; patterns may hold `*`.

    With two axes each row is a document. With one, documents are separated by `separator_id`,
    which belongs to none of them; two in a row have an empty record between them.
    """

    example: ClassVar[str] = "tokens/*.npy"

    kind: Literal["arrays"] = "arrays"
    paths: tuple[str, ...]
    separator_id: int | None = setting(default=None, ge=0, lt=2**24)  # for files with one axis

    def fingerprint(self) -> str:
        """SHA-256 of the files' contents in order, and of what separates documents in them."""
        return hash_of_files(self.part_names(), salt=f"{self.kind} {self.separator_id}")

    def records_of_part(
        self, part: str, first: int, keys: tuple[str, ...]
    ) -> Iterator[tuple[int, Record]]:
        """The ids of each document; rows have no keys."""
        fault, cause = "", None
        try:
            if is_local(part):
                with storage_errors(part, "read"):
                    array: np.ndarray = npy.open_memmap(part, mode="r")
            else:
                array = npy.read_array(io.BytesIO(read_bytes(part)), allow_pickle=False)
            if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
                fault = f"it has the type {array.dtype} and {array.ndim} axes"
        except ValueError as error:
            fault, cause = " ".join(str(error).split()).rstrip("."), error
        if fault:
            raise DataError(
                f"{part} cannot be used: {fault}",
                allowed="a .npy file of whole numbers with one axis or two",
                fix="write the file with numpy.save; it may have been cut short",
            ) from cause
        if array.ndim == 2:
            rows: Iterator[np.ndarray] = (array[row] for row in range(first, len(array)))
        elif self.separator_id is None:
            raise DataError(
                f"{part} has one axis, and separator_id is not set",
                allowed="arrays with two axes, or one axis and the id that separates documents",
                fix="set separator_id to the end-of-document id of its tokenizer",
            )
        else:
            rows = _split_at(array, self.separator_id, first)
        for number, row in enumerate(rows, start=first):
            yield number, np.array(row)  # a copy: a document does not hold the file in memory


def _split_at(
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


@dataclass(frozen=True, kw_only=True)
class MemorySource(BaseSource):
    """The documents themselves: texts, or mappings with the keys the format names."""

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

    def records_of_part(
        self, part: str, first: int, keys: tuple[str, ...]
    ) -> Iterator[tuple[int, Record]]:
        """The documents as they were given."""
        return enumerate(islice(self.documents, first, None), start=first)

    def fingerprint(self) -> str:
        """SHA-256 of the documents as canonical JSON."""
        return fingerprint(["memory", self.documents])


@dataclass(frozen=True, kw_only=True)
class EmbeddedSource(BaseSource):
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
        """The documents, which come whole, made once for all parts."""
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


def source_fingerprint(source: Source, *, component: str | None = None) -> str:
    """SHA-256 of the content behind a source: if it differs, so may the documents.

    An error names the component, where one is given.
    """
    try:
        return source.fingerprint()
    except (DataError, StorageError) as error:
        if component is not None:
            error.within(f"component {component!r}")
        raise


def refuse_changed_source(source: Source, planned: str) -> None:
    """Raise `DataError` unless a source holds what it held when its fingerprint was taken."""
    found = source_fingerprint(source)
    if found != planned:
        raise DataError(
            f"{source} with content {found[:12]}"[:500],
            allowed=f"{planned[:12]}, its content when this build was planned",
            fix="wait until nothing writes there, then run the same command again",
        )


def located_documents(
    source: Source,
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
        name = source.document_id(names[position.part], position.record)
        document = format.document(record, name)
        if not document.is_empty:
            yield LocatedDocument(position, document)


def source_documents(source: Source, format: Format = _TEXT) -> Iterator[Document]:
    """The documents of a source, always in the same order."""
    for _, document in located_documents(source, format):
        yield document
