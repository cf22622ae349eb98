"""Running a plan: dependencies first, several steps at once if asked, failures kept to a branch.

How a step is run (in this process, in another, on a cluster) is the business of the `runner` that
is handed in. What another process is running is left for later as long as there is other work.
"""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from chomp.errors import RunInterrupted, require
from chomp.executor.lost_lease import Abandon, end_this_process
from chomp.executor.planned import PlannedStep
from chomp.executor.step_run import (
    OnStart,
    OnWait,
    Room,
    Runner,
    StepHeld,
    StepRunner,
    note_failed_dependency,
)


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
    on_start: OnStart = lambda planned: None,
    on_wait: OnWait = lambda planned, holder: None,
    on_failure: Callable[[StepFailure], None] = lambda failure: None,
    ask_to_stop: Callable[[], None] = lambda: None,
    abandon: Abandon | None = None,
    lock_timeout_s: float | None = None,
    heartbeat_s: float = 10.0,
) -> list[StepFailure]:
    """Run what the plan says to run, in order; the failures come back, the rest is done.

    A step held by another process is waited for, without a limit by default: a process that died
    is replaced. `on_wait` is told once, before that. An interruption ends the whole run.
    With `max_concurrent` above 1, steps that need not wait for each other run at the same time,
    each in a thread; `on_start` and `on_wait` are called there. An interruption of one of them is
    told to the others by `ask_to_stop`, and raised when they have ended.
    `room` lends a step what it needs to run here, such as GPUs. It is entered by the step's thread
    before the lease is asked for, and left after the step: who waits for room holds no lease, so
    another process may have the step meanwhile. What entering raises is the step's failure.
    A step whose lease another process took over must not write any more: `abandon` ends it at
    once, without saving, and must not raise. It is called by the lease's thread, once for a call of
    `runner` at most, from the moment of that call. The step is then waited for as any other that is
    held elsewhere, and run once more should the other process end without a result; it is a failure
    if its lock is gone and nobody has it. `abandon=None`: steps run inside this process, which
    cannot stop a function, and ends itself. A loss is noticed with the next heartbeat.
    """
    require(
        max_concurrent >= 1,
        f"max_concurrent={max_concurrent}",
        allowed="1 or more",
        fix="give the number of steps that may run at the same time",
    )
    agenda = _Agenda(plan, on_failure)
    steps = StepRunner(
        runner=runner,
        room=room,
        abandon=abandon or end_this_process,
        on_start=on_start,
        on_wait=on_wait,
        lock_timeout_s=lock_timeout_s,
        heartbeat_s=heartbeat_s,
        is_stopping=threading.Event(),
    )
    if max_concurrent == 1:
        # In this thread: signal handlers, which a training run sets, belong to the main one.
        while (chosen := agenda.take()) is not None:
            agenda.settle(chosen[0], partial(steps.run, *chosen))
    else:
        _run_at_once(agenda, steps, max_concurrent, ask_to_stop)
    return agenda.failures


class _Agenda:
    """What of a plan is still to be done, and what of it can be done now."""

    def __init__(self, plan: list[PlannedStep], on_failure: Callable[[StepFailure], None]) -> None:
        self.failures: list[StepFailure] = []
        self._on_failure = on_failure
        # By folder and not by step: a dependant may hold an equal step of its own.
        self._open = {planned.path: planned for planned in plan if planned.action != "skip"}
        self._taken: set[str] = set()
        self._held: set[str] = set()  # by another process, when they were last looked at

    def take(self) -> tuple[PlannedStep, bool] | None:
        """The next step that can be done, and whether to wait for it; None if there is none now.

        Waited for is what another process was found to hold, once nothing else can be done.
        """
        ready = [planned for planned in self._open.values() if self._is_ready(planned)]
        if not ready:
            return None
        free = [planned for planned in ready if planned.path not in self._held]
        chosen = (free or ready)[0]
        self._taken.add(chosen.path)
        return chosen, not free

    def settle(self, planned: PlannedStep, ended: Callable[[], BaseException | None]) -> None:
        """Note how a step that was taken has ended: as `ended` says, which may raise."""
        try:
            error = ended()
        except StepHeld:
            self._taken.remove(planned.path)
            self._held.add(planned.path)
            return
        # Time has passed: who held a step may be done with it.
        self._held.clear()
        del self._open[planned.path]
        if error is not None:
            self._note(StepFailure(planned, error))
            self._fail_dependants(planned.path)

    def _is_ready(self, planned: PlannedStep) -> bool:
        # What another process is running had its dependencies when it began.
        has_needs = planned.action == "wait" or self._open.keys().isdisjoint(planned.dependencies)
        return has_needs and planned.path not in self._taken

    def _fail_dependants(self, path: str) -> None:
        failed = {path}
        # In the order of the plan, so that those come later which need one of these.
        for planned in list(self._open.values()):
            because = [each for each in planned.dependencies if each in failed]
            if because and planned.action == "run":
                del self._open[planned.path]
                failed.add(planned.path)
                note_failed_dependency(planned, because[0])
                self._note(StepFailure(planned, None))

    def _note(self, failure: StepFailure) -> None:
        self.failures.append(failure)
        self._on_failure(failure)


def _run_at_once(
    agenda: _Agenda, steps: StepRunner, most: int, ask_to_stop: Callable[[], None]
) -> None:
    running: dict[Future[BaseException | None], PlannedStep] = {}
    with ThreadPoolExecutor(most, thread_name_prefix="step") as pool:
        try:
            while True:
                while len(running) < most and (chosen := agenda.take()) is not None:
                    running[pool.submit(steps.run, *chosen)] = chosen[0]
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    agenda.settle(running.pop(future), future.result)
        except BaseException:
            steps.is_stopping.set()
            ask_to_stop()
            # Waited for: a step that is left alone would go on without a lease.
            for future, planned in running.items():
                with suppress(RunInterrupted, KeyboardInterrupt):
                    agenda.settle(planned, future.result)
            raise
