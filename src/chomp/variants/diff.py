"""What differs between two folders, by files and lines: the facts behind every diff report.

Added and deleted lines are the fewest that turn the left folder into the right one; if several
places count the same, the one that reads best is taken. `difflib` takes the longest run first,
whatever that costs elsewhere, and `git diff --minimal` counts by its version, so neither is used.
A renamed file counts as one removed and one added, with all its lines; the rename is reported
beside it. The distance of a variant must not depend on a guess.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, NoReturn, get_args

from chomp.errors import StorageError, require
from chomp.storage import read_bytes

IGNORED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", ".eggs", "node_modules"}
    | {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache"}
    | {".ipynb_checkpoints", ".grug-diff-report"}
)
EXTENSIONS = (".py", ".md")
# In the order of a report.
Status = Literal["changed", "added", "removed", "unchanged"]
STATUSES: tuple[Status, ...] = get_args(Status)
_BINARY_PROBE_BYTES = 8000  # as in git: text has no zero byte near its beginning
# Files that share fewer of their lines are not a rename; half, as in git.
_ALIKE = 0.5
# Beyond this many pairs only equal files are found to be renamed: each pair compares all lines.
_MAX_PAIRS = 10_000


class Hunk(NamedTuple):
    """Lines `left_start:left_end` of one text that became `right_start:right_end` of another."""

    left_start: int
    left_end: int
    right_start: int
    right_end: int


@dataclass(frozen=True)
class Content:
    """The bytes of a file, and its lines if it is text."""

    data: bytes

    @property
    def is_binary(self) -> bool:
        """Whether the file is not text."""
        return b"\0" in self.data[:_BINARY_PROBE_BYTES]

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, each with its own end; none for a binary file.

        Only a line feed ends a line. Bytes that are not UTF-8 are kept as surrogates.
        """
        if self.is_binary:
            return ()
        text = self.data.decode("utf-8", errors="surrogateescape")
        return tuple(re.findall(r"[^\n]*\n|[^\n]+", text))


class Rename(NamedTuple):
    """A file that is at another path now; `likeness` is the share of lines that stayed, 0 to 1."""

    left: str
    right: str
    likeness: float


@dataclass(frozen=True)
class FileChange:
    """One file of either folder: its content on both sides, and the lines that differ."""

    path: str
    status: Status
    left: Content | None
    right: Content | None
    hunks: tuple[Hunk, ...]  # none for a binary file; of a renamed one, against its old content
    rename: Rename | None  # what an added file was before, or a removed one has become

    @property
    def is_binary(self) -> bool:
        """Whether either side is not text, and has no lines to count."""
        return any(side is not None and side.is_binary for side in (self.left, self.right))

    @property
    def added_lines(self) -> int:
        """Lines that only the right side has."""
        if self.is_binary or self.right is None:
            return 0
        if self.left is None:
            return len(self.right.lines)
        return sum(hunk.right_end - hunk.right_start for hunk in self.hunks)

    @property
    def deleted_lines(self) -> int:
        """Lines that only the left side has."""
        if self.is_binary or self.left is None:
            return 0
        if self.right is None:
            return len(self.left.lines)
        return sum(hunk.left_end - hunk.left_start for hunk in self.hunks)


@dataclass(frozen=True)
class FolderChanges:
    """All files of two folders, by status, then path."""

    left_label: str
    right_label: str
    extensions: tuple[str, ...] | None  # None: all files
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
    def distance(self) -> int:
        """Lines that the folders do not share."""
        return self.added_lines + self.deleted_lines

    @property
    def status_counts(self) -> dict[Status, int]:
        """How many files are changed, added, removed and unchanged."""
        counts = Counter(file.status for file in self.files)
        return {status: counts[status] for status in STATUSES}

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
    """What it takes to turn one folder into the other; `extensions=None` compares all files.

    Caches, virtual environments and version control are ignored. The labels, by default the paths,
    are what a report calls the folders.
    """
    for folder in (left, right):
        require(
            folder.is_dir(),
            f"{folder} {'is a file' if folder.exists() else 'does not exist'}",
            allowed="two folders to compare",
            fix="correct the path; for two files, use diff",
        )
    return FolderChanges(
        left_label=str(left) if left_label is None else left_label,
        right_label=str(right) if right_label is None else right_label,
        extensions=None if extensions is None else tuple(extensions),
        files=changed_files(_contents(left, extensions), _contents(right, extensions)),
    )


def changed_files(
    before: Mapping[str, Content], after: Mapping[str, Content]
) -> tuple[FileChange, ...]:
    """Every file of either side with what differs, by status, then path."""
    renames = _renames(
        {path: before[path] for path in before.keys() - after.keys()},
        {path: after[path] for path in after.keys() - before.keys()},
    )
    # No path is both removed and added, so each is in at most one rename.
    by_path = {pair.left: pair for pair in renames} | {pair.right: pair for pair in renames}
    files = []
    for path in before.keys() | after.keys():
        left, right, rename = before.get(path), after.get(path), by_path.get(path)
        status: Status
        if left is None or right is None:
            status = "removed" if right is None else "added"
        else:
            status = "unchanged" if left.data == right.data else "changed"
        old = before[rename.left] if rename and right else left
        is_binary = any(side is not None and side.is_binary for side in (old, right))
        sides = [side.lines if side and not is_binary else () for side in (old, right)]
        files.append(FileChange(path, status, left, right, line_hunks(*sides), rename))
    return tuple(sorted(files, key=lambda file: (STATUSES.index(file.status), file.path)))


def _renames(removed: Mapping[str, Content], added: Mapping[str, Content]) -> list[Rename]:
    """Pairs of files that share at least half of their lines, the most alike first."""
    is_many = len(removed) * len(added) > _MAX_PAIRS

    def words(content: Content) -> Counter[str]:
        # Indentation and blank lines say little about where a file came from.
        return Counter(line.strip() for line in content.lines if line.strip())

    def likeness(left: str, right: str) -> float:
        if removed[left].data == added[right].data:
            return 1.0
        longest = max(old[left].total(), new[right].total())
        return 0.0 if is_many or not longest else (old[left] & new[right]).total() / longest

    old = {path: words(content) for path, content in removed.items() if content.data}
    new = {path: words(content) for path, content in added.items() if content.data}
    pairs = [Rename(left, right, likeness(left, right)) for left in old for right in new]
    taken: set[str] = set()
    chosen = []
    for pair in sorted(pairs, key=lambda pair: (-pair.likeness, pair.left, pair.right)):
        if pair.likeness >= _ALIKE and not taken & {pair.left, pair.right}:
            taken |= {pair.left, pair.right}
            chosen.append(pair)
    return chosen


def line_hunks(left: Sequence[str], right: Sequence[str]) -> tuple[Hunk, ...]:
    """The changed lines of two texts, in order: as few as possible, with equal lines between."""
    hunks = []
    i = j = 0
    for next_i, next_j in [*_common_lines(left, right), (len(left), len(right))]:
        if (next_i, next_j) != (i, j):
            hunks.append(Hunk(i, next_i, j, next_j))
        i, j = next_i + 1, next_j + 1
    none, end = Hunk(0, 0, 0, 0), Hunk(len(left), len(left), len(right), len(right))
    for index, (i, i_end, j, j_end) in enumerate(hunks):
        before = hunks[index - 1] if index else none
        after = hunks[index + 1] if index + 1 < len(hunks) else end
        shift = 0
        if i == i_end:
            shift = _best_shift(right, j, j_end, before.right_end, after.right_start)
        elif j == j_end:
            shift = _best_shift(left, i, i_end, before.left_end, after.left_start)
        hunks[index] = Hunk(i + shift, i_end + shift, j + shift, j_end + shift)
    return tuple(hunks)


def _common_lines(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """A longest common subsequence, as pairs of line numbers in order.

    One row of the table of lengths is one integer with a bit for each left line: 0 where the line
    makes the subsequence longer (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004). Two
    files of 5,000 lines take about 20 ms.
    """
    shortest = min(len(left), len(right))
    head = next((k for k in range(shortest) if left[k] != right[k]), shortest)
    rest = range(shortest - head)
    tail = next((k for k in rest if left[-1 - k] != right[-1 - k]), len(rest))
    # Lines that only one side has are in no common subsequence.
    shared = {*left[head : len(left) - tail]} & {*right[head : len(right) - tail]}
    old = [k for k in range(head, len(left) - tail) if left[k] in shared]
    new = [k for k in range(head, len(right) - tail) if right[k] in shared]
    masks: dict[str, int] = {}
    for bit, k in enumerate(old):
        masks[left[k]] = masks.get(left[k], 0) | 1 << bit
    full = (1 << len(old)) - 1
    rows = [full]
    for k in new:
        matched = rows[-1] & masks[right[k]]
        rows.append((rows[-1] + matched | rows[-1] - matched) & full)
    middle = []
    bit = len(old)
    for row in reversed(range(len(new))):
        while bit and rows[row + 1] >> bit - 1 & 1:
            bit -= 1  # this left line adds nothing
        if bit and rows[row] >> bit - 1 & 1:
            bit -= 1  # the row before did not count this line: it is matched here
            middle.append((old[bit], new[row]))
    ends = [(len(left) - k, len(right) - k) for k in range(tail, 0, -1)]
    return [*((k, k) for k in range(head)), *reversed(middle), *ends]


def _best_shift(lines: Sequence[str], start: int, end: int, above: int, below: int) -> int:
    """How far to move an addition or deletion so that it begins where a piece of code begins.

    Among equal lines it can stand at several places. An added function should not be shown as the
    end of the one above it and its own beginning. One equal line stays on either side.
    """
    if start == 0 or end == len(lines):
        return 0
    up = down = 0
    while start - up - 1 > above and lines[start - up - 1] == lines[end - up - 1]:
        up += 1
    while end + down + 1 < below and lines[start + down] == lines[end + down]:
        down += 1

    def rank(shift: int) -> tuple[int, bool, int]:
        # The indentation of the first line with text, and whether blank lines come before it.
        for index in range(start + shift, end + shift):
            if text := lines[index].lstrip():
                return len(lines[index]) - len(text), index > start + shift, -shift
        return 0, True, -shift

    return min(range(-up, down + 1), key=rank)


def _contents(folder: Path, extensions: Sequence[str] | None) -> dict[str, Content]:
    """Each file's content by its path from `folder`."""
    found = {}
    for where, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        # A link to a folder is listed among the folders, but is never entered.
        links = [name for name in folders if Path(where, name).is_symlink()]
        for path in (Path(where, name) for name in (*files, *links)):
            name = path.relative_to(folder).as_posix()
            if not (path.is_file() or path.is_symlink()):
                continue  # a socket or a pipe
            if extensions is None or PurePosixPath(name).suffix in extensions:
                # As in git, the content of a link is its target's path.
                data = os.fsencode(os.readlink(path)) if path.is_symlink() else read_bytes(path)
                found[name] = Content(data)
    return found


def _refuse(error: OSError) -> NoReturn:
    # By default a walk skips what it may not list, and a report would lack files.
    raise StorageError(
        f"cannot list {error.filename} ({error.strerror})",
        allowed="folders that this user can read",
        fix="correct the permissions, or compare a folder without it",
    ) from error
