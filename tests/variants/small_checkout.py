"""A small checkout for tests: the real base, an archive, contracts that take no time, and git."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from chomp.variants.archive import ARCHIVE, fill_in_commits

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = "tests/test_grug_variant_contracts.py"

ENTRIES = """\
# What became of every variant.

base:
  introduced: {base}
  status: active
  purpose: What all
    are copied from.

# Given up.
gone:
  origin: base
  introduced: {base}
  last_known_good: {base}
  status: deleted
  purpose: To be here.
  reason: No better than base.
  diff: '`git log`'
"""

# Holds for every variant but one that says otherwise.
QUICK_CONTRACTS = """\
from pathlib import Path

import pytest

FOLDERS = [path.parent for path in Path("experiments/grug").glob("*/launch.py")]

@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_contract_of(folder):
    compile((folder / "launch.py").read_text(), "launch.py", "exec")
    assert not folder.name.startswith("broken")
"""


@dataclass(frozen=True)
class Checkout:
    """A folder that looks like a checkout, under git."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        """Write one file, with its folders, and give its path."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str) -> str:
        """What a file says."""
        return (self.root / name).read_text()

    def git(self, *arguments: str) -> str:
        """Run git here, by nobody's settings; what it printed."""
        command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=quiet_git(), check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, text: str = "next") -> str:
        """Commit everything; the commit's short name."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", f"--message={text}")
        return self.git("rev-parse", "--short=7", "HEAD")


def quiet_git() -> dict[str, str]:
    """This process's environment without what git would take from it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def small_checkout(root: Path) -> Checkout:
    """A checkout with base active, `gone` deleted, and everything committed."""
    made = Checkout(root)
    shutil.copytree(
        ROOT / "experiments/grug/base",
        root / "experiments/grug/base",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    made.write("experiments/grug/gone/model.py", "x = 1\n")
    made.write(".gitignore", "__pycache__/\noutputs/\n.pytest_cache/\n")
    made.write(CONTRACTS, QUICK_CONTRACTS)
    made.git("init", "--quiet")
    made.write(ARCHIVE, ENTRIES.format(base=made.commit("start")))
    shutil.rmtree(root / "experiments/grug/gone")
    fill_in_commits(root)
    made.commit("archive")
    return made
