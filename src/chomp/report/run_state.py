"""Whether a run is under way, done or gone, told from its folder alone."""

import os
import socket
import time
from typing import Literal

from chomp.errors import StorageError
from chomp.executor.status import LOCK, StepStatus, read_status
from chomp.report.record import RunRecord
from chomp.storage import join, killed_holder, lock_holder
from chomp.tracking.run_files import FINISHED, STOPS

State = Literal["finished", "running", "stopped", "failed", "empty"]

# A run may compile, evaluate or save for as long without logging a line.
FRESH_S = 600.0


def run_state(record: RunRecord, *, now_s: float | None = None) -> State:
    """How the run stands at `now_s` (seconds since 1970; default: now).

    A process that is seen to run counts first: it may be an attempt that has not logged a line.
    Then what the last attempt said of its own end. One that said nothing is running while its lines
    are fresh and its process is not seen to be gone; else it was stopped from outside.
    """
    last = record.attempts[-1] if record.attempts else None
    outcome = None if last is None else last.outcome
    if _is_held(record.folder, but_own=outcome == FINISHED):
        return "running"
    if outcome is not None:
        ended: State = "stopped" if outcome in STOPS else "failed"
        return "finished" if outcome == FINISHED else ended
    now_s = time.time() if now_s is None else now_s
    if last is not None and now_s - last.last_time < FRESH_S and not is_killed(record.folder):
        return "running"
    status = _status(record.folder)
    if status is not None and status.state in ("SUCCESS", "FAILED"):
        return "finished" if status.state == "SUCCESS" else "failed"
    return "stopped" if record.columns.blocks else "empty"


def is_killed(folder: str) -> bool:
    """Whether a process of this machine held the run's lock and ended without letting go of it.

    False for one of another machine: not every shared filesystem shows its locks here.
    """
    try:
        holder = killed_holder(join(folder, LOCK))
    except StorageError:
        return False
    return holder is not None and holder.host == socket.gethostname()


def _status(folder: str) -> StepStatus | None:
    try:
        return read_status(folder)
    except StorageError:  # half-written, or of another version: its record still tells
        return None


def _is_held(folder: str, *, but_own: bool) -> bool:
    """Whether a process holds the run's lock.

    `but_own`: not this process, which holds the lock while it draws the page of the run that it has
    just finished.
    """
    try:
        holder = lock_holder(join(folder, LOCK))
    except StorageError:
        return False
    is_own = holder is not None and (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
    return holder is not None and not (but_own and is_own)
