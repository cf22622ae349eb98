"""Two variants side by side, those that were deleted included: git still has them.

A retired variant is compared as it was at its last good commit, with the other one as it was then:
what has changed since is no part of what the variant was.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from chomp.errors import ConfigError, require
from chomp.variants import checkout
from chomp.variants.archive import Archive
from chomp.variants.checkout import BASE, variant_path
from chomp.variants.copied_variant import Renaming, is_variant_name, renamed_source
from chomp.variants.file_changes import (
    EXTENSIONS,
    Content,
    FolderChanges,
    changed_files,
    folder_changes,
)


def origin_of(archive: Archive, name: str) -> str:
    """What a variant was copied from, by the archive; base where it does not say."""
    entry = archive.entry(name)
    origin = entry.get("Origin") if entry is not None else ""
    # What follows the name is prose.
    return origin.split(",")[0].strip("` ") or BASE


def variant_changes(
    root: Path,
    archive: Archive,
    name: str,
    *,
    against: str,
    extensions: Sequence[str] | None = EXTENSIONS,
) -> FolderChanges:
    """What it takes to turn `against` into `name`; `ConfigError` for one that never was."""
    for given in (name, against):
        # A path would be followed out of the templates, and out of the checkout.
        require(
            is_variant_name(given),
            f"the name {given!r}",
            allowed="the name of a variant: lower-case letters, digits and underscores",
            fix="name a folder under experiments/grug; scripts/grug_dir_diff.py compares any two",
        )
    commit = _commit_of(root, archive, name)
    with TemporaryDirectory(prefix="chomp-variants-") as scratch:
        right = _folder(root, name, commit, Path(scratch, "right"))
        # The origin of a retired variant may be gone by now too, or have been already then.
        other = commit
        if commit is None or not checkout.holds(root, commit, variant_path(against)):
            other = _commit_of(root, archive, against)
        left = _folder(root, against, other, Path(scratch, "left"))
        # Everything is read here, so the folders may go afterwards.
        return folder_changes(
            left,
            right,
            extensions=extensions,
            left_label=_label(against, other),
            right_label=_label(name, commit),
        )


def lines_beyond_name(root: Path, archive: Archive, name: str) -> tuple[int, int]:
    """Lines of Python that a variant adds to its origin and deletes, but for its own name.

    A fresh copy has none, though some twenty of its lines say what it is called.
    """
    origin = origin_of(archive, name)
    changes = variant_changes(root, archive, name, against=origin, extensions=(".py",))
    return lines_beyond_renaming(changes, Renaming(origin, name))


def lines_beyond_renaming(changes: FolderChanges, renaming: Renaming) -> tuple[int, int]:
    """Lines added and deleted in Python files, but for what a renaming does to them.

    The one count of how far a variant is from another: of pages, the ledger and every table.
    """
    python = [file for file in changes.files if file.path.endswith(".py")]
    before = {
        file.path: Content(_renamed(file.left, renaming, file.path))
        for file in python
        if file.left is not None
    }
    after = {file.path: file.right for file in python if file.right is not None}
    # Counted as everywhere else; only what is on the left is another text.
    files = changed_files(before, after)
    return sum(file.added_lines for file in files), sum(file.deleted_lines for file in files)


def _renamed(content: Content, renaming: Renaming, where: str) -> bytes:
    return renamed_source("".join(content.lines), renaming, where=where).encode(
        errors="surrogateescape"
    )


def _commit_of(root: Path, archive: Archive, name: str) -> str | None:
    """The commit to take a variant from; None for one whose folder is there."""
    if (root / variant_path(name)).is_dir():
        return None
    entry = archive.entry(name)
    commit = entry.get("Last known-good") if entry is not None else ""
    if not commit:
        known = ", ".join(other.name for other in archive.entries)
        raise ConfigError(
            f"there is no variant {name!r}, and the archive has no last commit of one",
            allowed=known or "nothing: the archive is empty",
            fix="correct the name",
        )
    return commit


def _folder(root: Path, name: str, commit: str | None, scratch: Path) -> Path:
    if commit is None:
        return root / variant_path(name)
    return checkout.extract(root, commit, variant_path(name), scratch)


def _label(name: str, commit: str | None) -> str:
    return variant_path(name) if commit is None else f"{variant_path(name)} at {commit}"
