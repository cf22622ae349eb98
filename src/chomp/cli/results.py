"""What becomes of results: a JSON file, and rows in the run's record if they are the run's own.

They are its own if they mean what the loop's numbers mean. Results of another template, another
kernel or a part of the questions would look in the record like a change of the model.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chomp.checkpoint import StepFolder
from chomp.cli.loaded_run import LoadedRun
from chomp.cli.output import print_json, say
from chomp.config import fingerprint
from chomp.errors import ConfigError, require
from chomp.mesh import is_first, raise_together
from chomp.storage import is_folder, join, parent_of, require_writable_folder, write_json_atomic
from chomp.storage.files import require_inside
from chomp.tracking import (
    JsonlTracker,
    NoopTracker,
    Tracker,
    last_attempt,
    metrics,
    read_metrics,
    start_sidecar,
    summary_of,
    wandb_start,
    wants_wandb,
)
from chomp.tracking.record import strict_json
from chomp.tracking.run_files import ARTIFACTS, resolved_config
from chomp.training.run_folder import result_header

TITLES = {"params": "weights", "ema": "averaged weights"}  # for people
# What overrides may change in any of these commands: where it is computed, and where rows go.
MAY_CHANGE = (
    "mesh.*",
    "model.attention",
    "logging.project",
    "logging.metrics_file",
    "logging.wandb.*",
    "logging.tensorboard.*",
)

_HASH_CHARACTERS = 8  # of what defines results, in the name of their file
_INDEX = re.compile(r"(\.\d+)+$")  # of an item in a list
_log = logging.getLogger(__name__)


# --- the file -----------------------------------------------------------------------------------


def about_checkpoint(run: LoadedRun, found: StepFolder, weights: str) -> dict[str, Any]:
    """Which weights results are of, beyond doubt, and the software and devices that found them.

    `weights` is `params`, `ema` or `both`.
    """
    metadata = found.metadata
    return {
        "run_id": metadata.run_id,
        "checkpoint": found.path,
        # Of all its arrays: two checkpoints with one hash hold the same numbers.
        "receipt_hash": fingerprint(metadata.receipt),
        "template_hash": run.template.digest,
        "changed": dict(run.changed),
        **result_header(run, metadata.step, weights),
    }


def short_hash(definition: Any) -> str:
    """A few characters for the name of a file, different for each definition."""
    return fingerprint(definition)[:_HASH_CHARACTERS]


def require_place(run: LoadedRun, out: str | None) -> None:
    """Raise an error now, and not after the work, if results cannot be written."""
    path = _place(run, "results.json", out)
    with raise_together("looking for a place for the results"):
        if path is not None and is_first():
            require(
                not (path.endswith("/") or is_folder(path)),
                f"--out {out}, which is a folder",
                allowed="a file, which is written or written over",
                fix=f"pass --out {path.rstrip('/')}/results.json",
            )
            require_writable_folder(parent_of(path))


def keep_results(
    run: LoadedRun,
    content: Mapping[str, Any],
    *,
    name: str,
    out: str | None,
    as_json: bool,
    show: Callable[[], None],
) -> str | None:
    """Write the results and print them; the path of their file.

    They go to `out`, or to `name` among the run's artifacts; nowhere for a checkpoint outside of a
    run folder. They are printed as JSON, or by `show`, with what became of them.
    """
    path = _place(run, name, out)
    if not is_first():
        return path
    if path is not None:
        write_json_atomic(path, strict_json(content))
    if as_json:
        print_json(content)
        return path
    show()
    say(f"checkpoint  {path_from_here(content['checkpoint'])}")
    if path is not None:
        say(f"results     {path_from_here(path)}")
    if content["differs_from_run"]:
        say(f"record      left as it is: {', '.join(content['differs_from_run'])}")
    return path


def path_from_here(path: str) -> str:
    """A path below the current folder without that folder; any other as it is."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path


def _place(run: LoadedRun, name: str, out: str | None) -> str | None:
    if out is not None or run.folder is None:
        return out
    require_inside(join(run.folder, ARTIFACTS), run.folder)
    return join(run.folder, ARTIFACTS, name)


# --- whether they are the run's own -------------------------------------------------------------


def result_differences(
    run: LoadedRun,
    found: StepFolder,
    sections: Sequence[str],
    known_stores: Mapping[str, bool] | None = None,
) -> list[str]:
    """What makes the numbers others than the run's, in a few words each; none: they are its own.

    `sections` are those of the config on which these numbers depend. A store that is somewhere
    else by now and is known to hold what it held is the run's own.
    """
    known = known_stores or {}

    def store_of(path: str) -> str | None:
        """The component whose held-out store a field names; a name with a dot is quoted there."""
        if not fnmatchcase(path, "data.components.*.validation_store"):
            return None
        return path.removeprefix("data.components.").removesuffix(".validation_store").strip("'\"")

    texts = [] if run.has_template_of(found) else ["another template"]
    for path in run.changed:
        if path.split(".")[0] in sections and not known.get(store_of(path) or "", False):
            texts.append(f"{_INDEX.sub('', path)} is changed")
    for item in run.changes_since(found):
        # The stores that are known have texts of their own below.
        is_other = item.mark == "identity" or item.path.split(".")[0] in sections
        if is_other and item.path not in run.changed and store_of(item.path) not in known:
            texts.append(f"{_INDEX.sub('', item.path)} is not as the checkpoint was saved with")
    texts = list(dict.fromkeys(texts))  # two items of a list are one field
    return [*texts, *(f"other data in {name}" for name, is_same in known.items() if not is_same)]


# --- the run's record ---------------------------------------------------------------------------


@contextmanager
def late_tracker(run: LoadedRun) -> Iterator[Tracker]:
    """The record of a run, and the services its config asks for, for rows of a completed step.

    Rows belong to the record's last attempt. The run may be training meanwhile: then its record
    takes the rows, and W&B, which has room for one writer, does not. A run without a record, or
    with one that this user may not append to, is left as it is, with a warning.
    """
    config, folder = run.config.logging, run.folder
    record = None if folder is None else join(folder, config.metrics_file)
    can_append = record is not None and is_first() and os.access(record, os.W_OK)
    if record is not None and is_first() and not can_append:
        fault = "may not be appended to" if os.path.exists(record) else "is not there"
        _log.warning("the results are not in the run's record: %s %s", record, fault)
    if record is None or folder is None or not can_append:
        yield NoopTracker()
        return
    # No attempt of its own: readers would take it for a restart of the run.
    attempt, rows = last_attempt(record), read_metrics(record)
    # A run that never was at W&B is not put there by its evaluation.
    wandb_id = summary_of(rows).get(metrics.WANDB_RUN_ID)
    try:
        wandb_id = wandb_id if wandb_id and wants_wandb(config.wandb) else None
    except ConfigError as error:  # this machine may be another than the run's
        _log.warning("nothing is sent to W&B: %s", error)
        wandb_id = None
    # W&B marks a run by how the last one who wrote to it says it ended.
    of_attempt = [row for row in rows if row.get("attempt") == attempt]
    has_ended = any(isinstance(row.get(metrics.RUN_OUTCOME), str) for row in of_attempt)
    if wandb_id is not None and not has_ended:
        _log.warning(
            "the last attempt of %s has not ended, or was killed: nothing is sent to W&B. "
            "`chomp metrics replay %s --to wandb` sends the record later",
            *(folder, folder),
        )
        wandb_id = None
    wandb = None
    if wandb_id is not None:
        # As the run wrote it: an override of this command is none of the run's settings.
        settings, name = resolved_config(folder), run.config.run_id
        wandb = wandb_start(config, name=name, run_id=wandb_id, settings=settings, attempt=attempt)
    tracker = JsonlTracker(record, attempt=attempt, is_shared=True)
    sidecar = start_sidecar(
        record,
        folder=folder,
        wandb=wandb,
        tensorboard=config.tensorboard.folder if config.tensorboard.enabled else None,
        waits_for_others=False,  # while the run trains, its own process sends this row too
    )
    try:
        yield tracker
    finally:
        tracker.finish()
        if sidecar is not None:
            sidecar.finish()
