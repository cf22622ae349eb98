"""The command of a job: in which environment it runs on the cluster, and what the job is called."""

import getpass
import re
import secrets
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chomp.errors import require
from chomp.launch.job_keys import PACKAGE

# The driver of a job needs Ray itself, whatever else it needs.
_EXTRA_OF_RAY = "ray"
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")  # and not python-coverage or the like


def with_extras(command: Sequence[str], extras: Sequence[str], project: Path) -> list[str]:
    """The command in an environment with those extras of the project, which uv makes there.

    Under `uv run`, Ray starts the workers of the job by uv, too, with the same extras.
    """
    if not extras:
        return list(command)
    known = _extras_of(project)
    unknown = [name for name in extras if name not in known]
    require(
        not unknown,
        f"--extra {','.join(unknown)}",
        allowed=f"extras of {project}: {', '.join(known) or 'it has none'}",
        fix="correct the name, or add the extra there",
    )
    wanted = dict.fromkeys([*extras, *([_EXTRA_OF_RAY] if _EXTRA_OF_RAY in known else [])])
    flags = [word for name in wanted for word in ("--extra", name)]
    rest = command[2:] if _is_uv_run(command) else ["--", *command]
    return ["uv", "run", *flags, *rest]


def entrypoint_of(
    command: Sequence[str], extras: Sequence[str], project: Path, *, has_keys: bool
) -> list[str]:
    """The words that run the command over there, behind those that fetch its keys if it has any."""
    words = with_extras(command, extras, project)
    if not has_keys:
        return words
    python = command[0] if _PYTHON.fullmatch(Path(command[0]).name) else "python"
    start = [python, "-m", PACKAGE]
    # Inside of the environment that uv makes, which has Ray; a node's own `python` may have none.
    is_inside = bool(extras) and not _is_uv_run(command)
    return with_extras([*start, *command], extras, project) if is_inside else [*start, *words]


def submission_id_of(command: Sequence[str]) -> str:
    """A name for the job that says who runs what since when."""
    files = [Path(word).stem for word in command if word.endswith((".py", ".sh"))]
    what = (files or [Path(command[0]).name])[0]
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"ray-run-{getpass.getuser()}-{what}-{now}-{secrets.token_hex(2)}"


def _is_uv_run(command: Sequence[str]) -> bool:
    return list(command[:2]) == ["uv", "run"]


def _extras_of(project: Path) -> list[str]:
    if not project.is_file():
        return []
    found: dict[str, Any] = tomllib.loads(project.read_text()).get("project", {})
    return sorted(found.get("optional-dependencies", {}))
