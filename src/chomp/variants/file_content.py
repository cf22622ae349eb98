"""The files below a folder that a comparison looks at, and what is in them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NoReturn

from chomp.errors import StorageError
from chomp.storage import read_bytes

# Folders of tools: never source that somebody wrote.
IGNORED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", ".eggs", "node_modules"}
    | {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".cache"}
    | {".ipynb_checkpoints", ".grug-diff-report"}
)
# As git decides it: text has no zero byte near its beginning.
_PROBED_BYTES = 8000


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
