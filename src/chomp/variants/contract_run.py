"""The contracts of one variant, run as anybody would: by pytest, in a process of its own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from chomp.errors import LaunchError
from chomp.variants.checkout import variant_path

CONTRACTS = "tests/test_grug_variant_contracts.py"


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
