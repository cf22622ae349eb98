"""How far variants are from each other, in lines, and which one another is closest to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chomp.variants.file_changes import EXTENSIONS, FolderChanges, folder_changes


@dataclass(frozen=True)
class Neighbour:
    """A variant that another was compared with, and what differs."""

    name: str
    changes: FolderChanges

    @property
    def distance(self) -> int:
        """Lines added and deleted over the files of both."""
        return distance(self.changes)


def distance(changes: FolderChanges) -> int:
    """Lines that two folders do not share; 0 for equal ones."""
    return changes.added_lines + changes.deleted_lines


def closest(
    folder: Path,
    candidates: Mapping[str, Path],
    *,
    label: str | None = None,
    extensions: Sequence[str] | None = EXTENSIONS,
) -> Neighbour | None:
    """The candidate that takes the fewest lines to become `folder`; of several, the first by name.

    None without candidates. The names of candidates are their labels in a report.
    """
    found = [
        Neighbour(
            name,
            folder_changes(
                candidates[name], folder, extensions=extensions, left_label=name, right_label=label
            ),
        )
        for name in sorted(candidates)
    ]
    # `min` takes the first of equals, and names are sorted.
    return min(found, key=lambda neighbour: neighbour.distance, default=None)
