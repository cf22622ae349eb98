"""The content of files, local or behind fsspec, as bytes, a stream, text or strict JSON.

What cannot be decoded is a `StorageError` that says where in the file the trouble is. A folder that
somebody else made may hold a pipe or a device under any name: what is read with a bound, as JSON or
as a stream is a regular file, or an error at once.
"""

import errno
import io
import os
import stat
from typing import IO, Any

from chomp.errors import StorageError, message
from chomp.storage.failures import NotAFile, storage_errors
from chomp.storage.locations import StrPath, filesystem_of, is_local, normalise
from chomp.storage.strict_json import parse_json

# Large enough that the checks around each read cost nothing beside it.
_BUFFER_BYTES = 1 << 20
# Ten times the largest in use: the metadata of a checkpoint or of a store of many shards.
MAX_JSON_BYTES = 256 << 20
# Of a text that people write or read: source of a template, a sample, a page.
MAX_TEXT_BYTES = 16 << 20


def read_bytes(path: StrPath, *, max_bytes: int | None = None) -> bytes:
    """The whole content of a file.

    With `max_bytes`, as for files in a run, a store or a checkpoint: a larger file, or anything but
    a regular one, is an error. Without, the path is the user's own word and may be a pipe.
    """
    text = normalise(path)
    with storage_errors(text, "read"):
        if not is_local(text):
            filesystem, inner = filesystem_of(text)
            return filesystem.cat_file(inner)
        if max_bytes is None:
            with open(text, "rb") as file:
                return file.read()
        with open(open_regular(text), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise StorageError(
                    f"{text} has {size:,} bytes",
                    allowed=f"up to {max_bytes:,} bytes for a file of its kind",
                    fix="bring it back as it was written, or remove it if it can be made again",
                )
            return file.read()


def open_regular(path: str, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """A descriptor of a local regular file, without waiting; `OSError` for anything else."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a pipe without a reader, or a socket
            raise NotAFile(error.errno, NotAFile.__doc__, path) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise NotAFile(errno.EINVAL, NotAFile.__doc__, path)


def open_stream(path: StrPath) -> io.BufferedReader:
    """The file as a buffered, seekable stream to be closed by the caller.

    What goes wrong later, in the middle of reading, is a `StorageError` too.
    """
    text = normalise(path)
    with storage_errors(text, "read"):
        if is_local(text):
            raw: IO[bytes] = open(open_regular(text), "rb", buffering=0)  # noqa: SIM115 (the caller's to close)
        else:
            filesystem, inner = filesystem_of(text)
            raw = filesystem.open(inner, "rb")
    return io.BufferedReader(_CheckedFile(raw, text), _BUFFER_BYTES)


def read_text(path: StrPath, *, max_bytes: int | None = None) -> str:
    """The whole content of a UTF-8 file, line ends as they are; `max_bytes` as in `read_bytes`."""
    raw = read_bytes(path, max_bytes=max_bytes)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StorageError(
            message(
                given=f"{normalise(path)} is not UTF-8: byte {raw[error.start]:#04x} at offset "
                f"{error.start} of {len(raw)}",
                allowed="text in UTF-8",
                fix="convert the file to UTF-8, or read it as bytes if it is not text",
            )
        ) from error


def read_json(path: StrPath) -> Any:
    """The value in a strict JSON file, as `parse_json` has it."""
    text = read_text(path, max_bytes=MAX_JSON_BYTES)
    try:
        return parse_json(text)
    except ValueError as error:
        raise StorageError(
            message(
                given=f"{normalise(path)} ({len(text)} characters) is not JSON: {error}",
                allowed="one strict JSON value",
                fix="repair the file, or remove it if it can be made again",
            )
        ) from error


class _CheckedFile(io.RawIOBase):
    """A file opened for reading whose failures are explained."""

    def __init__(self, raw: IO[bytes], path: str) -> None:
        self._raw = raw
        self._path = path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._raw.seekable()

    def readinto(self, buffer: Any) -> int:
        with storage_errors(self._path, "read"):
            # Every raw and every fsspec file has it, though IO does not say so.
            return self._raw.readinto(buffer) or 0  # type: ignore[attr-defined]

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with storage_errors(self._path, "read"):
            return self._raw.seek(offset, whence)

    def tell(self) -> int:
        return self._raw.tell()

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
