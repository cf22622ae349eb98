"""Looking at, listing, reading, writing, moving and removing files and folders.

Plain local paths go straight to the operating system; addresses are read through fsspec, and never
written. A folder that somebody else made may hold a pipe or a device under any name: what is read
with a bound, as JSON or as a stream is a regular file, or an error at once.

A file is written under a temporary name in the same folder, synced, and renamed; then the folder is
synced. So a reader, a crash or a full disk never sees half of a file: whatever fails before the
rename leaves the old content as it was. Whatever goes wrong is a `StorageError` with the path.
"""

import contextlib
import errno
import glob
import io
import json
import math
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
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
    temporary_beside,
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
# A whole filesystem block, so that a full disk shows at the start and not hours later.
_PROBE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """Size in bytes, and the store's own checksum with its kind; None where there is none."""

    size_bytes: int
    checksum: str | None


# ---- Looking and listing ---------------------------------------------------------------------


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
            return stat.S_ISDIR(_mode_of(text) or 0)
        filesystem, inner = filesystem_of(text)
        return bool(filesystem.isdir(inner))


def _mode_of(path: str) -> int | None:
    # os.path.exists answers "no" where the truth is "not permitted to know".
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


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
            _require_folder(text)
            filesystem, inner = filesystem_of(text)
            # Object stores may list the folder's own placeholder among what it holds.
            entries = (entry.rstrip("/") for entry in filesystem.ls(inner, detail=False))
            names = [name_of(entry) for entry in entries if entry != inner]
    return sorted(name for name in names if not is_temporary(name))


def _require_folder(path: str) -> None:
    if not is_folder(path):
        code = errno.ENOTDIR if exists(path) else errno.ENOENT
        raise OSError(code, os.strerror(code), path)


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
            # fsspec answers in its own spelling, which may have lost the scheme or the host. The
            # part before the first wildcard is known in both spellings and is swapped back.
            plain = text
            while glob.has_magic(plain):
                if parent_of(plain) == plain:
                    raise StorageError(
                        f"pattern {text} with a wildcard in the bucket's name",
                        allowed="wildcards after the bucket's name",
                        fix="write the bucket's name in full",
                    )
                plain = parent_of(plain)
            filesystem, inner = filesystem_of(text)
            prefix = filesystem_of(plain)[1]
            paths = filesystem.glob(inner, detail=True).items()
            files = [path for path, info in paths if info["type"] == "file"]
            found = [join(plain, path.removeprefix(prefix).lstrip("/")) for path in files]
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
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(parent, name)).st_size
    return total


# ---- Making and removing ---------------------------------------------------------------------


def make_folder(path: StrPath, *, inside: StrPath | None = None) -> None:
    """Make the folder and its parents; one that is there already is fine, a file is not.

    With `inside`, a folder that it lies in, a link that leads out of that one is refused.
    """
    text = require_local(path, "make")
    if inside is not None:
        require_inside(text, inside)
    with storage_errors(text, "make"):
        os.makedirs(text, exist_ok=True)


def require_inside(path: StrPath, folder: StrPath) -> None:
    """Raise `StorageError` where a symbolic link below `folder` leads `path` out of it.

    The folder itself and what is above it may be links.
    """
    text, root = normalise(path), os.path.realpath(normalise(folder))
    real = os.path.realpath(text)
    if is_local(text) and os.path.commonpath([real, root]) != root:
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


def rename_folder(source: StrPath, target: StrPath) -> None:
    """Give a folder a new path on the same filesystem; a target that exists is refused.

    One atomic rename, and the new name survives a power cut (the files inside only if they were
    synced before).
    """
    old, new = require_local(source, "rename"), require_local(target, "rename")
    with storage_errors(old, "rename"):
        _require_folder(old)
    with storage_errors(new, "rename"):
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        # Between the check and this line only an empty folder could still be replaced: rename
        # fails on a file and on a folder that holds anything.
        try:
            os.rename(old, new)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            raise StorageError(
                f"cannot rename {old} to {new}: they are on different filesystems",
                allowed="two paths on one filesystem",
                fix="copy the folder there, check the copy, and remove the original",
            ) from error
    _sync_name(new)
    if parent_of(old) != parent_of(new):
        _sync_name(old)


# ---- Reading ---------------------------------------------------------------------------------


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
        with open(text if max_bytes is None else open_regular(text), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if max_bytes is not None and size > max_bytes:
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
        if math.isinf(number := float(digits)):
            raise ValueError("it holds a number that is too large to be finite")
        return number

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1)
            raise ValueError(f"it holds the key {twice[:40]!r} twice in one object")
        return found

    with contextlib.suppress(RecursionError):
        value = json.loads(
            text, parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=unique_keys
        )
        level = [value]
        for _ in range(MAX_DEPTH + 1):
            boxes = [each for each in level if isinstance(each, dict | list)]
            if not boxes:
                return value
            level = [x for box in boxes for x in (box.values() if isinstance(box, dict) else box)]
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} lists and objects")


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

    def tell(self) -> int:
        return self._raw.tell()

    def readinto(self, buffer: Any) -> int:
        with storage_errors(self._path, "read"):
            # Every raw and every fsspec file has it, though IO does not say so.
            return self._raw.readinto(buffer) or 0  # type: ignore[attr-defined]

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with storage_errors(self._path, "read"):
            return self._raw.seek(offset, whence)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


# ---- Writing ---------------------------------------------------------------------------------


def write_bytes_atomic(path: StrPath, data: bytes) -> None:
    """The file holds exactly `data`, or what it held before if this raises.

    A symbolic link in its place is replaced, never written through: a run folder may be anybody's.
    The permissions of an existing file are kept. The folder must exist. Costs two syncs,
    a few milliseconds on a local disk.
    """
    text = require_local(path, "write")
    with storage_errors(text, "write"), _temporary_file(data, beside=text) as temporary:
        os.replace(temporary, text)
    _sync_name(text)


@contextlib.contextmanager
def _temporary_file(data: bytes, *, beside: str) -> Iterator[str]:
    """A synced temporary file with `data`, removed at the end unless it was renamed.

    One that a killed process left behind is hidden, and nothing ever reads it.
    """
    temporary = temporary_beside(beside)
    try:
        # Not tempfile: its files are private to the user, which the final file should not be.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(beside).st_mode
                mode = stat.S_IMODE(found)
                # Not those of a link, which is replaced. Filesystems without permissions refuse to
                # set them, but have nothing to set either.
                if not stat.S_ISLNK(found) and mode != stat.S_IMODE(os.fstat(descriptor).st_mode):
                    os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        yield temporary
    finally:
        # A failure here would hide the one that matters, and leaves only a hidden file.
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write_text_atomic(path: StrPath, text: str) -> None:
    """The file holds exactly `text` in UTF-8, or what it held before if this raises."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StorageError(
            f"cannot write {normalise(path)}: character {error.start} is {error.reason}",
            allowed="text that UTF-8 can hold",
            fix="replace that character; it usually comes from a badly decoded file name",
        ) from error
    write_bytes_atomic(path, data)


def write_json_atomic(
    path: StrPath, value: object, *, indent: int | None = 2, sort_keys: bool = False
) -> None:
    """The file holds `value` as strict JSON and a line end, or what it held before if this raises.

    NaN, infinity, keys that are not str and types JSON lacks are errors that name the key path.
    """
    name = normalise(path)
    write_text_atomic(name, json_text(value, name=name, indent=indent, sort_keys=sort_keys) + "\n")


def json_text(
    value: object, *, name: str, indent: int | None = None, sort_keys: bool = False
) -> str:
    """The value as strict JSON; `name` says in an error what was being written.

    Dicts with str keys, lists, tuples (which read back as lists), str, int, finite float, bool and
    None are allowed. Python's own writer lets NaN through and turns the key 1 into "1".
    """

    def check(value: object, at: str, inside: tuple[int, ...]) -> None:
        """Raise for the first value that is not JSON, by where it stands (`config.lr[2]`)."""
        fault, items = "", list[tuple[str, object]]()
        if isinstance(value, float) and not math.isfinite(value):
            fault = repr(float(value))
        elif id(value) in inside:
            fault = "a container that holds itself"
        elif isinstance(value, dict):
            odd = next((key for key in value if not isinstance(key, str)), None)
            if odd is not None or None in value:
                fault = f"a dict with the key {odd!r} of type {type(odd).__name__}"
            items = [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            items = [(f"{at}[{index}]", item) for index, item in enumerate(value)]
        elif value is not None and not isinstance(value, str | int | float):  # bool is an int
            fault = f"of type {type(value).__module__}.{type(value).__qualname__}"
        if fault:
            raise StorageError(
                f"cannot write {name} as JSON: {at or 'the value itself'} is {fault}",
                allowed="dicts with str keys, lists, str, int, finite float, bool and None",
                fix="write null or a string in its place, or leave the key out",
            )
        for where, item in items:
            check(item, where, (*inside, id(value)))

    check(value, "", ())
    return json.dumps(value, allow_nan=False, indent=indent, sort_keys=sort_keys)


def open_to_append(path: str) -> int:
    """A descriptor that adds to the end of a local file, which is made if missing.

    A symbolic link is refused with an `OSError`: it may lead to any file of this user.
    """
    return open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def require_writable_folder(path: StrPath) -> None:
    """Make the folder and prove that files can be written in it, or raise `StorageError`.

    Leaves the folder, and nothing in it. Meant for the start of a run, so that a wrong output path
    fails in the first second.
    """
    make_folder(path)
    probe = join(path, "probe")
    with storage_errors(probe, "write"), _temporary_file(bytes(_PROBE_BYTES), beside=probe):
        pass


def _sync_name(path: str) -> None:
    """Make the name of a local file or folder survive a power cut, where the filesystem can.

    Called after the name is in place, so a failure says that the change itself was made.
    """
    try:
        _sync(parent_of(path), os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(
            f"{path} is in place, but its folder could not be synced: {error}",
            allowed="a filesystem that keeps new names through a power cut",
            fix="check the disk, then do this again",
        ) from error


def sync_tree(folder: str) -> None:
    """Make every file and name below a local folder survive a power cut.

    For what other libraries wrote there, before the folder counts as whole. Files that vanish
    meanwhile are passed over.
    """
    for inner, _, names in os.walk(folder):
        # Opening a pipe would wait.
        files = [
            path for path in (os.path.join(inner, name) for name in names) if os.path.isfile(path)
        ]
        for path in (*files, inner):
            with contextlib.suppress(FileNotFoundError):
                _sync(path)


def _sync(path: str, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network filesystems sync names on their own and refuse to be asked.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
