"""What differs between two folders, file by file, in lines: the facts behind every diff report.

Added and deleted lines are the fewest that turn the left folder into the right one. A file that was
renamed counts as one removed and one added, with all its lines; that it was renamed is told beside
it, because a variant's distance must not depend on a guess.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from chomp.errors import require
from chomp.variants.file_content import Content, contents_below
from chomp.variants.line_changes import Block, line_changes
from chomp.variants.renames import Rename, renames

# In the order of a report.
Status = Literal["changed", "added", "removed", "unchanged"]
STATUSES: tuple[Status, ...] = get_args(Status)
EXTENSIONS = (".py", ".md")

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
