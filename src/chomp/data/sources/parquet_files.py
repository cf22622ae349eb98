"""Parquet files, read row group by row group, and only the columns a format names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chomp.config import Config
from chomp.data.documents import Position
from chomp.data.sources.formats import Record, missing_key
from chomp.data.sources.local_files import (
    files_of,
    hash_of_files,
    optional_package,
    records_of_parts,
    require_paths,
)
from chomp.errors import DataError, StorageError
from chomp.storage import open_stream

# Rows turned into Python objects at once; a row group may have a million.
_ROWS_PER_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class ParquetSource(Config):
    """Parquet files, each row a record. Local or cloud, with `*`."""

    has_whole_parts: ClassVar[bool] = False

    kind: Literal["parquet"] = "parquet"
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        require_paths("parquet", self.paths, "web/*.parquet")

    def part_names(self) -> tuple[str, ...]:
        """The files."""
        return files_of(self.paths)

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The named columns of each row; row groups before `start` are not read."""

        def rows_of(path: str, first: int) -> Iterator[tuple[int, Record]]:
            return _rows_of(path, first, keys)

        return records_of_parts(parts, start, rows_of)

    def fingerprint(self) -> str:
        """SHA-256 of the files' contents in order."""
        return hash_of_files(self.part_names(), salt=self.kind)


def _rows_of(path: str, first: int, keys: tuple[str, ...]) -> Iterator[tuple[int, Record]]:
    arrow = optional_package("pyarrow", extra="parquet", purpose=f"source {path}")
    parquet = optional_package("pyarrow.parquet", extra="parquet", purpose=f"source {path}")
    number = first
    with open_stream(path) as stream:
        try:
            file = parquet.ParquetFile(stream)
            for number, batch in _batches(file, path, first, keys):
                yield from _rows_of_batch(batch, path, number, first)
        except StorageError:
            raise
        # pyarrow raises OSError for pages that do not decompress.
        except (arrow.ArrowException, OSError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise DataError(
                f"record {path}:{number} or a later one cannot be read: {reason}",
                allowed="a whole parquet file",
                fix="copy or write the file again: it was cut short, is damaged or of another kind",
            ) from error


def _batches(file: Any, path: str, first: int, keys: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    """Batches of rows from the row group of record `first` on, each with its first row's number."""
    names = file.schema_arrow.names
    for key in keys:
        if key not in names:
            raise missing_key(f"{path}:{first}", key, names)
    number = 0
    for group in range(file.num_row_groups):
        num_rows = file.metadata.row_group(group).num_rows
        if number + num_rows <= first:
            number += num_rows
            continue
        for batch in file.iter_batches(_ROWS_PER_BATCH, row_groups=[group], columns=list(keys)):
            if number + len(batch) > first:
                yield number, batch
            number += len(batch)


def _rows_of_batch(
    batch: Any, path: str, number: int, first: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    skipped = max(first - number, 0)
    columns = {
        name: _values_of(column, f"{path}:", number + skipped)
        for name, column in zip(batch.schema.names, batch.slice(skipped).columns, strict=True)
    }
    for row in range(len(batch) - skipped):
        record = {name: values[row] for name, values in columns.items()}
        yield number + skipped + row, record


def _values_of(column: Any, prefix: str, first: int) -> list[Any]:
    """The values of a column as Python objects, lists of numbers as arrays."""
    if hasattr(column.type, "value_field") and _is_number(column.type.value_type):
        # A million ids as a million Python integers would cost more than tokenizing them.
        return [
            None if item.values is None else item.values.to_numpy(zero_copy_only=False)
            for item in column
        ]
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [_decoded(item, f"{prefix}{first + row}") for row, item in enumerate(column)]
    return values


def _decoded(item: Any, name: str) -> Any:
    try:
        return item.as_py()
    except UnicodeDecodeError as error:
        raise DataError(
            f"record {name} is not UTF-8 at byte {error.start} of its text",
            allowed="UTF-8 text",
            fix="correct or remove that row",
        ) from error


def _is_number(arrow_type: Any) -> bool:
    try:
        return arrow_type.to_pandas_dtype()().dtype.kind in "iuf"
    except (NotImplementedError, TypeError, AttributeError, ValueError):
        return False  # a type without a numpy twin
