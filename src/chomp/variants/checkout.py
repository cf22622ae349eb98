"""The checkout that a command runs in: its variants, their contracts, and what git knows of them.

An installed library has no templates, so the current folder decides and not the place of this file.
A folder is a variant by what it holds; it is never imported to find out. Git is only asked: nothing
here changes a repository. Without git, or outside of a repository, answers are None or empty.
Paths are relative to the root of the checkout.
"""

import importlib.util
import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from chomp.errors import ConfigError, LaunchError
from chomp.variants.marks import NotVerified, no_verify_mark

GRUG = "experiments/grug"
BASE = "base"
CONTRACTS = "tests/test_grug_variant_contracts.py"
# What Python and its tools leave behind.
CACHE_NAMES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"})


@dataclass(frozen=True)
class Variant:
    """One folder under `experiments/grug`."""

    name: str
    folder: Path
    not_verified: NotVerified | None  # the mark, whether it counts or not

    @property
    def root(self) -> Path:
        """The checkout that the variant is part of."""
        return self.folder.parents[len(Path(GRUG).parts)]

    def file_path(self, file: str) -> str:
        """A file of the variant as messages name it: by its path from the root."""
        return f"{variant_path(self.name)}/{file}"


def checkout_root(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that holds `experiments/grug/base`."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / GRUG / BASE).is_dir():
            return folder
    raise ConfigError(
        f"{start} is not in a checkout: neither it nor a folder above it has {GRUG}/{BASE}",
        allowed="a folder inside a checkout of the repository",
        fix="clone the repository and run the command there",
    )


def variant_path(name: str) -> str:
    """The folder of a variant, relative to the checkout's root."""
    return f"{GRUG}/{name}"


def variant_folders(root: Path) -> list[Variant]:
    """The variants of the checkout at `root`, sorted by name.

    A folder counts if it holds a Python file besides `__init__.py`: a deleted variant may leave
    caches behind, and one that is being created has a name that starts with a dot.
    """
    return [
        Variant(folder.name, folder, no_verify_mark(folder))
        for folder in sorted((root / GRUG).glob("*"))
        if not folder.name.startswith(("__", "."))
        and any(path.name != "__init__.py" for path in folder.glob("*.py"))
    ]


def variants_at(root: Path, commit: str, into: Path) -> dict[str, Path]:
    """Each variant's folder as it was at a commit, by name, written below `into`."""
    if not holds(root, commit, GRUG):
        return {}
    extract(root, commit, GRUG, into)
    return {variant.name: variant.folder for variant in variant_folders(into)}


# --- Contracts ------------------------------------------------------------------------------------


def contract_command(name: str) -> str:
    """The command that runs a variant's contracts, for a person to type."""
    return f"uv run --group test pytest {CONTRACTS} -k '{_selection(name)}'"


def run_contracts(root: Path, name: str) -> None:
    """Run the contracts of a variant; `LaunchError` if one fails or none can run."""
    if importlib.util.find_spec("pytest") is None:
        raise _contracts_failed(
            name, "were not run: pytest is not installed", "with the test group"
        )
    if not (root / CONTRACTS).is_file():
        raise _contracts_failed(
            name, f"were not run: there is no {CONTRACTS}", "in a full checkout"
        )
    sys.stdout.flush()  # before pytest writes to the same place
    # In a process of its own: the contracts set up JAX, which no command does.
    command = [sys.executable, "-m", "pytest", "-q", CONTRACTS, "-k", _selection(name)]
    code = subprocess.run(command, cwd=root).returncode
    if code:
        raise _contracts_failed(name, f"failed: pytest exited with {code}", "once it is repaired")


def _selection(name: str) -> str:
    # The bare name would also select variants whose name contains it: mlp and wide_mlp.
    return f"[{name}] or [{name}-"


def _contracts_failed(name: str, what: str, when: str) -> LaunchError:
    return LaunchError(
        f"{variant_path(name)} was created, but its contracts {what}",
        allowed="a variant that passes its contracts",
        fix=f"run {contract_command(name)} {when}",
    )


# --- Git ------------------------------------------------------------------------------------------


def head_commit(root: Path) -> str | None:
    """The commit that is checked out; None before the first one."""
    return _line(root, "rev-parse", "--verify", "--quiet", "HEAD")


def described_head(root: Path) -> str | None:
    """The commit that is checked out, with `-dirty` if tracked files have changed."""
    return _line(root, "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*")


def commit_of(root: Path, name: str) -> str:
    """The whole hash of a commit that is named by hash, branch or tag."""
    # After --end-of-options nothing is taken for an option.
    commit = _line(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    )
    if commit is None:
        raise ConfigError(
            f"{name!r} is not a commit of {root}",
            allowed="a commit in this clone: a hash, branch or tag",
            fix=f"fetch it (git fetch origin {name}), or correct the name",
        )
    return commit


def common_ancestor(root: Path, first: str, second: str) -> str | None:
    """The commit where two histories split; None if they share none."""
    return _line(root, "merge-base", first, second)


def last_commit_of(root: Path, path: str) -> str | None:
    """The newest commit that touched the path and holds it; a commit that deleted it does not."""
    touched = _text(root, "log", "--format=%H", "--", path).split()
    return next((commit for commit in touched if holds(root, commit, path)), None)


def first_commit_of(root: Path, path: str) -> str | None:
    """The commit that added the path, the first one if it was deleted and came back."""
    return next(iter(_text(root, "log", "--format=%H", "--reverse", "--", path).split()), None)


def is_whole_history(root: Path) -> bool:
    """Whether every commit is here: git, a repository, and not a shallow clone."""
    return _line(root, "rev-parse", "--is-shallow-repository") == "false"


def has_commit(root: Path, commit: str) -> bool:
    """Whether the repository holds this commit."""
    return _git(root, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def holds(root: Path, commit: str, path: str) -> bool:
    """Whether the path existed at a commit."""
    # `./`: relative to this folder, if the checkout is part of a larger repository.
    return _git(root, "cat-file", "-e", f"{commit}:./{path}") is not None


def is_ignored(root: Path, folder: str) -> bool:
    """Whether git ignores what is in a folder of this name; it need not exist."""
    return _git(root, "check-ignore", "--quiet", "--", f"{folder}/") is not None


def short(root: Path, commit: str) -> str:
    """The commit's short hash, at least seven characters."""
    return _line(root, "rev-parse", "--short=7", commit) or commit[:7]


def uncommitted(root: Path, path: str) -> list[str]:
    """Files below the path with changes that no commit has, caches excluded.

    Files that git ignores are listed too: a run's outputs inside the folder would be lost with it.
    """
    status = _text(root, "status", "--porcelain", "-z", "--ignored", "-uall", "--", path)
    # Each record is two letters, a space and a name; a rename's old name follows on its own.
    names = [record[3:] for record in status.split("\0") if record[2:3] == " "]
    return [name for name in names if not CACHE_NAMES & set(Path(name).parts)]


def files_of(root: Path, path: str) -> list[str] | None:
    """The files below the path that git has or would add, sorted; None without a repository."""
    listed = _git(root, "ls-files", "-z", "-co", "--exclude-standard", "--", path)
    if listed is None:
        return None
    names = {name for name in listed.decode(errors="surrogateescape").split("\0") if name}
    # A deleted file stays listed until its deletion is staged.
    return sorted(name for name in names if (root / name).is_file())


def extract(root: Path, commit: str, path: str, into: Path) -> Path:
    """Write the folder as it was at a commit below `into`, and return its place there."""
    # Unlike a second worktree, this writes nothing into the repository.
    packed = _git(root, "archive", "--format=tar", commit, "--", path)
    if packed is None:
        raise ConfigError(
            f"git has no {path} at commit {commit}",
            allowed="a commit of this repository that holds the folder",
            fix="fetch the whole history (git fetch --unshallow), or correct the commit in "
            "the archive",
        )
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter="data")  # nothing outside of `into`
    return into / path


def _line(root: Path, *arguments: str) -> str | None:
    return _text(root, *arguments).strip() or None


def _text(root: Path, *arguments: str) -> str:
    return (_git(root, *arguments) or b"").decode(errors="surrogateescape")


def _git(root: Path, *arguments: str) -> bytes | None:
    """What git printed; None if it failed or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
