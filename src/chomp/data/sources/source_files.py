"""The files behind a source: found by patterns, read one after the other, hashed together.

Order is fixed: patterns as given, files sorted within each, a file that two patterns match once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from chomp.data.documents import Position
from chomp.data.sources.record_fields import Record
from chomp.errors import DataError, StorageError, require
from chomp.storage import glob_files


def require_paths(kind: str, paths: tuple[str, ...], example: str) -> None:
    """Raise `ConfigError` unless a source of files names some."""
    article = "an" if kind[0] in "aeiou" else "a"
    require(
        len(paths) > 0 and all(path.strip() for path in paths),
        f"{article} {kind} source with{' an empty path' if paths else 'out paths'}",
        allowed="at least one path or pattern",
        fix=f'name the files, for example paths: ["{example}"]',
    )


def files_of(patterns: Sequence[str]) -> tuple[str, ...]:
    """The files that the patterns match; a pattern that matches none is an error."""
    files: list[str] = []
    for pattern in patterns:
        found = glob_files(pattern)
        if not found:
            raise DataError(
                f"source path {pattern!r} matches no file",
                allowed="paths and patterns that each match at least one file",
                fix="correct the path; it is relative to the current folder",
            )
        files += found
    return tuple(dict.fromkeys(files))


def records_of_parts(
    parts: Sequence[str],
    start: Position,
    records_of: Callable[[str, int], Iterator[tuple[int, Record]]],
) -> Iterator[tuple[Position, Record]]:
    """The records of each part from `start` on; `records_of` numbers those of one from a first."""
    for part in range(start.part, len(parts)):
        first = start.record if part == start.part else 0
        with present(parts[part]):
            for number, record in records_of(parts[part], first):
                yield Position(part, number), record


@contextmanager
def present(path: str) -> Iterator[None]:
    """Inside, a file that is gone is a `DataError`. Other failures of storage stay as they are.

    A reader may try those again; a file that was listed and is gone would be missing every time.
    """
    try:
        yield
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise DataError(
            f"{path} disappeared after it was listed",
            allowed="files that do not change while they are read",
            fix="put it back and run the same command again, or start over without it",
        ) from error
