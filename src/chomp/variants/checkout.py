"""Where the templates are: the checkout that a command is run in, and what git knows of it.

An installed library has no templates, and what is done to them is a change to a repository, so the
current folder decides and not the place of this file. Git is only asked; nothing here changes a
repository. Where there is no git, or no repository, answers are None or empty, and whoever needs
one says so. Paths are relative to the root of the checkout.
"""

import io
import subprocess
import tarfile
from pathlib import Path

from chomp.errors import ConfigError

GRUG = "experiments/grug"
BASE = "base"
# What Python and its tools leave behind: never anybody's work.
CACHE_NAMES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


def checkout_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that holds `experiments/grug/base`."""
    start = start.resolve()
    # Not a marker such as .git: a variant is needed to do anything, and base is always there.
    for folder in (start, *start.parents):
        if (folder / GRUG / BASE).is_dir():
            return folder
    raise ConfigError(
        f"{start} is not in a checkout: neither it nor a folder above it has {GRUG}/{BASE}",
        allowed="a folder inside a checkout of the repository",
        fix="clone the repository and run the command there",
    )


def variant_path(name: str) -> str:
    """Where a variant is, from the checkout's root."""
    return f"{GRUG}/{name}"


def head_commit(root: Path) -> str | None:
    """The commit that is checked out; None before the first one."""
    return _line(root, "rev-parse", "--verify", "--quiet", "HEAD")


def described_head(root: Path) -> str | None:
    """The commit that is checked out, with `-dirty` where tracked files are not as in it."""
    # No tag: the letters alone name a commit for good.
    return _line(root, "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*")


def last_commit_of(root: Path, path: str) -> str | None:
    """The newest commit that touched the path and holds it; None where git knows of none."""
    # The newest that touched it may be its deletion, which has nothing to go back to.
    touched = _output(root, "log", "--format=%H", "--", path).split()
    return next((commit for commit in touched if holds(root, commit, path)), None)


def first_commit_of(root: Path, path: str) -> str | None:
    """The commit that brought the path; None where git knows of none."""
    # Of a folder that was taken away and came back, this is the first time.
    lines = _output(root, "log", "--format=%H", "--reverse", "--", path).split()
    return lines[0] if lines else None


def is_whole_history(root: Path) -> bool:
    """Whether every commit is here: git, a repository, and no shallow clone of one."""
    return _line(root, "rev-parse", "--is-shallow-repository") == "false"


def has_commit(root: Path, commit: str) -> bool:
    """Whether the repository holds this commit."""
    # The suffix tells a commit from another object that happens to have these digits.
    return _asked(root, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def holds(root: Path, commit: str, path: str) -> bool:
    """Whether the path was there at a commit."""
    # `./`: from this folder, where the checkout is part of a larger repository.
    return _asked(root, "cat-file", "-e", f"{commit}:./{path}") is not None


def is_ignored(root: Path, folder: str) -> bool:
    """Whether git would leave out what is in such a folder; it need not be there."""
    # The slash: most patterns are of folders alone.
    return _asked(root, "check-ignore", "--quiet", "--", f"{folder}/") is not None


def short(root: Path, commit: str) -> str:
    """The commit as few letters as name it, at least seven."""
    return _line(root, "rev-parse", "--short=7", commit) or commit[:7]


def uncommitted(root: Path, path: str) -> list[str]:
    """Files below the path that no commit holds as they are now; caches do not count.

    What git ignores counts: a run's outputs that lie inside the folder would be lost with it.
    """
    told = _output(root, "status", "--porcelain", "-z", "--ignored", "-uall", "--", path)
    # Each record is two letters, a space and a name; a rename's old name follows on its own.
    names = [record[3:] for record in told.split("\0") if record[2:3] == " "]
    return [name for name in names if not CACHE_NAMES & set(Path(name).parts)]


def files_of(root: Path, path: str) -> list[str] | None:
    """The files below the path that git has or would add, sorted; None without a repository."""
    told = _asked(root, "ls-files", "-z", "-co", "--exclude-standard", "--", path)
    if told is None:
        return None
    # A deleted file stays listed until its deletion is staged.
    names = {name for name in told.decode(errors="surrogateescape").split("\0") if name}
    return sorted(name for name in names if (root / name).is_file())


def extract(root: Path, commit: str, path: str, into: Path) -> Path:
    """The folder as it was at a commit, written below `into`; its place there."""
    # Unlike a second worktree, this writes nothing into the repository.
    packed = _asked(root, "archive", "--format=tar", commit, "--", path)
    if packed is None:
        raise ConfigError(
            f"git has no {path} at commit {commit}",
            allowed="a commit of this repository that holds the folder",
            fix="fetch the whole history (git fetch --unshallow), or correct the commit in "
            "the archive",
        )
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter="data")  # nothing outside of `into`, whatever it says
    return into / path


def _line(root: Path, *arguments: str) -> str | None:
    return _output(root, *arguments).strip() or None


def _output(root: Path, *arguments: str) -> str:
    return (_asked(root, *arguments) or b"").decode(errors="surrogateescape")


def _asked(root: Path, *arguments: str) -> bytes | None:
    """What git printed; None where it failed or is not there."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
