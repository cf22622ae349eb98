"""What all kinds of sources share, and files: found by pattern, hashed, opened and decompressed.

A source of files is known by their content: SHA-256 of a hash of each file, in order.
"""

import gzip
import hashlib
import io
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import Any, ClassVar, cast

from chomp.config import Config
from chomp.data.documents import Position
from chomp.data.formats import Record
from chomp.data.progress import progress_bar
from chomp.errors import DataError, StorageError
from chomp.executor import is_planning
from chomp.storage import FileInfo, file_info, glob_files, is_local, open_stream
from chomp.storage.file_hashes import FileState, remember_hashes, remembered_hashes

_MAX_THREADS = 4
_BUFFER_BYTES = 1 << 20
# Hashing of fewer bytes has no progress bar: it takes seconds.
_BYTES_WORTH_A_BAR = 1 << 30
# The hash of a larger file is remembered at once, of others when all are read.
_SAVED_AT_ONCE = 16 << 20
# Compressed bytes taken at once: text shrinks to a third or so, and zeros to a thousandth.
_ZSTD_CHUNK_BYTES = 1 << 16
# What `zstd --long=31` needs; taken only by files that were written so.
_ZSTD_MAX_WINDOW_BYTES = 1 << 31


class BaseSource(Config):
    """Documents in parts (files, mostly), each with numbered records, always in the same order."""

    has_whole_parts: ClassVar[bool] = False  # whether a part is one document, with its name

    def part_names(self) -> tuple[str, ...]:
        """The parts in order."""
        raise NotImplementedError

    def records_of_part(
        self, part: str, first: int, keys: tuple[str, ...]
    ) -> Iterator[tuple[int, Record]]:
        """The records of a part from number `first` on; of records with keys, these at least."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """SHA-256 of the content: if it differs, so may the documents."""
        raise NotImplementedError

    def document_id(self, part: str, record: int) -> str:
        """The name of a document: its part's if the part is one document, else `part:record`."""
        return part if self.has_whole_parts else f"{part}:{record}"

    def records(
        self, parts: Sequence[str], start: Position, keys: tuple[str, ...]
    ) -> Iterator[tuple[Position, Record]]:
        """The records of `parts` from `start` on."""
        for part in range(start.part, len(parts)):
            first = start.record if part == start.part else 0
            with _missing_is_an_error(parts[part]):
                for number, record in self.records_of_part(parts[part], first, keys):
                    yield Position(part, number), record


def optional_package(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module; a `DataError` names the extra that is missing if it cannot be imported."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(
            f"{purpose} needs the package {module.partition('.')[0]}: {error}",
            allowed=f"an environment with chomp's extra {extra!r}",
            fix=f"run pip install 'chomp[{extra}]'",
        ) from error


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


@contextmanager
def _missing_is_an_error(path: str) -> Iterator[None]:
    """Raise `DataError` where a file that was listed is gone.

    Other failures of storage stay as they are: a reader may try those again.
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


def refuse_download(what: str) -> None:
    """Raise `DataError` while a plan is made for --plan, which never downloads."""
    if is_planning():
        raise DataError(
            f"{what} is not on this machine, and --plan downloads nothing",
            allowed="sources on this machine, or in a store that keeps checksums",
            fix="run `chomp data build` first, or the same command without --plan",
        )


def hash_of_files(files: Sequence[str], *, salt: str) -> str:
    """SHA-256 of `salt` and the contents of the files in order.

    A local file that did not change since it was hashed is not read again. A file in a store that
    keeps a checksum is known by that and its size, and is never read.
    """

    def look_at(path: str) -> FileState | FileInfo:
        with _missing_is_an_error(path):
            return FileState.of(path) if is_local(path) else file_info(path)

    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        found = dict(zip(files, pool.map(look_at, files), strict=True))
    digests = remembered_hashes(each for each in found.values() if isinstance(each, FileState))
    for path, info in found.items():
        if isinstance(info, FileInfo) and info.checksum is not None:
            text = f"{info.checksum} size={info.size_bytes}"
            digests[path] = hashlib.sha256(text.encode()).digest()
    digests |= _read_hashes({path: info for path, info in found.items() if path not in digests})
    content = b"".join(digests[path] for path in files)
    return hashlib.sha256(salt.encode() + b"\0" + content).hexdigest()


def _read_hashes(files: Mapping[str, FileState | FileInfo]) -> dict[str, bytes]:
    """The hash of each file, which is read."""
    for path, info in files.items():
        if isinstance(info, FileInfo):
            refuse_download(path)
    is_over = threading.Event()
    unsaved: dict[FileState, bytes] = {}
    first_began_s = time.time()
    total = sum(info.size_bytes for info in files.values())
    bar = progress_bar("hashing the sources", total=total, unit="bytes")

    def digest_of(path: str) -> bytes:
        began_s, digest, info = time.time(), hashlib.sha256(), files[path]
        try:
            with _missing_is_an_error(path), open_stream(path) as stream:
                while not is_over.is_set() and (chunk := stream.read(_BUFFER_BYTES)):
                    digest.update(chunk)
                    advance(len(chunk))
        except BaseException:
            is_over.set()  # the others may be deep in large files
            raise
        if isinstance(info, FileState) and not is_over.is_set():
            if info.size_bytes > _SAVED_AT_ONCE:
                remember_hashes({info: digest.digest()}, began_s=began_s)
            else:
                unsaved[info] = digest.digest()
        return digest.digest()

    with (
        bar if total > _BYTES_WORTH_A_BAR else nullcontext(lambda _: None) as advance,
        ThreadPoolExecutor(_MAX_THREADS) as pool,
    ):
        try:
            return dict(zip(files, pool.map(digest_of, files), strict=True))
        finally:
            is_over.set()
            remember_hashes(dict(unsaved), began_s=first_began_s)


def numbered_lines(path: str, first: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from number `first` on; `.gz` and `.zst` are decompressed."""
    number = first - 1
    damage: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    with open_stream(path) as stream:
        content = stream
        if path.endswith(".gz"):
            # GzipFile's own line reading is Python; the buffer's is C.
            content = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=stream)), _BUFFER_BYTES)
        elif path.endswith(".zst"):
            zstandard = optional_package("zstandard", extra="zstd", purpose=f"source {path}")
            content = io.BufferedReader(_ZstdFile(stream, zstandard), _BUFFER_BYTES)
            damage = (EOFError, zstandard.ZstdError)
        try:
            for number, line in enumerate(islice(content, first, None), start=first):
                yield number, line
        except damage as error:
            raise DataError(
                f"record {path}:{number + 1} cannot be decompressed: {error}",
                allowed="a whole file of the kind that its suffix names",
                fix="copy or write the file again: it was cut short or damaged",
            ) from error


class _ZstdFile(io.RawIOBase):
    """The content of all frames of a zstd stream.

    The library's own reader takes a cut stream for a short one, hence frame by frame here.
    """

    def __init__(self, stream: io.BufferedReader, zstandard: Any) -> None:
        self._chunks = self._decompressed(stream, zstandard)
        self._ready = memoryview(b"")

    @staticmethod
    def _decompressed(stream: io.BufferedReader, zstandard: Any) -> Iterator[bytes]:
        frame: Any = None  # the one being read; None between frames
        waiting = b""  # compressed, of the next frame
        while compressed := waiting or stream.read(_ZSTD_CHUNK_BYTES):
            if frame is None:
                decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW_BYTES)
                frame = decompressor.decompressobj()
            yield frame.decompress(compressed)
            waiting = b""
            if frame.eof:
                waiting, frame = frame.unused_data, None
        if frame is not None:
            raise EOFError("it ends inside a frame")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._ready = memoryview(chunk)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
