"""Whether a run is under way, done or gone, told from its folder alone."""

import time
from typing import Literal

from chomp.errors import StorageError
from chomp.executor.status import LOCK, StepStatus, read_status
from chomp.report.record import RunRecord
from chomp.storage import Lease, join

State = Literal["finished", "running", "stopped", "failed", "empty"]

FINISHED = "finished"
# Asked to stop, by a signal, a limit or a person: the same command goes on.
_STOPS = ("RunInterrupted", "KeyboardInterrupt", "SystemExit")
# A run may compile, evaluate or save for as long without logging a line.
FRESH_S = 600.0


def run_state(record: RunRecord, *, now_s: float | None = None) -> State:
    """How the run stands at `now_s` (seconds since 1970; default: now).

    What the last attempt said of its own end counts first. One that said nothing is running while
    its process is seen to run, or while its lines are fresh; else it was stopped from outside.
    """
    last = record.attempts[-1] if record.attempts else None
    outcome = None if last is None else last.outcome
    if outcome == FINISHED:
        return "finished"
    if _is_held(record.folder):  # also by an attempt that has not logged a line yet
        return "running"
    if outcome is not None:
        return "stopped" if outcome in _STOPS else "failed"
    now_s = time.time() if now_s is None else now_s
    if last is not None and now_s - last.last_time < FRESH_S:
        return "running"
    status = _status(record.folder)
    if status is not None and status.state in ("SUCCESS", "FAILED"):
        return "finished" if status.state == "SUCCESS" else "failed"
    return "stopped" if record.columns.blocks else "empty"


def _status(folder: str) -> StepStatus | None:
    try:
        return read_status(folder)
    except StorageError:  # half-written, or of another version: its record still tells
        return None


def _is_held(folder: str) -> bool:
    """Whether a process of this machine holds the run's lock and is alive.

    One of another machine cannot be seen from here: its lines tell.
    """
    try:
        holder = Lease.live_holder(join(folder, LOCK))
    except StorageError:
        return False
    return holder is not None and holder.process.is_surely_running()
