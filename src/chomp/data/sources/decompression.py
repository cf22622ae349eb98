"""The lines of a file that may be compressed; the suffix says how.

A compressed file that ends too early is an error here, whatever its library thinks of it.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

from chomp.data.sources.optional_packages import optional_package
from chomp.errors import DataError
from chomp.storage import open_stream

_BUFFER_BYTES = 1 << 20
# Compressed bytes taken at once: text shrinks to a third or so, and zeros to a thousandth.
_ZSTD_CHUNK_BYTES = 1 << 16
# What `zstd --long=31` needs; taken only by files that were written so.
_ZSTD_MAX_WINDOW_BYTES = 1 << 31


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
