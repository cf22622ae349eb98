"""Writing so that a reader, a crash or a full disk never sees half of a file.

A file is written under a temporary name in the same folder, synced, and renamed; then the folder is
synced. Whatever fails before the rename leaves the old content as it was. Only local paths are
written.
"""

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator

from chomp.errors import StorageError
from chomp.storage.errors import storage_errors
from chomp.storage.files import exists, is_folder, make_folder, open_regular
from chomp.storage.paths import (
    StrPath,
    join,
    normalise,
    parent_of,
    require_local,
    temporary_beside,
)

# A whole filesystem block, so that a full disk shows at the start and not hours later.
_PROBE_BYTES = 4096


def write_bytes_atomic(path: StrPath, data: bytes) -> None:
    """The file holds exactly `data`, or what it held before if this raises.

    A symbolic link in its place is replaced, never written through: a run folder may be anybody's.
    The permissions of an existing file are kept. The folder must exist. Costs two syncs,
    a few milliseconds on a local disk.
    """
    text = require_local(path, "write")
    with storage_errors(text, "write"), temporary_file(data, beside=text) as temporary:
        os.replace(temporary, text)
    sync_name(text)


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
    fault = _first_fault(value, at="", inside=())
    if fault is not None:
        where, what = fault
        raise StorageError(
            f"cannot write {name} as JSON: {where or 'the value itself'} is {what}",
            allowed="dicts with str keys, lists, str, int, finite float, bool and None",
            fix="write null or a string in its place, or leave the key out",
        )
    return json.dumps(value, allow_nan=False, indent=indent, sort_keys=sort_keys)


def open_to_append(path: str) -> int:
    """A descriptor that adds to the end of a local file, which is made if missing.

    A symbolic link is refused with an `OSError`: it may lead to any file of this user.
    """
    return open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def rename_folder(source: StrPath, target: StrPath) -> None:
    """Give a folder a new path on the same filesystem; a target that exists is refused.

    One atomic rename, and the new name survives a power cut (the files inside only if they were
    synced before).
    """
    old, new = require_local(source, "rename"), require_local(target, "rename")
    with storage_errors(old, "rename"):
        if not is_folder(old):
            code = errno.ENOTDIR if exists(old) else errno.ENOENT
            raise OSError(code, os.strerror(code), old)
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
    sync_name(new)
    if parent_of(old) != parent_of(new):
        sync_name(old)


def require_writable_folder(path: StrPath) -> None:
    """Make the folder and prove that files can be written in it, or raise `StorageError`.

    Leaves the folder, and nothing in it. Meant for the start of a run, so that a wrong output path
    fails in the first second.
    """
    text = normalise(path)
    make_folder(text)
    probe = join(text, "probe")
    with storage_errors(probe, "write"), temporary_file(bytes(_PROBE_BYTES), beside=probe):
        pass


@contextlib.contextmanager
def temporary_file(data: bytes, *, beside: str) -> Iterator[str]:
    """A synced temporary file with `data`, removed at the end unless it was renamed.

    One that a killed process left behind is hidden, and nothing ever reads it.
    """
    temporary = temporary_beside(beside)
    try:
        # Not tempfile: its files are private to the user, which the final file should not be.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(descriptor, "wb") as file:
            _copy_permissions(beside, descriptor)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        yield temporary
    finally:
        # A failure here would hide the one that matters, and leaves only a hidden file.
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def sync_name(path: str) -> None:
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
        for path in (os.path.join(inner, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                if os.path.isfile(path):  # opening a pipe would wait
                    _sync(path)
        with contextlib.suppress(FileNotFoundError):
            _sync(inner)


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


def _copy_permissions(path: str, descriptor: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path).st_mode
        if stat.S_ISLNK(found):
            return  # it is replaced, and what it leads to is another file
        mode = stat.S_IMODE(found)
        # Filesystems without permissions refuse to set them, but have nothing to set either.
        if mode != stat.S_IMODE(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, mode)


def _first_fault(value: object, *, at: str, inside: tuple[int, ...]) -> tuple[str, str] | None:
    """Where the first value that is not JSON stands (`config.lr[2]`), and what it is."""
    if value is None or isinstance(value, str | int):  # bool is an int
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else (at, repr(float(value)))
    if id(value) in inside:
        return at, "a container that holds itself"
    if isinstance(value, dict):
        entries = [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
        odd_keys = [key for key in value if not isinstance(key, str)]
        if odd_keys:
            return at, f"a dict with the key {odd_keys[0]!r} of type {type(odd_keys[0]).__name__}"
    elif isinstance(value, list | tuple):
        entries = [(f"{at}[{index}]", item) for index, item in enumerate(value)]
    else:
        return at, f"of type {type(value).__module__}.{type(value).__qualname__}"
    faults = (_first_fault(item, at=where, inside=(*inside, id(value))) for where, item in entries)
    return next((fault for fault in faults if fault is not None), None)
