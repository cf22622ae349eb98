"""Writing files so that a reader, a crash or a full disk never meets half of one.

A local file is written under a temporary name in the same folder, synced, and given its real name
in one step; then the folder is synced. Whatever fails before that step leaves the old content as it
was. Other filesystems get the whole content in a single put, which object stores make visible at
once. `append_line` is the exception, for logs: it never rewrites what is there.
"""

import contextlib
import errno
import os

from chomp.errors import StorageError, message
from chomp.storage.failures import storage_errors
from chomp.storage.locations import (
    MEMORY_GUARD,
    StrPath,
    filesystem_of,
    is_local,
    is_memory,
    normalise,
)
from chomp.storage.reading import open_regular
from chomp.storage.strict_json import json_text
from chomp.storage.temporary import sync_name, temporary_with

# Stores that refuse a second create on the server (If-None-Match, ifGenerationMatch). fsspec's
# default asks "is it there?" and then writes, which two processes can both win.
_EXCLUSIVE_SCHEMES = ("s3://", "s3a://", "gs://", "gcs://")
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def write_bytes_atomic(path: StrPath, data: bytes) -> None:
    """The file holds exactly `data`, or what it held before if this raises.

    A symbolic link in its place is replaced, never written through: a run folder may be anybody's.
    The permissions of an existing file are kept. The folder must exist. Costs two syncs,
    a few milliseconds on a local disk.
    """
    text = normalise(path)
    with storage_errors(text, "write"):
        if not is_local(text):
            filesystem, inner = filesystem_of(text)
            filesystem.pipe_file(inner, data)
            return
        with temporary_with(data, beside=text) as temporary:
            os.replace(temporary, text)
    sync_name(text)


def write_text_atomic(path: StrPath, text: str) -> None:
    """The file holds exactly `text` in UTF-8, or what it held before if this raises."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StorageError(
            message(
                given=f"cannot write {normalise(path)}: character {error.start} is {error.reason}",
                allowed="text that UTF-8 can hold",
                fix="replace that character; it usually comes from a badly decoded file name",
            )
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


def create_exclusive(path: StrPath, data: bytes) -> bool:
    """Whether this call made the file; False, and nothing changed, when it was there already.

    Of any number of processes exactly one gets True, and the file appears with its whole content.
    Works on local paths, memory:// (among threads), S3 and GCS; elsewhere it is an error.
    """
    text = normalise(path)
    with storage_errors(text, "write"):
        if not is_local(text):
            return _create_at_address(text, data)
        # Only saves the work of a temporary file; the link below decides.
        if os.path.lexists(text):
            return False
        with temporary_with(data, beside=text) as temporary:
            is_first = _link(temporary, text)
    if is_first:
        sync_name(text)
    return is_first


def append_line(path: StrPath, text: str) -> None:
    """The file ends with `text` as a line of its own; it is made if missing, and not synced.

    Local: one `O_APPEND` write, so lines of several processes never mix. A line that a kill or a
    full disk cut short stays cut, and the next one starts on a line of its own; for the same
    reason an empty line may stand between those of two processes. Elsewhere the filesystem's own
    append is used, which may copy the whole file.
    """
    name = normalise(path)
    if "\n" in text:
        raise StorageError(
            message(
                given=f"cannot append to {name}: the text has line ends in it: {text[:60]!r}",
                allowed="one line without its line end",
                fix="append the lines one by one, or escape the line ends",
            )
        )
    # A log line is worth more than its spelling: what UTF-8 cannot hold is written as an escape.
    line = text.encode("utf-8", "backslashreplace") + b"\n"
    with storage_errors(name, "append to"):
        if is_local(name):
            _append(name, line)
        else:
            filesystem, inner = filesystem_of(name)
            with filesystem.open(inner, "ab") as file:
                file.write(line)


def open_to_append(path: str) -> int:
    """A descriptor that adds to the end of a local file, which is made if missing.

    A symbolic link is refused with an `OSError`: it may lead to any file of this user.
    """
    return open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def _link(temporary: str, target: str) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # An NFS client that lost the server's answer asks again and is told "exists", though the
        # link is its own. Two names on our file tell.
        return os.stat(temporary).st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        raise StorageError(
            message(
                given=f"cannot create {target} exclusively: its filesystem has no hard links",
                allowed="a folder on a filesystem with hard links",
                fix="choose a folder on a local disk or on NFS",
            )
        ) from error
    return True


def _create_at_address(address: str, data: bytes) -> bool:
    if not is_memory(address) and not address.startswith(_EXCLUSIVE_SCHEMES):
        raise StorageError(
            message(
                given=f"cannot create {address}: its filesystem has no exclusive create",
                allowed=f"a local path, memory:// or one of {', '.join(_EXCLUSIVE_SCHEMES)}",
                fix="choose a path on one of these",
            )
        )
    filesystem, inner = filesystem_of(address)
    with MEMORY_GUARD if is_memory(address) else contextlib.nullcontext():
        if is_memory(address) and filesystem.exists(inner):
            return False
        try:
            filesystem.pipe_file(inner, data, mode="create")
        except FileExistsError:
            if is_memory(address):
                raise  # about a parent that is a file: the path itself was free
            return False
    return True


def _append(path: str, line: bytes) -> None:
    descriptor = open_to_append(path)
    try:
        # Without a lock, which a stopped process could keep from everyone else's log. So this may
        # see another's line half way, and then adds a line end that was not needed.
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        # A short write means the disk is nearly full; asking again finishes it or says why not.
        while line:
            line = line[os.write(descriptor, line) :]
    finally:
        os.close(descriptor)
