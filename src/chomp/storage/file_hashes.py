"""SHA-256 of local files, remembered by path, size and times, so that no file is read twice.

They are kept in `$XDG_STATE_HOME/chomp/file_hashes.sqlite` (`~/.local/state/chomp/...`). A hash
is remembered only if the file was last changed well before it was read: a change within one tick of
the file system's clock would leave no trace. Losing them costs time and nothing else.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from chomp.storage.errors import storage_errors

log = logging.getLogger(__name__)

# The coarsest clock in use: FAT counts in two seconds.
CLOCK_RESOLUTION_S = 2.0
_TABLE = (
    "CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, "
    "ctime_ns INTEGER, sha256 BLOB) WITHOUT ROWID"
)
_FIND = "SELECT sha256 FROM hashes WHERE path = ? AND size = ? AND mtime_ns = ? AND ctime_ns = ?"
_ADD = "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class FileState:
    """What shows that a file is as it was, without a look at its content."""

    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int  # unlike mtime, no program can set it back

    @staticmethod
    def of(path: str) -> "FileState":
        """The state of a local file now; `StorageError` if it cannot be asked for."""
        with storage_errors(path, "look at"):
            found = os.stat(path)
        return FileState(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def row(self) -> tuple[bytes, int, int, int]:
        """The state as the table has it."""
        path = os.fsencode(os.path.abspath(self.path))
        return path, self.size_bytes, self.mtime_ns, self.ctime_ns


@dataclass
class _Mode:
    """Whether files are read again; those that were, by this process, are known."""

    reads_again: bool = False
    has_warned: bool = False


_mode = _Mode()
_read_again: dict[tuple[bytes, int, int, int], bytes] = {}


@contextlib.contextmanager
def read_files_again(is_wanted: bool = True) -> Iterator[None]:
    """Inside, no hash of an earlier process counts. A file that changed in secret is warned of."""
    before, _mode.reads_again = _mode.reads_again, is_wanted
    try:
        yield
    finally:
        _mode.reads_again = before
        _read_again.clear()


def remembered_hashes(states: Iterable[FileState]) -> dict[str, bytes]:
    """The hashes of those files that are as they were when they were read."""
    wanted = list(states)
    if _mode.reads_again:
        return {each.path: _read_again[each.row] for each in wanted if each.row in _read_again}
    found = _execute(_FIND, [each.row for each in wanted])
    return {each.path: row[0] for each, row in zip(wanted, found, strict=False) if row is not None}


def remember_hashes(found: Mapping[FileState, bytes], *, began_s: float) -> None:
    """Remember hashes of files by their states before; reading began at that time (of `time`).

    A file that changed meanwhile, or shortly before, is left out: it is read again the next time.
    """
    trusted: dict[FileState, bytes] = {}
    for state, digest in found.items():
        is_old = state.mtime_ns < (began_s - CLOCK_RESOLUTION_S) * 1e9
        # One that is gone is left out too: whoever reads it next says so.
        if is_old and os.path.exists(state.path) and FileState.of(state.path) == state:
            trusted[state] = digest
    if _mode.reads_again:
        known = _execute(_FIND, [each.row for each in trusted])
        for (state, digest), row in zip(trusted.items(), known, strict=False):
            _read_again[state.row] = digest
            if row is not None and row[0] != digest:
                log.warning(
                    "%s CHANGED WITHOUT A TRACE: its content is another than when it was last "
                    "read, its size and times are the same. The disk may be failing.",
                    state.path,
                )
    _execute(_ADD, [(*state.row, digest) for state, digest in trusted.items()])


def _execute(statement: str, rows: Sequence[tuple[object, ...]]) -> list[tuple[bytes] | None]:
    """The first result of the statement for each row; nothing, and one warning, if it fails."""
    if not rows:
        return []
    home = os.environ.get("XDG_STATE_HOME", "")
    # By its specification, a relative path there counts for nothing.
    state = home if os.path.isabs(home) else os.path.expanduser("~/.local/state")
    path = os.path.join(state, "chomp", "file_hashes.sqlite")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as database, database:
            database.execute(_TABLE)
            return [database.execute(statement, row).fetchone() for row in rows]
    except (sqlite3.Error, OSError) as error:
        if not _mode.has_warned:
            _mode.has_warned = True
            log.warning(
                "HASHES OF SOURCE FILES CANNOT BE REMEMBERED in %s (%s): every plan reads all "
                "files. Let XDG_STATE_HOME be a folder that can be written, or remove that file.",
                *(path, error),
            )
        return []
