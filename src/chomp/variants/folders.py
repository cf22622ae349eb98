"""The variants of a checkout: which folders under `experiments/grug` there are.

A folder is known by what it holds, never by importing it: one that cannot be imported is a variant
all the same, and the contracts say so.
"""

from dataclasses import dataclass
from pathlib import Path

from chomp.variants.checkout import GRUG, variant_path
from chomp.variants.no_verify import NotVerified, no_verify_mark


@dataclass(frozen=True)
class Variant:
    """One folder under `experiments/grug`."""

    name: str
    folder: Path
    not_verified: NotVerified | None  # a wish; whether it is granted, its `fault` says

    @property
    def root(self) -> Path:
        """The checkout that the variant is part of."""
        return self.folder.parents[len(Path(GRUG).parts)]

    def told(self, file: str) -> str:
        """A file of the variant as messages name it: by its path from the root."""
        return f"{variant_path(self.name)}/{file}"


def variant_folders(root: Path) -> list[Variant]:
    """The variants of the checkout at `root` by name; none where there is no such folder.

    A folder counts once it holds a Python file besides `__init__.py`: what is left of a deleted
    variant is caches, and one that is being made is hidden behind a dot.
    """
    folders = sorted(path for path in (root / GRUG).glob("*") if path.is_dir())
    return [
        Variant(folder.name, folder, no_verify_mark(folder))
        for folder in folders
        if not folder.name.startswith(("__", ".")) and _holds_python(folder)
    ]


def _holds_python(folder: Path) -> bool:
    return any(path.name != "__init__.py" for path in folder.glob("*.py"))
