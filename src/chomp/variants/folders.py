"""The variants of a checkout, now or at a commit, and a run of the contracts of one.

A folder is known by what it holds, never by importing it: one that cannot be imported is a variant
all the same, and the contracts say so.
"""

import importlib.util
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from chomp.errors import ConfigError, LaunchError
from chomp.variants.checkout import GRUG, extract, holds, variant_path
from chomp.variants.marks import NotVerified, no_verify_mark

CONTRACTS = "tests/test_grug_variant_contracts.py"


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


def commit_of(root: Path, name: str) -> str:
    """The whole hash of a commit that is named by hash, branch or tag."""
    # Behind --end-of-options nothing is taken for an option, whatever it begins with.
    commit = _asked(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    )
    if not commit:
        raise ConfigError(
            f"{name!r} is not a commit of {root}",
            allowed="a commit in this clone: a hash, branch or tag",
            fix=f"fetch it (git fetch origin {name}), or correct the name",
        )
    return commit


def common_ancestor(root: Path, first: str, second: str) -> str | None:
    """Where two commits parted; None if their histories have nothing in common here."""
    return _asked(root, "merge-base", first, second) or None


def variants_at(root: Path, commit: str, into: Path) -> dict[str, Path]:
    """Each variant's folder by name, written below `into`; none where there are no variants."""
    if not holds(root, commit, GRUG):
        return {}
    # Source is read from git and not from the checkout, which may have edits or another branch.
    extract(root, commit, GRUG, into)
    return {variant.name: variant.folder for variant in variant_folders(into)}


def _asked(root: Path, *arguments: str) -> str:
    """What git printed; nothing where it failed or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="surrogateescape").strip() if done.returncode == 0 else ""


def contract_command(name: str) -> str:
    """The line that runs a variant's contracts, for a person to type."""
    return f"uv run --group test pytest {CONTRACTS} -k '{_selection(name)}'"


def run_contracts(root: Path, name: str) -> None:
    """The contracts of a variant hold; `LaunchError` where one does not, or where none can run."""
    if importlib.util.find_spec("pytest") is None:
        raise _not_kept(name, "were not run: there is no pytest here", "with the group test")
    if not (root / CONTRACTS).is_file():
        raise _not_kept(name, f"were not run: there is no {CONTRACTS}", "in a whole checkout")
    # A process of its own: the contracts set up JAX as no command may.
    command = [sys.executable, "-m", "pytest", "-q", CONTRACTS, "-k", _selection(name)]
    sys.stdout.flush()  # what was said before stands before what pytest says
    ended = subprocess.run(command, cwd=root).returncode
    if ended:
        raise _not_kept(name, f"do not hold: pytest ended with {ended}", "once it is repaired")


def _selection(name: str) -> str:
    # The name alone would also select variants whose name contains it: mlp and wide_mlp.
    return f"[{name}] or [{name}-"


def _not_kept(name: str, what: str, when: str) -> LaunchError:
    return LaunchError(
        f"{variant_path(name)} was created, but its contracts {what}",
        allowed="a variant that passes its contracts",
        fix=f"run {contract_command(name)} {when}",
    )
