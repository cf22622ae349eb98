"""Where results go that come after a run's own: into its record, and on to the services it uses."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chomp.cli.opened_run import OpenedRun
from chomp.errors import ConfigError

if TYPE_CHECKING:  # for annotations alone
    from chomp.tracking import Row, RunFacts, Tracker

_log = logging.getLogger(__name__)


@contextmanager
def late_tracker(run: OpenedRun) -> Iterator[Tracker]:
    """The record of a run, and the services its config asks for, for rows of a completed step.

    Rows belong to the record's last attempt. The run may be training meanwhile: then its record
    takes the rows, and W&B, which has room for one writer, does not. A run without a record, or
    with one that this user may not append to, is left as it is, which is said.
    """
    from chomp.mesh import is_first
    from chomp.storage import join
    from chomp.tracking import CompositeTracker, NoopTracker, last_attempt
    from chomp.tracking.late_rows import LateRows

    record = None if run.folder is None else join(run.folder, run.config.logging.metrics_file)
    if record is None or not is_first() or not _can_append(record):
        yield NoopTracker()
        return
    # No attempt of its own: readers would take it for a restart of the run.
    attempt = last_attempt(record)
    tracker = CompositeTracker(LateRows(record, attempt=attempt), _sinks(run, record, attempt))
    try:
        yield tracker
    finally:
        tracker.finish()


def _can_append(record: str) -> bool:
    is_writable = os.access(record, os.W_OK)
    if not is_writable:
        fault = "may not be appended to" if os.path.exists(record) else "is not there"
        _log.warning("the results are not in the run's record: %s %s", record, fault)
    return is_writable


def _sinks(run: OpenedRun, record: str, attempt: int) -> list[Tracker]:
    """TensorBoard where it is enabled, and W&B where the run is there and has ended."""
    from chomp.tracking import metrics, open_sinks, read_metrics

    rows = read_metrics(record)
    try:
        facts = _facts(run, rows, attempt)
    except ConfigError as error:  # this machine may be another than the run's
        _log.warning("W&B is told nothing: %s", error)
        facts = _facts(run, [], attempt)
    outcome = _outcome(rows, attempt)
    if facts.wandb_id is not None and outcome is None:
        _log.warning(
            "the last attempt of %s has not ended, or was killed: W&B is told nothing. "
            "`chomp metrics replay %s --to wandb` sends the record later",
            *(run.folder, run.folder),
        )
        facts = _facts(run, [], attempt)
    sinks = open_sinks(run.config.logging, facts, on_address=lambda address: None)
    for sink in sinks:
        # W&B marks a run by how the last one who wrote to it says it ended.
        if outcome is not None:
            sink.log_summary({metrics.RUN_OUTCOME: outcome})
    return sinks


def _facts(run: OpenedRun, rows: list[Row], attempt: int) -> RunFacts:
    from chomp.storage import exists, join, read_json
    from chomp.tracking import RunFacts, metrics, summary_of, wants_wandb
    from chomp.tracking.jsonl import is_step_row
    from chomp.tracking.run_files import RESOLVED_CONFIG

    known = summary_of(rows).get(metrics.WANDB_RUN_ID)
    # As the run wrote it: an override of this command is none of the run's settings.
    location = join(str(run.folder), RESOLVED_CONFIG)
    settings = read_json(location) if exists(location) else {}
    return RunFacts(
        folder=str(run.folder),
        name=run.config.run_id,
        attempt=attempt,
        config=settings if isinstance(settings, dict) else {},
        # A run that never was at W&B is not put there by its evaluation.
        wandb_id=known if known and wants_wandb(run.config.logging.wandb) else None,
        rows_before=sum(map(is_step_row, rows)),
    )


def _outcome(rows: list[Row], attempt: int) -> str | None:
    """How the attempt ended, as it has said itself; None: it has not."""
    from chomp.tracking import metrics

    said = [row.get(metrics.RUN_OUTCOME) for row in rows if row.get("attempt") == attempt]
    return next((outcome for outcome in reversed(said) if isinstance(outcome, str)), None)
