"""The JSON file that results are kept in: what they are of, and on what they were found."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chomp.cli.opened_run import OpenedRun
from chomp.cli.terminal import say
from chomp.errors import require
from chomp.tracking.lines import strict_json

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint import StepFolder

# How people are told which weights results are of.
TITLES = {"params": "weights", "ema": "averaged weights"}
_HASH_CHARACTERS = 8  # of what defines results, in the name of their file


def about_checkpoint(run: OpenedRun, found: StepFolder, weights: str) -> dict[str, Any]:
    """Which weights results are of, beyond doubt, and the software and devices that found them.

    `weights` is `params`, `ema` or `both`.
    """
    from chomp.config import fingerprint
    from chomp.training.metadata import result_header

    metadata = found.metadata
    header = result_header(
        metadata.step, weights, tokenizer=run.tokenizer, mesh=run.mesh, mp=run.mp
    )
    return {
        "run_id": metadata.run_id,
        "checkpoint": found.path,
        # Of all its arrays: two checkpoints with one hash hold the same numbers.
        "receipt_hash": fingerprint(metadata.receipt),
        "template_hash": run.template.digest,
        "changed": dict(run.changed),
        **header,
    }


def short_hash(definition: Any) -> str:
    """A few characters that tell results of one definition from those of another."""
    from chomp.config import fingerprint

    return fingerprint(definition)[:_HASH_CHARACTERS]


def require_place(run: OpenedRun, out: str | None) -> None:
    """Raise an error now, and not after the work, if results cannot be written."""
    from chomp.mesh import is_first, raise_together
    from chomp.storage import is_folder, parent_of, require_writable_folder

    path = _place(run, "results.json", out)
    with raise_together("looking for a place for the results"):
        if path is not None and is_first():
            require(
                not (path.endswith("/") or is_folder(path)),
                given=f"--out {out}, which is a folder",
                allowed="a file, which is written or written over",
                fix=f"pass --out {path.rstrip('/')}/results.json",
            )
            require_writable_folder(parent_of(path))


def written(
    run: OpenedRun, content: Mapping[str, Any], *, name: str, out: str | None
) -> str | None:
    """The file that holds `content` now: `out`, or `name` among the run's artifacts.

    None, and nothing written, for a checkpoint outside of a run folder unless `out` is given.
    """
    from chomp.mesh import is_first
    from chomp.storage import write_json_atomic

    path = _place(run, name, out)
    if path is not None and is_first():
        write_json_atomic(path, strict_json(content))
    return path


def _place(run: OpenedRun, name: str, out: str | None) -> str | None:
    from chomp.storage import join
    from chomp.storage.files import require_inside
    from chomp.tracking.run_files import ARTIFACTS

    if out is not None:
        return out
    if run.folder is None:
        return None
    require_inside(join(run.folder, ARTIFACTS), run.folder)
    return join(run.folder, ARTIFACTS, name)


def print_json(content: Mapping[str, Any]) -> None:
    """Print what `written` writes."""
    from chomp.storage import json_text

    print(json_text(strict_json(content), name="the results", indent=2))


def say_places(found: StepFolder, path: str | None, differences: Sequence[str]) -> None:
    """Say which checkpoint was looked at, where the results are, and why they are not logged."""
    say(f"checkpoint  {as_seen_from_here(found.path)}")
    if path is not None:
        say(f"results     {as_seen_from_here(path)}")
    if differences:
        say(f"record      left as it is: {', '.join(differences)}")


def as_seen_from_here(path: str) -> str:
    """A path below the current folder without that folder; any other as it is."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
