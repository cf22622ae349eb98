"""Changing a small shared file only if it still holds what the caller believes.

Compare-and-swap for lock files, on local paths and memory://. The invariant: whoever replaces or
removes a file first holds an exclusive `flock` on the very inode the path leads to, so a process
that was paused between its look and its act cannot undo what others did meanwhile. The kernel
drops the lock of a process that dies.
"""

import contextlib
import errno
import fcntl
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

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
from chomp.storage.temporary import temporary_beside, temporary_with

_log = logging.getLogger(__name__)
_RETRY_S = 0.01
# A lock file is never a link: that may lead to any file of this user.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW
_MAX_BYTES = 1 << 16
_TAKEN = (errno.EAGAIN, errno.EACCES)
# What filesystems without flock answer; EBADF is NFS, for a file opened only for reading.
_NO_FLOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF)


class Outcome(Enum):
    """What became of a guarded change."""

    DONE = auto()
    CHANGED = auto()  # the file is gone or holds something else; nothing was done
    BUSY = auto()  # another process is changing it right now; nothing was done


@dataclass(frozen=True)
class Snapshot:
    """A file at one moment. Two equal ones mean that nobody wrote or touched it in between."""

    content: bytes
    changed_ns: int  # the writer's file time, only ever compared for equality; 0 in memory


Test: TypeAlias = Callable[[Snapshot], bool]


def require_guardable(path: StrPath) -> None:
    """Raise `StorageError` unless files at this path can be guarded."""
    if not (is_local(path) or is_memory(path)):
        raise StorageError(
            message(
                given=f"cannot lock {normalise(path)}: its filesystem has no atomic rename",
                allowed="a local or network-mounted path, or memory:// within one process",
                fix="keep lock files in a folder that all contenders have mounted",
            )
        )


def snapshot_of(path: StrPath) -> Snapshot | None:
    """What the file holds now; None when there is no file."""
    text = normalise(path)
    require_guardable(text)
    with storage_errors(text, "lock"):
        if is_memory(text):
            with MEMORY_GUARD:
                filesystem, inner = filesystem_of(text)
                return Snapshot(filesystem.cat_file(inner), 0) if filesystem.exists(inner) else None
        try:
            with open(open_regular(text, _FLAGS), "rb") as file:
                return _snapshot(file.fileno(), text)
        except FileNotFoundError:
            return None


def replace_if(path: StrPath, test: Test, data: bytes, *, patience_s: float = 0.0) -> Outcome:
    """Replace the content atomically if `test` holds for the present one.

    The new content is synced, its name is not: after a power cut either content may be there.
    """
    text = normalise(path)
    with storage_errors(text, "lock"), contextlib.ExitStack() as stack:
        # Written before the guard is taken, which then is held for no longer than a rename.
        new = "" if is_memory(text) else stack.enter_context(temporary_with(data, beside=text))
        found = stack.enter_context(_guard(text, patience_s))
        if not isinstance(found, Snapshot):
            return found
        if not test(found):
            return Outcome.CHANGED
        if is_memory(text):
            filesystem, inner = filesystem_of(text)
            filesystem.pipe_file(inner, data)
        else:
            os.replace(new, text)
        return Outcome.DONE


def touch_if(path: StrPath, test: Test, *, patience_s: float = 0.0) -> Outcome:
    """Change the file's time, which needs no disk space, if `test` holds for its content."""
    text = normalise(path)
    with storage_errors(text, "lock"), _guard(text, patience_s) as found:
        if not isinstance(found, Snapshot):
            return found
        if not test(found):
            return Outcome.CHANGED
        if is_local(text):
            os.utime(text)
        return Outcome.DONE


def remove_if(path: StrPath, test: Test, *, patience_s: float = 0.0) -> Outcome:
    """Remove the file if `test` holds for its content. Of several processes, one gets `DONE`."""
    text = normalise(path)
    with storage_errors(text, "lock"), _guard(text, patience_s) as found:
        if not isinstance(found, Snapshot):
            return found
        if not test(found):
            return Outcome.CHANGED
        if is_memory(text):
            filesystem, inner = filesystem_of(text)
            filesystem.rm(inner, recursive=False)
            return Outcome.DONE
        return Outcome.DONE if _move_aside(text, test) else Outcome.CHANGED


@contextlib.contextmanager
def _guard(path: str, patience_s: float) -> Iterator[Snapshot | Outcome]:
    """The content, which cannot change inside; or why there is none to guard."""
    require_guardable(path)
    if is_memory(path):
        with MEMORY_GUARD:
            yield snapshot_of(path) or Outcome.CHANGED
        return
    descriptor = _locked_descriptor(path, patience_s)
    if isinstance(descriptor, Outcome):
        yield descriptor
        return
    try:
        yield _snapshot(descriptor, path)
    finally:
        # Unlocked by name, since a child forked meanwhile would keep the lock beyond the close.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _snapshot(descriptor: int, path: str) -> Snapshot:
    content = os.pread(descriptor, _MAX_BYTES + 1, 0)
    if len(content) > _MAX_BYTES:
        raise StorageError(
            f"lock {path} has more than {_MAX_BYTES:,} bytes",
            allowed="a lock file as this program writes it",
            fix="remove it once nothing uses what it locks",
        )
    return Snapshot(content, os.fstat(descriptor).st_mtime_ns)


def _locked_descriptor(path: str, patience_s: float) -> int | Outcome:
    deadline = time.monotonic() + patience_s
    while True:
        descriptor = _open(path)
        if descriptor is None:
            return Outcome.CHANGED
        is_kept = False
        try:
            is_kept = _flock(descriptor) and _is_still_at(path, descriptor)
            if is_kept:
                return descriptor
        finally:
            if not is_kept:
                os.close(descriptor)
        if time.monotonic() >= deadline:
            return Outcome.BUSY
        time.sleep(_RETRY_S)


def _open(path: str) -> int | None:
    try:
        # NFS turns flock into a lock that needs a writable descriptor.
        return open_regular(path, os.O_RDWR | os.O_NOFOLLOW)
    except PermissionError:
        return open_regular(path, _FLAGS)
    except FileNotFoundError:
        return None


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        if error.errno not in _NO_FLOCK:
            raise
        _warn_unguarded(str(error))
    return True


@functools.cache
def _warn_unguarded(reason: str) -> None:
    # Without flock the rename in `_move_aside` still lets one process win a stale lock; only a
    # holder paused for longer than stale_after_s inside its heartbeat could undo a takeover.
    _log.warning(
        "lock files are on a filesystem without flock (%s); leases work, with a weaker guard. "
        "Mount it with flock, or keep locks elsewhere.",
        reason,
    )


def _is_still_at(path: str, descriptor: int) -> bool:
    # Opened, not only looked at: an NFS client may answer stat from its cache, but not open.
    other = _open(path)
    if other is None:
        return False
    try:
        return os.path.samestat(os.fstat(other), os.fstat(descriptor))
    finally:
        os.close(other)


def _move_aside(path: str, test: Test) -> bool:
    """Remove by renaming first, since only a rename tells which file was taken away."""
    aside = temporary_beside(path)
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return False
    try:
        taken = snapshot_of(aside)
        is_expected = taken is not None and test(taken)
        if not is_expected:
            # Possible only without flock. If a third process has made the file anew meanwhile,
            # that one keeps it, and the displaced holder notices at its next look.
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        return is_expected
    finally:
        os.unlink(aside)
