"""Steps in processes of their own on this machine: `--on process`.

A step that crashes takes nothing else with it, steps can run at the same time, and one whose
`resources` say so is a gang of processes that train together. All that can be known before is
checked before the first step begins.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType

from chomp.errors import LaunchError, message
from chomp.executor import PlannedStep
from chomp.launch.gang import member_environment, run_gang
from chomp.launch.step_end import raise_end, resources_of, tell_restart_of
from chomp.launch.step_logs import opened_log
from chomp.launch.step_member import StepMember
from chomp.launch.step_payload import payload_of
from chomp.launch.stop_wish import StopWish
from chomp.launch.visible_gpus import VISIBLE, GpuPool, visible_gpus


class ProcessRunner:
    """Runs steps in other processes; may be called from several threads at once.

    A context of the main thread: while it is entered, Ctrl-C and SIGTERM are handed on to the
    processes, which save and end; the calls then raise `RunInterrupted`.
    """

    def __init__(self, plan: Sequence[PlannedStep], max_concurrent: int) -> None:
        to_do = [item for item in plan if item.action != "skip"]
        names = visible_gpus() if any(resources_of(item).gpus for item in to_do) else []
        for item in to_do:
            _require_possible(item, len(names))
        # All of them now: a step that cannot be sent is found before the first has begun.
        self._payloads = {item.path: payload_of(item) for item in to_do}
        self._room = threading.BoundedSemaphore(max_concurrent)
        self._gpus = GpuPool(names)
        self._stop = StopWish()

    def __call__(self, planned: PlannedStep) -> None:
        """Run one step of the plan; returns when it is done, raises what it raised."""
        wanted = resources_of(planned)
        count = wanted.processes
        with (
            self._room,
            self._gpus.lent(count * wanted.gpus) as gpus,
            ExitStack() as opened,
        ):
            self._stop.raise_if_made()  # only now: GPUs may have been long in coming

            def start(index: int, given: Mapping[str, str]) -> StepMember:
                own = gpus[index * wanted.gpus : (index + 1) * wanted.gpus]
                given = {**given, VISIBLE: ",".join(own)} if own else given
                log = opened.enter_context(opened_log(planned, index, count))
                environment = member_environment(given)
                member = StepMember(self._payloads[planned.path], environment=environment, log=log)
                opened.callback(member.close)
                return member

            end = run_gang(
                start,
                count,
                # One process that was killed here, for want of memory say, would be again.
                restarts=wanted.restarts if count > 1 else 0,
                stop=self._stop,
                on_restart=partial(tell_restart_of, planned),
            )
        raise_end(planned, end, self._stop)

    def ask_to_stop(self) -> None:
        """Let all steps that run now save and end, and no other begin."""
        self._stop.ask()

    def __enter__(self) -> "ProcessRunner":
        self._stop.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.__exit__(kind, error, trace)


def process_runner(plan: Sequence[PlannedStep], *, max_concurrent: int) -> ProcessRunner:
    """A runner for the steps of `plan`, of which up to `max_concurrent` run at the same time.

    Raises `LaunchError` for a step that cannot be sent to another process, or that asks for more
    than this machine has. To be made in the main thread.
    """
    return ProcessRunner(plan, max_concurrent)


def usual_concurrency(plan: Sequence[PlannedStep]) -> int:
    """How many steps of a plan this machine's cores can take at once; at least one."""
    # Not of the machine, but those that this process was given: a container may have few.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = [resources_of(item) for item in plan if item.action != "skip"]
    most = max((each.processes * each.cpus for each in wanted), default=1.0)
    return max(1, int((cores or 1) / max(most, 1.0)))


def machine_memory_gb() -> float:
    """All of this machine's memory, in GB of 10^9 bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _require_possible(planned: PlannedStep, gpus: int) -> None:
    wanted = resources_of(planned)
    if wanted.processes * wanted.gpus > gpus:
        each = f" in each of {wanted.processes} processes" if wanted.processes > 1 else ""
        raise LaunchError(
            message(
                given=f"step {planned.step.name!r} asks for {wanted.gpus} GPUs{each}, and this "
                f"machine shows {gpus}",
                allowed="no more than there are",
                fix=f"lower resources.gpus or resources.processes, check {VISIBLE}, or run it on "
                "a cluster with --on ray",
            )
        )
    if wanted.custom:
        raise LaunchError(
            message(
                given=f"step {planned.step.name!r} asks for {', '.join(wanted.custom)}",
                allowed="CPUs and GPUs, which is what processes of one machine can be given",
                fix="run it with --on ray on a cluster that has them, or leave them out",
            )
        )
    # Not a limit: what is asked for in vain is refused, what is used beyond it is not.
    memory_gb = machine_memory_gb()
    if wanted.memory_gb is not None and wanted.processes * wanted.memory_gb > memory_gb:
        raise LaunchError(
            message(
                given=f"step {planned.step.name!r} asks for {wanted.memory_gb:g} GB in each of "
                f"{wanted.processes} processes, and this machine has {memory_gb:.1f}",
                allowed="no more than there is",
                fix="lower resources.memory_gb, or run it on a cluster with --on ray",
            )
        )
    if planned.path.startswith("memory://"):
        raise LaunchError(
            message(
                given=f"step {planned.step.name!r} with the output folder {planned.path}",
                allowed="a folder that other processes see",
                fix="choose another --prefix, or run with --on local",
            )
        )
