"""Unfinished files: how they are named and written, and the sync that makes a name last.

A temporary file is written beside its target, hidden, and recognisable by its name; listings leave
it out. One that a killed process left behind is rubbish that nothing ever reads.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress

from chomp.errors import StorageError, message
from chomp.storage.locations import join, name_of, parent_of

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp")
# A file name may have 255 bytes; 50 characters of UTF-8 leave room for what is added.
_KEPT_CHARACTERS = 50


def temporary_beside(path: str) -> str:
    """A new hidden name in the folder of `path`, where a rename onto `path` is atomic."""
    name = f".{name_of(path)[:_KEPT_CHARACTERS]}.{secrets.token_hex(8)}.tmp"
    return join(parent_of(path), name)


def is_temporary(name: str) -> bool:
    """Whether `temporary_beside` made this file name."""
    return _TEMPORARY.fullmatch(name) is not None


@contextlib.contextmanager
def temporary_with(data: bytes, *, beside: str) -> Iterator[str]:
    """A synced temporary file with `data`, removed at the end unless it was renamed."""
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
        _sync_folder(parent_of(path))
    except OSError as error:
        raise StorageError(
            message(
                given=f"{path} is in place, but its folder could not be synced: {error}",
                allowed="a filesystem that keeps new names through a power cut",
                fix="check the disk, then do this again",
            )
        ) from error


def sync_tree(folder: str) -> None:
    """Make every file and name below a local folder survive a power cut.

    For what other libraries wrote there, before the folder is called something whole. What goes
    while it is looked at, as a lock's own temporary files do, is passed over.
    """
    for inner, _, names in os.walk(folder):
        for path in (os.path.join(inner, name) for name in names):
            with suppress(FileNotFoundError):
                if os.path.isfile(path):  # a pipe would be waited for
                    _sync(path)
        with suppress(FileNotFoundError):
            _sync(inner)


def _sync_folder(folder: str) -> None:
    _sync(folder, os.O_DIRECTORY)


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
