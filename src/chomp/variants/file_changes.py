"""What differs between two folders, file by file, in lines: the facts behind every diff report.

Added and deleted lines are the fewest that turn the left folder into the right one. A file that was
renamed counts as one removed and one added, with all its lines; that it was renamed is said beside
it, because the distance of a variant must not depend on a guess.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn, get_args

from chomp.errors import StorageError, require
from chomp.storage import read_bytes
from chomp.variants.line_changes import Block, line_changes

# Folders of tools: never source that somebody wrote.
IGNORED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", ".eggs", "node_modules"}
    | {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache"}
    | {".ipynb_checkpoints", ".grug-diff-report"}
)
# As git decides it: text has no zero byte near its beginning.
_PROBED_BYTES = 8000
# Half of the lines, as git asks for.
_ALIKE = 0.5
# Beyond this many pairs only files that are equal are found; each pair costs a look at all lines.
_MAX_PAIRS = 10_000
# In the order of a report.
Status = Literal["changed", "added", "removed", "unchanged"]
STATUSES: tuple[Status, ...] = get_args(Status)
EXTENSIONS = (".py", ".md")


@dataclass(frozen=True)
class Content:
    """The bytes of a file, and its lines if it is text."""

    data: bytes

    @cached_property
    def is_binary(self) -> bool:
        """Whether the file is something other than text."""
        return b"\0" in self.data[:_PROBED_BYTES]

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, each with its own end; none for a binary file.

        Only a line feed ends a line, as for `diff`. What is not UTF-8 is kept as surrogates, so two
        lines are equal only if their bytes are.
        """
        if self.is_binary or not self.data:
            return ()
        parts = self.data.decode("utf-8", errors="surrogateescape").split("\n")
        ended = [f"{part}\n" for part in parts[:-1]]
        return (*ended, parts[-1]) if parts[-1] else tuple(ended)


def contents_below(folder: Path, extensions: Sequence[str] | None) -> dict[str, Content]:
    """Each file's content by its path from `folder`; of all files, or those with an extension."""
    return {
        name: _content(folder / name)
        for name in sorted(_names_below(folder))
        if extensions is None or PurePosixPath(name).suffix in extensions
    }


def _names_below(folder: Path) -> Iterator[str]:
    for where, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        # A link to a folder is listed among the folders, but is never entered.
        links = [name for name in folders if Path(where, name).is_symlink()]
        for name in [*files, *links]:
            path = Path(where, name)
            if path.is_symlink() or path.is_file():  # not a pipe, which would wait for a writer
                yield path.relative_to(folder).as_posix()


def _refuse(error: OSError) -> NoReturn:
    # By itself, a walk passes over what it may not list, and a report would be short of files.
    raise StorageError(
        f"cannot list {error.filename} ({error.strerror})",
        allowed="folders that this user can read",
        fix="correct the permissions, or compare a folder without it",
    ) from error


def _content(path: Path) -> Content:
    # A link is where it points to, as for git: what lies outside of the folder is not its source.
    return Content(os.fsencode(os.readlink(path)) if path.is_symlink() else read_bytes(path))


@dataclass(frozen=True)
class Rename:
    """A file that is at another path now; `likeness` is the share of lines that stayed, 0 to 1."""

    left: str
    right: str
    likeness: float


def renames(removed: Mapping[str, Content], added: Mapping[str, Content]) -> list[Rename]:
    """Pairs of a removed and an added file that are at least half alike, each file at most once.

    The most alike are taken first, then by name. Empty files are alike to nothing.
    """
    is_many = len(removed) * len(added) > _MAX_PAIRS
    old = {name: _Fingerprint(content) for name, content in removed.items() if content.data}
    new = {name: _Fingerprint(content) for name, content in added.items() if content.data}
    found = []
    for left, before in old.items():
        for right, after in new.items():
            likeness = before.equality(after) if is_many else before.likeness(after)
            if likeness >= _ALIKE:
                found.append(Rename(left, right, likeness))
    taken: set[str] = set()  # no path is both removed and added
    chosen = []
    for pair in sorted(found, key=lambda pair: (-pair.likeness, pair.left, pair.right)):
        if not taken & {pair.left, pair.right}:
            taken |= {pair.left, pair.right}
            chosen.append(pair)
    return chosen


class _Fingerprint:
    """What files are compared by."""

    def __init__(self, content: Content) -> None:
        self._data = content.data
        # Without indentation and blank lines, which say little of where a file came from.
        self._lines = Counter(line.strip() for line in content.lines if line.strip())
        self._num_lines = self._lines.total()

    def equality(self, other: "_Fingerprint") -> float:
        """1 if both files are equal, else 0."""
        return float(self._data == other._data)

    def likeness(self, other: "_Fingerprint") -> float:
        """The share of the longer file's lines that both have; 0 for binary files that differ."""
        longest = max(self._num_lines, other._num_lines)
        if self._data == other._data or not longest:
            return self.equality(other)
        # Too short to be alike, whatever it holds: most pairs end here.
        if min(self._num_lines, other._num_lines) < _ALIKE * longest:
            return 0.0
        return (self._lines & other._lines).total() / longest


_EMPTY = Content(b"")


@dataclass(frozen=True)
class FileChange:
    """One file of either folder: its content on both sides, and the lines that differ."""

    path: str
    status: Status
    left: Content | None
    right: Content | None
    blocks: tuple[Block, ...]  # none for a binary file
    rename: Rename | None  # what an added file was before, or a removed one has become

    @property
    def is_binary(self) -> bool:
        """Whether either side is something other than text, which has no lines to count."""
        return any(side is not None and side.is_binary for side in (self.left, self.right))

    @property
    def added_lines(self) -> int:
        """Lines that only the right side has."""
        return sum(block.added for block in self.blocks)

    @property
    def deleted_lines(self) -> int:
        """Lines that only the left side has."""
        return sum(block.deleted for block in self.blocks)


@dataclass(frozen=True)
class FolderChanges:
    """All files of two folders, by status, then path."""

    left_label: str
    right_label: str
    extensions: tuple[str, ...] | None  # None: all files were looked at
    files: tuple[FileChange, ...]

    @property
    def added_lines(self) -> int:
        """Lines that only the right folder has."""
        return sum(file.added_lines for file in self.files)

    @property
    def deleted_lines(self) -> int:
        """Lines that only the left folder has."""
        return sum(file.deleted_lines for file in self.files)

    @property
    def status_counts(self) -> dict[Status, int]:
        """How many files are changed, added, removed and unchanged."""
        counted = Counter(file.status for file in self.files)
        return {status: counted[status] for status in STATUSES}

    @property
    def is_empty(self) -> bool:
        """Whether the folders have the same files with the same content."""
        return all(file.status == "unchanged" for file in self.files)


def folder_changes(
    left: Path,
    right: Path,
    *,
    extensions: Sequence[str] | None = EXTENSIONS,
    left_label: str | None = None,
    right_label: str | None = None,
) -> FolderChanges:
    """What it takes to turn one folder into the other; `extensions=None` looks at all files.

    Caches, virtual environments and version control are passed over. Labels are what a report calls
    the folders, their paths unless given.
    """
    for folder in (left, right):
        require(
            folder.is_dir(),
            f"{folder} is {'a file' if folder.exists() else 'not there'}",
            allowed="two folders to compare",
            fix="correct the path; for two files, use diff",
        )
    before, after = contents_below(left, extensions), contents_below(right, extensions)
    return FolderChanges(
        left_label=str(left) if left_label is None else left_label,
        right_label=str(right) if right_label is None else right_label,
        extensions=None if extensions is None else tuple(extensions),
        files=changed_files(before, after),
    )


def changed_files(
    before: Mapping[str, Content], after: Mapping[str, Content]
) -> tuple[FileChange, ...]:
    """Every file of either side with what differs, by status, then path."""
    moved = renames(
        {path: before[path] for path in before.keys() - after.keys()},
        {path: after[path] for path in after.keys() - before.keys()},
    )
    # No path is both removed and added, so each names at most one rename.
    by_path = {pair.left: pair for pair in moved} | {pair.right: pair for pair in moved}
    files = [
        _file_change(path, before.get(path), after.get(path), by_path.get(path))
        for path in before.keys() | after.keys()
    ]
    return tuple(sorted(files, key=lambda file: (STATUSES.index(file.status), file.path)))


def _file_change(
    path: str, left: Content | None, right: Content | None, rename: Rename | None
) -> FileChange:
    status: Status
    if left is None or right is None:
        status = "removed" if right is None else "added"
    else:
        status = "unchanged" if left.data == right.data else "changed"
    # A file that is missing counts as an empty one: all lines of the other are new or gone.
    old, new = left or _EMPTY, right or _EMPTY
    is_text = not (old.is_binary or new.is_binary)
    blocks = tuple(line_changes(old.lines, new.lines)) if is_text else ()
    return FileChange(path, status, left, right, blocks, rename)
