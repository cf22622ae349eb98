"""A lock file that one process holds until it lets go or ends.

An exclusive `flock`: the kernel keeps it for as long as the process lives, and frees it when the
process ends, however that happens. A holder that is stopped or slow keeps it; nobody can take it
away. Works between processes of one machine on any local filesystem, and between machines where
the shared filesystem has locks (NFS since Linux 2.6.12, Lustre with -o flock, CephFS, BeeGFS with
locks on). A filesystem that has none is named in a warning, and then nothing is locked.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from chomp.errors import StorageError
from chomp.storage.errors import storage_errors, user_name
from chomp.storage.files import open_regular, parse_json
from chomp.storage.paths import StrPath, is_local, normalise, parent_of, require_local

_log = logging.getLogger(__name__)
_MAX_BYTES = 1 << 16
_TAKEN = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_NO_LOCKS_WARNING = (
    "NO LOCKS: the filesystem of %s cannot lock files (%s). Two launches at the same time would "
    "write into one folder. Start only one, mount it with locks, or choose another --prefix."
)
# A process that only looks who holds the lock has it for microseconds itself.
_TRIES, _BETWEEN_TRIES_S = 3, 0.005


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process that is named in a lock file."""

    host: str
    pid: int
    user: str
    since: str  # UTC, by the holder's clock

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (user {self.user}) since {self.since}"


class FileLock:
    """A lock file that this process holds. Made by `try_acquire` or `acquire`; a context manager.

    Held until `release`, or until the process ends. Children do not hold it: the descriptor is
    closed by `exec`, and after a `fork` in the child.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        """For `try_acquire`, which has locked the file behind `descriptor`."""
        self.path = path
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def try_acquire(cls, path: StrPath) -> "FileLock | None":
        """The lock, or None if it is held, by another process or by this one; never waits."""
        text = require_local(path, "lock")
        while True:
            with storage_errors(text, "lock"), contextlib.ExitStack() as closing:
                descriptor = _open(text, os.O_RDWR | os.O_CREAT)
                closing.callback(os.close, descriptor)
                if not _is_locked_now(descriptor, text):
                    return None
                # The last holder removes the file, so this may be one that nobody finds again.
                if _is_at(text, descriptor):
                    now = datetime.now(UTC).isoformat(timespec="seconds")
                    holder = LockHolder(
                        host=socket.gethostname(), pid=os.getpid(), user=user_name(), since=now
                    )
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(asdict(holder)).encode() + b"\n", 0)
                    closing.pop_all()
                    return cls(text, descriptor)

    @classmethod
    def acquire(
        cls,
        path: StrPath,
        *,
        timeout_s: float | None,
        on_wait: Callable[[LockHolder | None, float], None] = lambda holder, waited_s: None,
        poll_s: float = 0.5,
    ) -> "FileLock":
        """The lock, after waiting for it; `StorageError` naming the holder after `timeout_s`.

        `timeout_s=None` waits for ever. `on_wait` is called after every failed try with the holder
        (None if it cannot be read) and the seconds waited so far.
        """
        start = time.monotonic()
        while True:
            lock = cls.try_acquire(path)
            if lock is not None:
                return lock
            holder = lock_holder(path)
            waited_s = time.monotonic() - start
            if timeout_s is not None and waited_s >= timeout_s:
                raise locked_error(f"the lock {normalise(path)}", holder)
            on_wait(holder, waited_s)
            time.sleep(poll_s if timeout_s is None else min(poll_s, max(0, timeout_s - waited_s)))

    def release(self) -> None:
        """Let go of the lock and remove its file; does nothing the second time, or in a child."""
        descriptor, self._descriptor = self._descriptor, None
        _held.discard(self)
        if descriptor is None:
            return
        # A file that stays does no harm: it is locked or not, whatever it says. Nobody else's is
        # removed: as long as the lock is held, no other process puts a file in this place, unless
        # the folder was moved.
        with contextlib.suppress(OSError):
            if _is_at(self.path, descriptor):
                os.unlink(self.path)
        # By name, since a child that C code forked would keep the lock beyond the close.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def lock_holder(path: StrPath) -> LockHolder | None:
    """Who holds the lock now; None if nobody does."""
    found = _look(path)
    return found[0] if found is not None and found[1] else None


def killed_holder(path: StrPath) -> LockHolder | None:
    """Who held the lock and ended without letting go of it; None if nobody did."""
    found = _look(path)
    return None if found is None or found[1] or found[0] == _UNKNOWN else found[0]


def locked_error(what: str, holder: LockHolder | None) -> StorageError:
    """The error about `what` that another process holds: who, since when, how to continue."""
    stop = "that process" if holder is None else f"it (kill {holder.pid} on {holder.host})"
    return StorageError(
        f"{what} is held by {holder or 'another process'}",
        allowed="one process at a time",
        fix=f"wait for that process, or stop {stop}; the lock is free as soon as it has ended, and "
        "the same command continues",
    )


_held: set[FileLock] = set()
_warned: set[int] = set()  # filesystems without locks
# In a lock file that is being written, or was written by something else.
_UNKNOWN = LockHolder(host="an unknown host", pid=0, user="unknown", since="an unknown time")


def _close_in_child() -> None:
    """Close the parent's descriptors, which leaves the parent its locks."""
    for lock in _held:
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _look(path: StrPath) -> tuple[LockHolder, bool] | None:
    """The process that the lock file names, and whether the lock is held; None without a file."""
    text = normalise(path)
    if not is_local(text):
        return None  # nothing there is ever locked
    with storage_errors(text, "lock"):
        try:
            descriptor = _open(text, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            # Shared, so that two who look at the same time do not see each other.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_held = False
        except OSError as error:
            if error.errno not in (*_TAKEN, *_NO_LOCKS):
                raise
            is_held = error.errno in _TAKEN
        finally:
            content = os.pread(descriptor, _MAX_BYTES, 0)
            os.close(descriptor)
    try:
        found = parse_json(content)
        host, user, since = (str(found[name]) for name in ("host", "user", "since"))
        return LockHolder(host=host, pid=int(found["pid"]), user=user, since=since), is_held
    except (ValueError, KeyError, TypeError):
        return _UNKNOWN, is_held


def _open(path: str, flags: int) -> int:
    # Never through a link: that may lead to any file of this user.
    descriptor = open_regular(path, flags | os.O_NOFOLLOW)
    size = os.fstat(descriptor).st_size
    if size > _MAX_BYTES:
        os.close(descriptor)
        raise StorageError(
            f"lock {path} has {size:,} bytes",
            allowed="a lock file as this program writes it",
            fix="remove it once nothing uses what it locks",
        )
    return descriptor


def _is_locked_now(descriptor: int, path: str) -> bool:
    """Lock the open file exclusively; whether that worked."""
    for tries_left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                device = os.fstat(descriptor).st_dev
                if device not in _warned:
                    _warned.add(device)
                    _log.warning(_NO_LOCKS_WARNING, parent_of(path), error)
                return True
            if error.errno not in _TAKEN:
                raise
            if tries_left:
                time.sleep(_BETWEEN_TRIES_S)
        else:
            return True
    return False


def _is_at(path: str, descriptor: int) -> bool:
    """Whether the path leads to the open file."""
    # Opened, not only looked at: an NFS client may answer stat from its cache, but not open.
    try:
        other = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return os.path.samestat(os.fstat(other), os.fstat(descriptor))
    finally:
        os.close(other)
