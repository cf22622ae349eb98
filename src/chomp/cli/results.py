"""What becomes of results: a JSON file, and rows in the run's record if they are the run's own.

They are its own if they mean what the loop's numbers mean. Results of another template, another
kernel or a part of the questions would look in the record like a change of the model.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chomp.checkpoint import StepFolder
from chomp.cli.loaded_run import LoadedRun
from chomp.cli.output import say
from chomp.config import fingerprint
from chomp.errors import ConfigError, require
from chomp.mesh import is_first, raise_together
from chomp.storage import is_folder, join, parent_of, require_writable_folder, write_json_atomic
from chomp.storage.files import require_inside
from chomp.tracking import (
    JsonlTracker,
    NoopTracker,
    Sidecar,
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
from chomp.training import HarnessConfig
from chomp.training.run_folder import result_header

TITLES = {"params": "weights", "ema": "averaged weights"}  # for people

_HASH_CHARACTERS = 8  # of what defines results, in the name of their file
_INDEX = re.compile(r"(\.\d+)+$")  # of an item in a list
_STORE = "data.components.*.validation_store"
# Fields of a harness config that say when and how fast, and nothing about the numbers.
_NOT_NUMBERS = frozenset({"every", "batch_size", "allow_code"})
_log = logging.getLogger(__name__)


# --- the file -----------------------------------------------------------------------------------


def about_checkpoint(run: LoadedRun, found: StepFolder, weights: str) -> dict[str, Any]:
    """Which weights results are of, beyond doubt, and the software and devices that found them.

    `weights` is `params`, `ema` or `both`.
    """
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
    """A few characters for the name of a file, different for each definition."""
    return fingerprint(definition)[:_HASH_CHARACTERS]


def require_place(run: LoadedRun, out: str | None) -> None:
    """Raise an error now, and not after the work, if results cannot be written."""
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


def write_results(
    run: LoadedRun, content: Mapping[str, Any], *, name: str, out: str | None
) -> str | None:
    """Write `content` to `out`, or to `name` among the run's artifacts; the path.

    None, and nothing is written, for a checkpoint outside of a run folder unless `out` is given.
    """
    path = _place(run, name, out)
    if path is not None and is_first():
        write_json_atomic(path, strict_json(content))
    return path


def say_places(found: StepFolder, path: str | None, differences: Sequence[str]) -> None:
    """Say which checkpoint was looked at, where the results are, and why they are not logged."""
    say(f"checkpoint  {path_from_here(found.path)}")
    if path is not None:
        say(f"results     {path_from_here(path)}")
    if differences:
        say(f"record      left as it is: {', '.join(differences)}")


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
    texts = [] if run.has_template_of(found) else ["another template"]
    for path in run.changed:
        is_moved = fnmatchcase(path, _STORE) and known.get(_component(path), False)
        if path.split(".")[0] in sections and not is_moved:
            texts.append(f"{_INDEX.sub('', path)} is changed")
    for item in run.changes_since(found):
        # The stores that are known have texts of their own below.
        is_known = fnmatchcase(item.path, _STORE) and _component(item.path) in known
        is_other = item.mark == "identity" or item.path.split(".")[0] in sections
        if is_other and item.path not in run.changed and not is_known:
            texts.append(f"{_INDEX.sub('', item.path)} is not as the checkpoint was saved with")
    texts = list(dict.fromkeys(texts))  # two items of a list are one field
    return [*texts, *(f"other data in {name}" for name, is_same in known.items() if not is_same)]


def harness_differences(run: LoadedRun, at: StepFolder, config: HarnessConfig) -> list[str]:
    """The same for lm-eval tasks: what differs from the tasks of the loop.

    A run without tasks in its loop has no numbers of its own, but those of a part of a task's
    questions must not look like those of the whole.
    """
    found = result_differences(run, at, ("model",))
    own = None if run.config.eval is None else run.config.eval.harness
    if own is None or {"eval", "eval.harness"} & run.changed.keys():
        return [*found, *([] if config.limit is None else [f"limit={config.limit}"])]
    changed = {path.split(".")[2] for path in run.changed if "harness." in path}
    asked, of_run = vars(config), vars(own)
    other = {name for name in asked if asked[name] != of_run[name]}
    return [*found, *(f"another {name}" for name in sorted((changed | other) - _NOT_NUMBERS))]


def asked_fields(harness: Mapping[str, object]) -> dict[str, object]:
    """The fields of a harness config, as plain values, on which the numbers depend."""
    return {name: value for name, value in harness.items() if name not in _NOT_NUMBERS}


def _component(path: str) -> str:
    """The NAME of data.components.NAME.validation_store; one with a dot in it is quoted there."""
    return path.removeprefix("data.components.").removesuffix(".validation_store").strip("'\"")


# --- the run's record ---------------------------------------------------------------------------


@contextmanager
def late_tracker(run: LoadedRun) -> Iterator[Tracker]:
    """The record of a run, and the services its config asks for, for rows of a completed step.

    Rows belong to the record's last attempt. The run may be training meanwhile: then its record
    takes the rows, and W&B, which has room for one writer, does not. A run without a record, or
    with one that this user may not append to, is left as it is, with a warning.
    """
    record = None if run.folder is None else join(run.folder, run.config.logging.metrics_file)
    can_append = record is not None and is_first() and os.access(record, os.W_OK)
    if record is not None and is_first() and not can_append:
        fault = "may not be appended to" if os.path.exists(record) else "is not there"
        _log.warning("the results are not in the run's record: %s %s", record, fault)
    if record is None or not can_append:
        yield NoopTracker()
        return
    # No attempt of its own: readers would take it for a restart of the run.
    attempt = last_attempt(record)
    tracker = JsonlTracker(record, attempt=attempt, is_shared=True)
    sidecar = _start_sidecar(run, record, attempt)
    try:
        yield tracker
    finally:
        tracker.finish()
        if sidecar is not None:
            sidecar.finish()


def _start_sidecar(run: LoadedRun, record: str, attempt: int) -> Sidecar | None:
    """What sends the row to TensorBoard where it is enabled, and to W&B where the run has ended."""
    rows, config, folder = read_metrics(record), run.config.logging, str(run.folder)
    # A run that never was at W&B is not put there by its evaluation.
    wandb_id = summary_of(rows).get(metrics.WANDB_RUN_ID)
    try:
        wandb_id = wandb_id if wandb_id and wants_wandb(config.wandb) else None
    except ConfigError as error:  # this machine may be another than the run's
        _log.warning("nothing is sent to W&B: %s", error)
        wandb_id = None
    # W&B marks a run by how the last one who wrote to it says it ended.
    has_ended = any(
        row.get("attempt") == attempt and isinstance(row.get(metrics.RUN_OUTCOME), str)
        for row in rows
    )
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
    return start_sidecar(
        record,
        folder=folder,
        wandb=wandb,
        tensorboard=config.tensorboard.folder if config.tensorboard.enabled else None,
        waits_for_others=False,  # while the run trains, its own process sends this row too
    )
