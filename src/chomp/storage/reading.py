"""The content of files, local or behind fsspec, as bytes, a stream, text or strict JSON.

What cannot be decoded is a `StorageError` that says where in the file the trouble is.
"""

import io
import itertools
import json
from typing import IO, Any, NoReturn

from chomp.errors import StorageError, message
from chomp.storage.failures import storage_errors
from chomp.storage.locations import StrPath, filesystem_of, is_local, normalise

# Large enough that the checks around each read cost nothing beside it.
_BUFFER_BYTES = 1 << 20
# Of lists and mappings inside each other, far more than any file of ours has, and few enough for
# whoever goes through the value by recursion.
_MAX_DEPTH = 100
_TOO_DEEP = f"it is nested deeper than {_MAX_DEPTH} lists and mappings"


def read_bytes(path: StrPath) -> bytes:
    """The whole content of a file."""
    text = normalise(path)
    with storage_errors(text, "read"):
        if is_local(text):
            with open(text, "rb") as file:
                return file.read()
        filesystem, inner = filesystem_of(text)
        return filesystem.cat_file(inner)


def open_stream(path: StrPath) -> io.BufferedReader:
    """The file as a buffered, seekable stream to be closed by the caller.

    What goes wrong later, in the middle of reading, is a `StorageError` too.
    """
    text = normalise(path)
    with storage_errors(text, "read"):
        if is_local(text):
            raw: IO[bytes] = open(text, "rb", buffering=0)  # noqa: SIM115 (the caller's to close)
        else:
            filesystem, inner = filesystem_of(text)
            raw = filesystem.open(inner, "rb")
    return io.BufferedReader(_CheckedFile(raw, text), _BUFFER_BYTES)


def read_text(path: StrPath) -> str:
    """The whole content of a UTF-8 file, line ends as they are."""
    raw = read_bytes(path)
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
    """The value in a strict JSON file: bare NaN and Infinity are errors, as when writing.

    So is a value that is nested deeper than 100 lists and mappings.
    """
    text = read_text(path)
    try:
        return _shallow(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        reason = _TOO_DEEP if isinstance(error, RecursionError) else error
        raise StorageError(
            message(
                given=f"{normalise(path)} ({len(text)} characters) is not JSON: {reason}",
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


def _shallow(value: Any) -> Any:
    """The value; `ValueError` for one that is nested too deep."""
    level, depth = [value], 0
    while level := [item for item in level if type(item) in (dict, list)]:
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        inside = (item.values() if type(item) is dict else item for item in level)
        level = list(itertools.chain.from_iterable(inside))
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds the bare word {name}")
