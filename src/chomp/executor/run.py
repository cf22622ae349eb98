"""Running a plan: dependencies first, several steps at once if asked, failures kept to a branch.

How a step is run is up to the `runner`. Each step runs under the lock of its folder, and nothing is
written there without it. What another process is running is left for later.
"""

import dataclasses
import errno
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial

from chomp.errors import LaunchError, RunInterrupted, StorageError, require
from chomp.executor.plan import PlannedStep
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
from chomp.executor.step import function_name
from chomp.storage import (
    SET_ASIDE,
    FileLock,
    LockHolder,
    join,
    lock_holder,
    make_folder,
    remove_tree,
    rename_folder,
    sync_tree,
    write_text_atomic,
)
from chomp.storage.secrets import redacted

Runner = Callable[[PlannedStep], None]
OnWait = Callable[[PlannedStep, LockHolder | None], None]
# What a step needs of this machine, lent as long as the context lasts; entering it may take long.
Room = Callable[[PlannedStep], AbstractContextManager[None]]

# Two processes that move one folder aside can disturb each other once, not time and again.
_TRIES_FOR_A_FOLDER = 5


@dataclass(frozen=True)
class StepFailure:
    """A step that did not succeed, and why."""

    planned: PlannedStep
    error: BaseException | None  # None: a step it depends on failed


def run_plan(
    plan: list[PlannedStep],
    runner: Runner,
    *,
    max_concurrent: int = 1,
    room: Room | None = None,
    on_start: Callable[[PlannedStep], None] = lambda planned: None,
    on_wait: OnWait = lambda planned, holder: None,
    on_failure: Callable[[StepFailure], None] = lambda failure: None,
    ask_to_stop: Callable[[], None] = lambda: None,
) -> list[StepFailure]:
    """Run what the plan says to run, in order; the failures come back, the rest is done.

    A step that another process holds is waited for, without a limit: its lock is free as soon as
    that process ends. `on_wait` is called once, before that. An interruption ends the whole run.
    With `max_concurrent` above 1, steps that need not wait for each other run at the same time,
    each in a thread; `on_start` and `on_wait` are called there. After an interruption of one of
    them, `ask_to_stop` is called, and the interruption is raised when all have ended.
    `room` lends a step what it needs to run here, such as GPUs. It is entered by the step's thread
    before the lock is taken, and left after the step: a step that waits for room holds no lock, so
    another process may run it meanwhile. What entering raises is the step's failure.
    """
    require(
        max_concurrent >= 1,
        f"max_concurrent={max_concurrent}",
        allowed="1 or more",
        fix="give the number of steps that may run at the same time",
    )
    # By folder and not by step: a dependant may hold an equal step of its own.
    to_do = {planned.path: planned for planned in plan if planned.action != "skip"}
    run = _PlanRun(to_do, runner, room, on_start, on_wait, on_failure)
    if max_concurrent == 1:
        # In this thread: signal handlers, which a training run sets, belong to the main one.
        while (chosen := run.take()) is not None:
            run.settle(chosen[0], partial(run.run_step, *chosen))
        return run.failures
    running: dict[Future[BaseException | None], PlannedStep] = {}
    with ThreadPoolExecutor(max_concurrent, thread_name_prefix="step") as pool:
        try:
            while True:
                while len(running) < max_concurrent and (chosen := run.take()) is not None:
                    running[pool.submit(run.run_step, *chosen)] = chosen[0]
                if not running:
                    return run.failures
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    run.settle(running.pop(future), future.result)
        except BaseException:
            run.is_stopping.set()
            ask_to_stop()
            # Waited for: a step that is left alone would go on without its lock.
            for future, planned in running.items():
                with suppress(RunInterrupted, KeyboardInterrupt):
                    run.settle(planned, future.result)
            raise


class _StepHeld(Exception):
    """Another process runs the step, and this one should not wait for it any longer."""


@dataclass
class _PlanRun:
    """What of a plan is still to be done (for one thread), and its steps (for any thread)."""

    to_do: dict[str, PlannedStep]  # by folder
    runner: Runner
    room: Room | None
    on_start: Callable[[PlannedStep], None]
    on_wait: OnWait
    on_failure: Callable[[StepFailure], None]
    failures: list[StepFailure] = field(default_factory=list)
    is_stopping: threading.Event = field(default_factory=threading.Event)
    taken: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)  # by another process, at the last try

    def take(self) -> tuple[PlannedStep, bool] | None:
        """The next step that can be done, and whether to wait for it; None if there is none now.

        A step that another process held is waited for once nothing else can be done.
        """
        ready = [
            planned
            for planned in self.to_do.values()
            # What another process is running had its dependencies when it began.
            if (planned.action == "wait" or self.to_do.keys().isdisjoint(planned.dependencies))
            and planned.path not in self.taken
        ]
        if not ready:
            return None
        free = [planned for planned in ready if planned.path not in self.held]
        chosen = (free or ready)[0]
        self.taken.add(chosen.path)
        return chosen, not free

    def settle(self, planned: PlannedStep, ended: Callable[[], BaseException | None]) -> None:
        """Note how a step that was taken has ended: as `ended` says, which may raise."""
        try:
            error = ended()
        except _StepHeld:
            self.taken.remove(planned.path)
            self.held.add(planned.path)
            return
        # Time has passed: the processes that held other steps may be done with them.
        self.held.clear()
        del self.to_do[planned.path]
        if error is None:
            return
        self.failures.append(StepFailure(planned, error))
        self.on_failure(self.failures[-1])  # at once: an interruption may end what follows
        failed = {planned.path}
        # In the order of the plan, so that a step comes after those it depends on.
        for other in list(self.to_do.values()):
            because = [each for each in other.dependencies if each in failed]
            if because and other.action == "run":
                del self.to_do[other.path]
                failed.add(other.path)
                _record_failed_dependency(other, because[0])
                self.failures.append(StepFailure(other, None))
                self.on_failure(self.failures[-1])

    def run_step(self, planned: PlannedStep, is_patient: bool) -> BaseException | None:
        """Run the step unless it is done; the error that it ended with, if it did.

        If another process holds it, it is waited for if `is_patient`, else `_StepHeld` is raised.
        An interruption is raised, too.
        """
        try:
            if self.room is None:
                self._run_unless_done(planned, is_patient)
                return None
            # Before there is room, which others could use while this one waits for the lock.
            if is_patient:
                self._lock(planned, is_patient).release()
            elif lock_holder(join(planned.path, LOCK)) is not None:
                raise _StepHeld
            status = read_status(planned.path)
            if not _is_done(planned, status) or _is_in_the_way(planned, status):
                with self.room(planned):
                    self._require_going_on()
                    self._run_unless_done(planned, is_patient=False)
            return None
        except (RunInterrupted, _StepHeld):
            raise
        # A step that calls sys.exit has not done its work, and must not end the others'.
        except (Exception, SystemExit) as error:
            return error

    def _run_unless_done(self, planned: PlannedStep, is_patient: bool) -> None:
        while True:
            with self._lock(planned, is_patient):
                status = read_status(planned.path)
                if _is_in_the_way(planned, status):
                    # An earlier result; nothing is deleted. By a time and not by a counted number,
                    # which two processes could both arrive at.
                    aside = f"{planned.path}{SET_ASIDE}{time.time_ns()}"
                    rename_folder(planned.path, aside)
                    remove_tree(join(aside, LOCK))
                    continue  # the lock went with the folder; the new one needs a new one
                # Another process may have finished it since the plan was made.
                if not _is_done(planned, status):
                    _require_needs(planned)
                    self.on_start(planned)
                    self._run_locked(planned, status)
                return

    def _require_going_on(self) -> None:
        """Raise `_StepHeld` once the run is to end: what waited until now must not begin."""
        if self.is_stopping.is_set():
            raise _StepHeld

    def _lock(self, planned: PlannedStep, is_patient: bool) -> FileLock:
        """The lock on the step's folder, which is made if need be."""
        path = join(planned.path, LOCK)
        has_reported = False

        def report_once(holder: LockHolder | None, waited_s: float) -> None:
            nonlocal has_reported
            self._require_going_on()
            if not has_reported:
                has_reported = True
                self.on_wait(planned, holder)

        for tries_left in reversed(range(_TRIES_FOR_A_FOLDER)):
            try:
                make_folder(planned.path)
                if is_patient:
                    return FileLock.acquire(path, timeout_s=None, on_wait=report_once)
                lock = FileLock.try_acquire(path)
                if lock is None:
                    raise _StepHeld
                return lock
            except StorageError as error:
                # Another process has just moved the folder aside: it was found when it was to be
                # made, and then was not there; or it went while this one waited for its lock.
                if error.errno not in (errno.ENOENT, errno.EEXIST) or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _run_locked(self, planned: PlannedStep, earlier: StepStatus | None) -> None:
        status = started_status(earlier, planned.identity.hash)
        try:
            write_status(planned.path, status)
            # A result that was begun with other source stays one: else `--strict` would accept it.
            begun = read_info(planned.path) if earlier is not None else None
            info = StepInfo(
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
            write_info(planned.path, info)
            self.runner(planned)
            # After a power cut, a status that outlived the outputs it speaks of would lie.
            sync_tree(planned.path)
        except (RunInterrupted, KeyboardInterrupt) as stop:
            _record_end(planned, status, "INTERRUPTED", stop)
            raise
        except BaseException as error:
            _record_end(planned, status, "FAILED", error)
            raise
        done = dataclasses.replace(status, state="SUCCESS", finished=time.time())
        write_status(planned.path, done)


def _record_failed_dependency(planned: PlannedStep, dependency: str) -> None:
    """Record in the step's folder that it was not run, since `dependency` failed."""
    # A folder that cannot be written is no other failure: that of the dependency is reported.
    with suppress(StorageError):
        make_folder(planned.path)
        lock = FileLock.try_acquire(join(planned.path, LOCK))
        if lock is None:
            return  # another process runs it, and will record itself how that ends
        with lock:
            earlier = read_status(planned.path)
            is_other = earlier is not None and earlier.identity != planned.identity.hash
            if earlier is not None and (is_other or earlier.state == "SUCCESS"):
                return  # a result that was to be replaced stays as it is
            begun = started_status(earlier, planned.identity.hash)
            status = dataclasses.replace(
                begun,
                state="DEP_FAILED",
                attempt=begun.attempt - 1,  # nothing was tried
                finished=begun.started,
                error=f"{dependency} failed",
            )
            write_status(planned.path, status)


def _require_needs(planned: PlannedStep) -> None:
    """Raise `LaunchError` if a step that another process released lacks what it is made from.

    Its dependencies were not planned: the process that held it was taken to have them.
    """
    for path in planned.dependencies if planned.action == "wait" else ():
        status = read_status(path)
        if status is None or status.state != "SUCCESS":
            raise LaunchError(
                f"{planned.title} was released by another process, and {path}, which it needs, "
                "is not there",
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


def _record_end(
    planned: PlannedStep, status: StepStatus, state: StepState, error: BaseException
) -> None:
    """Record how a step ended early; trouble with that becomes a note on the error itself."""
    text = f"{type(error).__name__}: {error}" if state == "FAILED" else str(error) or "interrupted"
    ended = dataclasses.replace(status, state=state, finished=time.time(), error=text)
    try:
        # The status first: on a disk that is nearly full it is the one that matters.
        write_status(planned.path, ended)
        if state == "FAILED":
            trace = "".join(traceback.format_exception(error))
            write_text_atomic(join(planned.path, ERROR), redacted(trace))
    except StorageError as trouble:
        error.add_note(f"This end is not recorded in the step's folder: {trouble}")
