"""The variants as they are at a commit, taken out of git into a folder of their own."""

import subprocess
from pathlib import Path

from chomp.errors import ConfigError
from chomp.variants.checkout import GRUG
from chomp.variants.folders import variant_folders
from chomp.variants.git_history import extract, holds


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
