"""The files of a source: found by pattern, hashed, opened and decompressed.

A source of files is known by their content: SHA-256 of a hash of each file, in order.
"""

import gzip
import hashlib
import io
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import Any, cast

from chomp.data.documents import Position
from chomp.data.formats import Record
from chomp.data.progress import progress_bar
from chomp.errors import DataError, StorageError
from chomp.executor import is_planning
from chomp.storage import FileInfo, file_info, glob_files, is_local, open_stream
from chomp.storage.file_hashes import FileState, remember_hashes, remembered_hashes

_MAX_THREADS = 4
_BUFFER_BYTES = 1 << 20
# Hashing that takes less has no progress bar.
_PATIENCE_S = 3.0
_REDRAW_S = 0.2
# The hash of a larger file is remembered at once, of others when all are read.
_SAVED_AT_ONCE = 16 << 20
# Compressed bytes taken at once: text shrinks to a third or so, and zeros to a thousandth.
_ZSTD_CHUNK_BYTES = 1 << 16
# What `zstd --long=31` needs; taken only by files that were written so.
_ZSTD_MAX_WINDOW_BYTES = 1 << 31


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


def records_of_parts(
    parts: Sequence[str],
    start: Position,
    records_of: Callable[[str, int], Iterator[tuple[int, Record]]],
) -> Iterator[tuple[Position, Record]]:
    """The records of each part from `start` on; `records_of` numbers those of one from a first."""
    for part in range(start.part, len(parts)):
        first = start.record if part == start.part else 0
        with missing_is_an_error(parts[part]):
            for number, record in records_of(parts[part], first):
                yield Position(part, number), record


@contextmanager
def missing_is_an_error(path: str) -> Iterator[None]:
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
        with missing_is_an_error(path):
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
    """The hash of each file, which is read; a bar shows how far that is, if it takes long."""
    for path, info in files.items():
        if isinstance(info, FileInfo):
            refuse_download(path)
    is_over, guard = threading.Event(), threading.Lock()
    read_bytes = 0
    unsaved: dict[FileState, bytes] = {}

    def digest_of(path: str) -> bytes:
        nonlocal read_bytes
        began_s, digest = time.time(), hashlib.sha256()
        with missing_is_an_error(path), open_stream(path) as stream:
            while (chunk := stream.read(_BUFFER_BYTES)) and not is_over.is_set():
                digest.update(chunk)
                with guard:
                    read_bytes += len(chunk)
        info = files[path]
        if isinstance(info, FileState) and not is_over.is_set():
            if info.size_bytes > _SAVED_AT_ONCE:
                remember_hashes({info: digest.digest()}, began_s=began_s)
            else:
                unsaved[info] = digest.digest()
        return digest.digest()

    first_began_s, shown = time.time(), 0
    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        futures = {path: pool.submit(digest_of, path) for path in files}
        try:
            if wait(futures.values(), timeout=_PATIENCE_S, return_when="FIRST_EXCEPTION").not_done:
                total = sum(info.size_bytes for info in files.values())
                with progress_bar("hashing the sources", total=total, unit="bytes") as advance:
                    waiting = True
                    while waiting and not any(
                        each.done() and each.exception() for each in futures.values()
                    ):
                        advance(read_bytes - shown)
                        shown = read_bytes
                        waiting = bool(
                            wait(
                                futures.values(), timeout=_REDRAW_S, return_when="FIRST_EXCEPTION"
                            ).not_done
                        )
            return {path: future.result() for path, future in futures.items()}
        except BaseException:
            # Leaving the pool waits for its threads, which may be deep in a large file.
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            remember_hashes(dict(unsaved), began_s=first_began_s)


def numbered_lines(path: str, first: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from number `first` on; `.gz` and `.zst` are decompressed."""
    number = first - 1
    with open_stream(path) as stream:
        content = stream
        if path.endswith(".gz"):
            # GzipFile's own line reading is Python; the buffer's is C.
            content = io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=stream)), _BUFFER_BYTES)
        elif path.endswith(".zst"):
            zstandard = optional_package("zstandard", extra="zstd", purpose=f"source {path}")
            content = io.BufferedReader(_ZstdFile(stream, zstandard), _BUFFER_BYTES)
        try:
            for number, line in enumerate(islice(content, first, None), start=first):
                yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile, _DamagedZstd) as error:
            raise DataError(
                f"record {path}:{number + 1} cannot be decompressed: {error}",
                allowed="a whole file of the kind that its suffix names",
                fix="copy or write the file again: it was cut short or damaged",
            ) from error


class _DamagedZstd(Exception):
    """A zstd file that is cut short, or none."""


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
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
