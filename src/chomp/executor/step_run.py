"""One step of a plan, run under its lease: what its folder says before, while and after.

Nothing is written to a step's folder by a process that does not hold its lease.
"""

import dataclasses
import errno
import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from chomp.errors import LaunchError, RunInterrupted, StorageError
from chomp.executor.lost_lease import Abandon, LostLease, abandoned_at_loss, lost_lease
from chomp.executor.planned import PlannedStep
from chomp.executor.source import function_name
from chomp.executor.status import (
    ERROR,
    LOCK,
    StepInfo,
    StepState,
    StepStatus,
    read_info,
    read_status,
    started_status,
    write_info,
    write_status,
)
from chomp.storage import (
    SET_ASIDE,
    Lease,
    LeaseHolder,
    is_local,
    join,
    make_folder,
    remove_tree,
    rename_folder,
    sync_tree,
    write_text_atomic,
)
from chomp.storage.secrets import redacted

Runner = Callable[[PlannedStep], None]
OnStart = Callable[[PlannedStep], None]
OnWait = Callable[[PlannedStep, LeaseHolder], None]
# What a step needs of this machine, lent as long as the context lasts; entering it may take long.
Room = Callable[[PlannedStep], AbstractContextManager[None]]

_log = logging.getLogger(__name__)
# Two processes that move one folder aside can get in each other's way once, not time and again.
_TRIES_FOR_A_FOLDER = 5


class StepHeld(Exception):
    """Another process is at the step, and it was not to be waited for any longer."""


@dataclass(frozen=True, kw_only=True)
class StepRunner:
    """Runs one step at a time, in any thread; whoever waits for a lease stops once told so."""

    runner: Runner
    room: Room | None
    abandon: Abandon
    on_start: OnStart
    on_wait: OnWait
    lock_timeout_s: float | None
    heartbeat_s: float
    is_stopping: threading.Event

    def run(self, planned: PlannedStep, is_patient: bool) -> BaseException | None:
        """Run the step unless it is done; the error that it ended with, if it did.

        What another process holds is waited for if `is_patient`, else `StepHeld` is raised, as it
        is for a step that another took over. An interruption is raised, too.
        """
        try:
            if self.room is None:
                self._run_unless_done(planned, is_patient)
            elif not self._is_settled(planned, is_patient):
                with self.room(planned):
                    self._require_going_on()
                    self._run_unless_done(planned, is_patient=False)
            return None
        except (RunInterrupted, StepHeld):
            raise
        except LostLease as error:
            if error.holder is None and not _is_done(planned, read_status(planned.path)):
                return error
            # Another makes it, or has: who needs it can have that one's.
            _log.warning("%s was taken over by another process: its result counts", planned.title)
            raise StepHeld from error
        # A step that calls sys.exit has not done its work, and must not end the others'.
        except (Exception, SystemExit) as error:
            return error

    def _is_settled(self, planned: PlannedStep, is_patient: bool) -> bool:
        """Whether the step needs no room, being done; else nobody else is at it, a moment ago.

        Asked before there is room, which others could use while this one only waits for a lease.
        """
        if is_patient:
            self._lease_on(planned, is_patient).release()
        elif Lease.live_holder(join(planned.path, LOCK)) is not None:
            raise StepHeld
        status = read_status(planned.path)
        return _is_done(planned, status) and not _is_in_the_way(planned, status)

    def _run_unless_done(self, planned: PlannedStep, is_patient: bool) -> None:
        while True:
            with self._lease_on(planned, is_patient) as lease:
                status = read_status(planned.path)
                if _is_in_the_way(planned, status):
                    _move_aside(planned.path)
                    continue  # the lease went with the folder; the new one needs a new one
                # Another process may have finished it since the plan was made.
                if not _is_done(planned, status):
                    _require_needs(planned)
                    self.on_start(planned)
                    self._run_held(planned, lease, status)
                return

    def _require_going_on(self) -> None:
        """Raise `StepHeld` once the run is to end: what waited until now is not to begin."""
        if self.is_stopping.is_set():
            raise StepHeld

    def _lease_on(self, planned: PlannedStep, is_patient: bool) -> Lease:
        """The lease on the step's folder, which is made if need be."""
        for tries_left in reversed(range(_TRIES_FOR_A_FOLDER)):
            try:
                make_folder(planned.path)
                return self._awaited(planned) if is_patient else self._taken(planned)
            except StorageError as error:
                # Another process has just moved the folder aside: it was found when it was to be
                # made, and then was not there; or it went while its lock was waited for.
                if error.errno not in (errno.ENOENT, errno.EEXIST) or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _awaited(self, planned: PlannedStep) -> Lease:
        told = False

        def tell_once(holder: LeaseHolder, waited_s: float) -> None:
            nonlocal told
            self._require_going_on()
            if not told:
                self.on_wait(planned, holder)
            told = True

        return Lease.acquire(
            join(planned.path, LOCK),
            timeout_s=self.lock_timeout_s,
            on_wait=tell_once,
            heartbeat_s=self.heartbeat_s,
        )

    def _taken(self, planned: PlannedStep) -> Lease:
        lease = Lease.try_acquire(join(planned.path, LOCK), heartbeat_s=self.heartbeat_s)
        if lease is None:
            raise StepHeld
        return lease

    def _run_held(self, planned: PlannedStep, lease: Lease, earlier: StepStatus | None) -> None:
        status = started_status(earlier, planned.identity.hash)
        try:
            with abandoned_at_loss(planned, lease, self.abandon):
                write_status(planned.path, status)
                write_info(planned.path, _info(planned, status, earlier))
                self.runner(planned)
            if is_local(planned.path):
                # After a power cut, a status that outlived the outputs it speaks of would lie.
                sync_tree(planned.path)
            # The fence: whoever slept through the takeover of its lease must not say "done".
            if not lease.still_held():
                raise lost_lease(planned)
        except (RunInterrupted, KeyboardInterrupt) as stop:
            _record_end(planned, lease, status, "INTERRUPTED", stop)
            raise
        except BaseException as error:
            _record_end(planned, lease, status, "FAILED", error)
            raise
        done = dataclasses.replace(status, state="SUCCESS", finished=time.time())
        write_status(planned.path, done)


def note_failed_dependency(planned: PlannedStep, dependency: str) -> None:
    """Record in the step's folder that it was not run, since `dependency` failed."""
    try:
        make_folder(planned.path)
        lease = Lease.try_acquire(join(planned.path, LOCK))
        if lease is None:
            return  # another process is at it, and will say itself what becomes of it
        with lease:
            earlier = read_status(planned.path)
            is_other = earlier is not None and earlier.identity != planned.identity.hash
            if earlier is not None and (is_other or earlier.state == "SUCCESS"):
                return  # a result that was to be replaced stays what it is
            begun = started_status(earlier, planned.identity.hash)
            status = dataclasses.replace(
                begun,
                state="DEP_FAILED",
                attempt=begun.attempt - 1,  # nothing was tried
                finished=begun.started,
                error=f"{dependency} failed",
            )
            write_status(planned.path, status)
    except StorageError:
        pass  # the folder cannot be written; the dependency's own failure is reported


def _require_needs(planned: PlannedStep) -> None:
    """Raise `LaunchError` if a step that another process let go of lacks what it is made from.

    Who held it when the plan was made was taken to have its dependencies, so they were not planned.
    """
    if planned.action != "wait":
        return
    for path in planned.dependencies:
        status = read_status(path)
        if status is None or status.state != "SUCCESS":
            raise LaunchError(
                f"{planned.title} was let go of by another process, and {path}, which it "
                "needs, is not there",
                allowed="a step whose dependencies are done",
                fix="run the same command again: it plans them now",
            )


def _is_done(planned: PlannedStep, status: StepStatus | None) -> bool:
    # What is continued as another run is not done, however it ended as that one.
    this = planned.identity.hash
    return status is not None and status.identity == this and status.state == "SUCCESS"


def _is_in_the_way(planned: PlannedStep, status: StepStatus | None) -> bool:
    """Whether what the folder holds is neither the result nor something to continue."""
    if status is None:
        return False
    if status.identity != planned.identity.hash:
        return status.identity != planned.continues
    # A run that began after the plan was made is one more run, which is what `force` asked for.
    is_known = planned.found is not None and planned.found.started == status.started
    return planned.is_forced and is_known


def _move_aside(path: str) -> None:
    """Move an earlier result out of the way; nothing is deleted."""
    # A time and not a number counted up, which two processes could both arrive at.
    aside = f"{path}{SET_ASIDE}{time.time_ns()}"
    rename_folder(path, aside)
    remove_tree(join(aside, LOCK))


def _record_end(
    planned: PlannedStep, lease: Lease, status: StepStatus, state: StepState, error: BaseException
) -> None:
    """Record how a step ended early; trouble with that becomes a note on the error itself."""
    text = f"{type(error).__name__}: {error}" if state == "FAILED" else str(error) or "interrupted"
    ended = dataclasses.replace(status, state=state, finished=time.time(), error=text)
    try:
        if not lease.still_held():
            return  # the folder is another process's by now
        # The status first: on a disk that is nearly full it is the one that matters.
        write_status(planned.path, ended)
        if state == "FAILED":
            trace = "".join(traceback.format_exception(error))
            write_text_atomic(join(planned.path, ERROR), redacted(trace))
    except StorageError as trouble:
        error.add_note(f"This end is not recorded in the step's folder: {trouble}")


def _info(planned: PlannedStep, status: StepStatus, earlier: StepStatus | None) -> StepInfo:
    # A result that was begun with other source stays one: else `--strict` would pass it later.
    begun = read_info(planned.path) if earlier is not None else None
    return StepInfo(
        name=planned.step.name,
        identity=planned.identity.hash,
        values=planned.identity.values,
        fn=function_name(planned.step.fn),
        config=planned.plain_config,
        description=planned.step.description,
        dependencies=list(planned.dependencies),
        output_path=planned.path,
        sources=dict(planned.sources) if begun is None else begun.sources,
        started=status.started,
    )
