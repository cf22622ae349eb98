"""Looking at, listing, reading, making and removing files and folders.

Plain local paths go straight to the operating system; addresses are read through fsspec. A folder
that somebody else made may hold a pipe or a device under any name: what is read with a bound, as
JSON or as a stream is a regular file, or an error at once. Whatever goes wrong is a `StorageError`
that names the path.
"""

import errno
import glob
import io
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from chomp.errors import StorageError
from chomp.storage.errors import NotAFile, storage_errors
from chomp.storage.paths import (
    StrPath,
    filesystem_of,
    is_local,
    is_temporary,
    join,
    name_of,
    normalise,
    parent_of,
    require_local,
)

# Large enough that the checks around each read cost nothing beside it.
_BUFFER_BYTES = 1 << 20
# Ten times the largest in use: the metadata of a checkpoint or of a store of many shards.
MAX_JSON_BYTES = 256 << 20
# Of a text that people write or read: source of a template, a sample, a page.
MAX_TEXT_BYTES = 16 << 20
# Far more than any file of ours has, and little enough for whoever walks the value recursively.
MAX_DEPTH = 100
# Checksums as S3, Google, Azure, the Hugging Face hub and web servers name them. Hashes of the
# content come first: an entity tag may change when only the metadata does.
_CHECKSUM_KEYS = ("md5Hash", "crc32c", "blob_id", "ETag", "etag")


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """Size in bytes, and the store's own checksum with its kind; None where there is none."""

    size_bytes: int
    checksum: str | None


def exists(path: StrPath) -> bool:
    """Whether anything is at the path; a link that leads nowhere counts as nothing."""
    text = normalise(path)
    with storage_errors(text, "look at"):
        if is_local(text):
            return _mode_of(text) is not None
        filesystem, inner = filesystem_of(text)
        return bool(filesystem.exists(inner))


def is_folder(path: StrPath) -> bool:
    """Whether a folder is at the path."""
    text = normalise(path)
    with storage_errors(text, "look at"):
        if is_local(text):
            mode = _mode_of(text)
            return mode is not None and stat.S_ISDIR(mode)
        filesystem, inner = filesystem_of(text)
        return bool(filesystem.isdir(inner))


def file_info(path: StrPath) -> FileInfo:
    """What is known about a file without reading it. A missing file is a `StorageError`.

    Object stores keep a checksum; a mounted filesystem does not, and file times do not replace it.
    """
    text = normalise(path)
    with storage_errors(text, "look at"):
        if is_local(text):
            found = os.stat(text)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                raise NotAFile(errno.EINVAL, NotAFile.__doc__, text)
            return FileInfo(size_bytes=found.st_size, checksum=None)
        filesystem, inner = filesystem_of(text)
        info = filesystem.info(inner)
    tags = [(key, info[key]) for key in _CHECKSUM_KEYS if info.get(key)]
    # A weak tag promises the same meaning, not the same bytes.
    strong = [f"{key}={tag}" for key, tag in tags if isinstance(tag, str) and tag[:2] != "W/"]
    return FileInfo(size_bytes=int(info.get("size") or 0), checksum=strong[0] if strong else None)


def list_folder(path: StrPath) -> list[str]:
    """Names of what the folder holds, sorted; unfinished temporary files are left out."""
    text = normalise(path)
    with storage_errors(text, "list"):
        if is_local(text):
            names = os.listdir(text)
        else:
            filesystem, inner = filesystem_of(text)
            _require_folder(text)
            # Object stores may list the folder's own placeholder among what it holds.
            entries = (entry.rstrip("/") for entry in filesystem.ls(inner, detail=False))
            names = [name_of(entry) for entry in entries if entry != inner]
    return sorted(name for name in names if not is_temporary(name))


def glob_files(pattern: StrPath) -> list[str]:
    """Files that match the pattern, sorted and spelled like it; none is an empty list.

    `*` stays within a folder, `**` goes down. As in a shell, hidden local files need a pattern
    with the dot, and local folders this user cannot read are passed over.
    """
    text = normalise(pattern)
    with storage_errors(text, "list"):
        if is_local(text):
            found = [path for path in glob.glob(text, recursive=True) if os.path.isfile(path)]
        else:
            found = _glob_addresses(text)
    return sorted({path for path in found if not is_temporary(name_of(path))})


def folder_size_bytes(path: StrPath) -> int:
    """Bytes of all files below a local folder; files that vanish meanwhile count as nothing."""
    text = require_local(path, "measure")

    def refuse_unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    total = 0
    with storage_errors(text, "measure"):
        _require_folder(text)
        for parent, _, names in os.walk(text, onerror=refuse_unreadable):
            for name in names:
                try:
                    total += os.lstat(os.path.join(parent, name)).st_size
                except FileNotFoundError:
                    continue
    return total


def make_folder(path: StrPath, *, inside: StrPath | None = None) -> None:
    """Make the folder and its parents; one that is there already is fine, a file is not.

    With `inside`, a folder that it lies in, a link that leads out of that one is refused.
    """
    text = require_local(path, "make")
    if inside is not None:
        require_inside(text, inside)
    with storage_errors(text, "make"):
        os.makedirs(text, exist_ok=True)


def remove_tree(path: StrPath) -> None:
    """Remove the file, or the folder with all it holds; nothing there is fine.

    A symbolic link is removed, not what it points to. The root of a filesystem is refused.
    """
    text = require_local(path, "remove")
    where = os.path.abspath(text)
    if parent_of(where) == where:
        raise StorageError(
            f"cannot remove {text}: it is the root of its filesystem",
            allowed="a file or a folder below the root",
            fix="look where this path was put together; one of its parts is probably unset",
        )
    with storage_errors(text, "remove"):
        if os.path.isdir(text) and not os.path.islink(text):
            shutil.rmtree(text)
        elif os.path.lexists(text):
            os.unlink(text)


def require_inside(path: StrPath, folder: StrPath) -> None:
    """Raise `StorageError` where a symbolic link below `folder` leads `path` out of it.

    The folder itself and what is above it may be links.
    """
    text, root = normalise(path), os.path.realpath(normalise(folder))
    if not is_local(text):
        return
    real = os.path.realpath(text)
    if os.path.commonpath([real, root]) != root:
        raise StorageError(
            f"{text} leads out of {root} by a symbolic link, to {real}",
            allowed="files and folders of a run that lie in its folder",
            fix="remove the link; to have a run on another disk, give its folder there "
            "(--run-dir, --prefix), or make the whole run folder a link",
        )


def require_links_inside(folder: StrPath, names: Iterable[str]) -> None:
    """`require_inside` for these names in `folder`, and for all folders down to two levels below.

    No deeper, where a checkpoint has its arrays: those are many files, and none is written twice.
    """
    if not is_local(folder):
        return
    for top in (join(folder, name) for name in names):
        require_inside(top, folder)
        for parent, inner, _ in os.walk(top):
            for path in (os.path.join(parent, name) for name in inner):
                if os.path.islink(path):
                    require_inside(path, folder)
            if parent != top:
                inner.clear()


def read_bytes(path: StrPath, *, max_bytes: int | None = None) -> bytes:
    """The whole content of a file.

    With `max_bytes`, as for files in a run, a store or a checkpoint: a larger file, or anything but
    a regular one, is an error. Without, the path is the user's own word and may be a pipe.
    """
    text = normalise(path)
    with storage_errors(text, "read"):
        if not is_local(text):
            filesystem, inner = filesystem_of(text)
            content: bytes = filesystem.cat_file(inner)
            return content
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


def read_text(path: StrPath, *, max_bytes: int | None = None) -> str:
    """The whole content of a UTF-8 file, line ends as they are; `max_bytes` as in `read_bytes`."""
    raw = read_bytes(path, max_bytes=max_bytes)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StorageError(
            f"{normalise(path)} is not UTF-8: byte {raw[error.start]:#04x} at offset "
            f"{error.start} of {len(raw)}",
            allowed="text in UTF-8",
            fix="convert the file to UTF-8, or read it as bytes if it is not text",
        ) from error


def read_json(path: StrPath) -> Any:
    """The value in a strict JSON file, as `parse_json` has it."""
    text = read_text(path, max_bytes=MAX_JSON_BYTES)
    try:
        return parse_json(text)
    except ValueError as error:
        raise StorageError(
            f"{normalise(path)} ({len(text)} characters) is not JSON: {error}",
            allowed="one strict JSON value",
            fix="repair the file, or remove it if it can be made again",
        ) from error


def parse_json(text: str | bytes) -> Any:
    """The value of a strict JSON text; a `ValueError` says what is wrong with it.

    Python's own reader takes NaN, lets the last of two equal keys win, and gives up at deep nesting
    with an error of its own. Here NaN, infinity, numbers too large to be finite, a key given twice,
    and nesting deeper than `MAX_DEPTH` are errors.
    """

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"it holds the bare word {name}")

    def finite(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ValueError("it holds a number that is too large to be finite")
        return number

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1)
            raise ValueError(f"it holds the key {twice[:40]!r} twice in one object")
        return found

    too_deep = f"it is nested deeper than {MAX_DEPTH} lists and objects"
    try:
        value = json.loads(
            text, parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=unique_keys
        )
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        boxes = [each for each in level if isinstance(each, dict | list)]
        if not boxes:
            return value
        level = [item for box in boxes for item in (box.values() if isinstance(box, dict) else box)]
    raise ValueError(too_deep)


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


def _mode_of(path: str) -> int | None:
    # os.path.exists answers "no" where the truth is "not permitted to know".
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _require_folder(path: str) -> None:
    if not is_folder(path):
        code = errno.ENOTDIR if exists(path) else errno.ENOENT
        raise OSError(code, os.strerror(code), path)


def _glob_addresses(pattern: str) -> list[str]:
    # fsspec answers in its own spelling, which may have lost the scheme or the host. The part
    # before the first wildcard is known in both spellings and is swapped back.
    plain = pattern
    while glob.has_magic(plain):
        if parent_of(plain) == plain:
            raise StorageError(
                f"pattern {pattern} with a wildcard in the bucket's name",
                allowed="wildcards after the bucket's name",
                fix="write the bucket's name in full",
            )
        plain = parent_of(plain)
    filesystem, inner = filesystem_of(pattern)
    inner_plain = filesystem_of(plain)[1]
    return [
        join(plain, path.removeprefix(inner_plain).lstrip("/"))
        for path, info in filesystem.glob(inner, detail=True).items()
        if info["type"] == "file"
    ]
