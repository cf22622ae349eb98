"""The content of files, local or behind fsspec, as bytes, text or strict JSON.

What cannot be decoded is a `StorageError` that says where in the file the trouble is.
"""

import json
from typing import Any, NoReturn

from chomp.errors import StorageError, message
from chomp.storage.failures import storage_errors
from chomp.storage.locations import StrPath, filesystem_of, is_local, normalise


def read_bytes(path: StrPath) -> bytes:
    """The whole content of a file."""
    text = normalise(path)
    with storage_errors(text, "read"):
        if is_local(text):
            with open(text, "rb") as file:
                return file.read()
        filesystem, inner = filesystem_of(text)
        return filesystem.cat_file(inner)


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
    """The value in a strict JSON file: bare NaN and Infinity are errors, as when writing."""
    text = read_text(path)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise StorageError(
            message(
                given=f"{normalise(path)} ({len(text)} characters) is not JSON: {error}",
                allowed="one strict JSON value",
                fix="repair the file, or remove it if it can be made again",
            )
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds the bare word {name}")
