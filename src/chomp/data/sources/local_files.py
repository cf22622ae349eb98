"""Text and JSON lines in files: found by pattern, hashed, decompressed and read.

A source of files is known by what is in them: a hash of each file, remembered by path, size and
time. Here is also how packages are imported that only some sources need.
"""

import gzip
import hashlib
import io
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import Any, ClassVar, Literal, cast

from chomp.config import Config
from chomp.data.documents import Position
from chomp.data.progress import progress_bar
from chomp.data.sources.formats import Record, shown
from chomp.errors import DataError, StorageError, require
from chomp.storage import FileInfo, file_info, glob_files, open_stream, read_bytes

_MAX_THREADS = 4
_CHUNK_BYTES = 1 << 20
# Nobody needs a bar for less.
_PATIENCE_S = 3.0
_REDRAW_S = 0.2
_BUFFER_BYTES = 1 << 20
# Compressed bytes taken at once: text shrinks to a third or so, and zeros to a thousandth.
_ZSTD_CHUNK_BYTES = 1 << 16
# What `zstd --long=31` needs; taken only by files that were written so.
_ZSTD_MAX_WINDOW_BYTES = 1 << 31
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def optional_package(module: str, *, extra: str, purpose: str) -> ModuleType:
    """The module, imported now; a `DataError` that names the extra if it cannot be."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs the package {module.partition('.')[0]}: {error}",
            allowed=f"an environment with chomp's extra {extra!r}",
            fix=f"run pip install 'chomp[{extra}]'",
        ) from error


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


def hash_of_files(files: Sequence[str], *, salt: str) -> str:
    """SHA-256 of `salt` and the contents of the files in order.

    A file in a store that keeps a checksum is known by that and its size, and is not read.
    """
    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        facts = list(pool.map(_facts_of, files))
        reading = _Reading(total_bytes=sum(map(_bytes_to_read, facts)))
        futures = [pool.submit(reading.digest_of, *item) for item in zip(files, facts, strict=True)]
        try:
            _wait_with_bar(futures, reading)
            digests = [future.result() for future in futures]
        except BaseException:
            # Leaving the pool waits for its threads, which may be deep in a large file.
            reading.is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return hashlib.sha256(salt.encode() + b"\0" + b"".join(digests)).hexdigest()


class _Reading:
    """What the threads share: how much there is, how much is done, whether to stop."""

    def __init__(self, *, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.read_bytes = 0
        self.is_over = threading.Event()
        self._guard = threading.Lock()

    def digest_of(self, path: str, facts: FileInfo) -> bytes:
        """The digest of one file."""
        if facts.checksum is not None:
            return hashlib.sha256(f"{facts.checksum} size={facts.size_bytes}".encode()).digest()
        digest = hashlib.sha256()
        with present(path), open_stream(path) as stream:
            while (chunk := stream.read(_CHUNK_BYTES)) and not self.is_over.is_set():
                digest.update(chunk)
                with self._guard:
                    self.read_bytes += len(chunk)
        return digest.digest()


def _facts_of(path: str) -> FileInfo:
    with present(path):
        return file_info(path)


def _bytes_to_read(facts: FileInfo) -> int:
    return facts.size_bytes if facts.checksum is None else 0


def _wait_with_bar(futures: Sequence["Future[bytes]"], reading: _Reading) -> None:
    """Return when all are done or one has failed; show a bar if that takes long."""
    if not wait(futures, timeout=_PATIENCE_S, return_when="FIRST_EXCEPTION").not_done:
        return
    shown = 0
    with progress_bar("hashing the sources", total=reading.total_bytes, unit="bytes") as advance:
        while not any(future.done() and future.exception() for future in futures):
            advance(reading.read_bytes - shown)
            shown = reading.read_bytes
            if not wait(futures, timeout=_REDRAW_S, return_when="FIRST_EXCEPTION").not_done:
                return


def numbered_lines(path: str, first: int) -> Iterator[tuple[int, bytes]]:
    """The lines of the file from number `first` on, with their numbers and line ends."""
    number = first - 1
    with open_stream(path) as stream:
        try:
            for number, line in enumerate(islice(_plain(stream, path), first, None), start=first):
                yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile, _DamagedZstd) as error:
            raise DataError(
                f"record {path}:{number + 1} cannot be decompressed: {error}",
                allowed="a whole file of the kind that its suffix names",
                fix="copy or write the file again: it was cut short or damaged",
            ) from error


class _DamagedZstd(Exception):
    """A zstd file that is cut short, or none."""


def _plain(stream: io.BufferedReader, path: str) -> io.BufferedReader:
    if path.endswith(".gz"):
        # GzipFile's own line reading is Python; the buffer's is C.
        return io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=stream)), _BUFFER_BYTES)
    if path.endswith(".zst"):
        zstandard = optional_package("zstandard", extra="zstd", purpose=f"source {path}")
        return io.BufferedReader(_ZstdFile(stream, zstandard), _BUFFER_BYTES)
    return stream


class _ZstdFile(io.RawIOBase):
    """The content of all frames of a zstd stream.

    The library's own reader takes a cut stream for a short one, hence frame by frame here.
    """

    def __init__(self, stream: io.BufferedReader, zstandard: Any) -> None:
        self._stream = stream
        self._zstandard = zstandard
        self._frame: Any = None  # the one being read; None between frames
        self._waiting = b""  # compressed, of the next frame
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            compressed = self._waiting or self._stream.read(_ZSTD_CHUNK_BYTES)
            if not compressed:
                if self._frame is not None:
                    raise _DamagedZstd("it ends inside a frame")
                return 0
            self._decompress(compressed)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decompress(self, compressed: bytes) -> None:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor(
                max_window_size=_ZSTD_MAX_WINDOW_BYTES
            ).decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(compressed))
        except self._zstandard.ZstdError as error:
            raise _DamagedZstd(str(error)) from error
        self._waiting = b""
        if self._frame.eof:
            self._waiting, self._frame = self._frame.unused_data, None


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
