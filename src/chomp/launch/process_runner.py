"""Steps in processes of their own on this machine: `--on process`.

A step that crashes takes nothing else with it, steps can run at the same time, and one whose
`resources` say so is a gang of processes that train together. All that can be known before is
checked before the first step begins.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Resources
from chomp.launch.gang import member_environment, run_gang
from chomp.launch.step_end import raise_end, resources_of, tell_restart_of
from chomp.launch.step_logs import opened_log
from chomp.launch.step_member import StepMember
from chomp.launch.step_payload import payload_of
from chomp.launch.stop_wish import StopWish
from chomp.launch.telling import tell_gpu_wait
from chomp.launch.visible_gpus import VISIBLE, GpuPool, hidden_gpus, is_on_cpu, visible_gpus


class ProcessRunner:
    """Runs steps in other processes; may be called from several threads at once.

    A context of the main thread: while it is entered, Ctrl-C and SIGTERM are handed on to the
    processes, which save and end; the calls then raise `RunInterrupted`.
    """

    def __init__(self, plan: Sequence[PlannedStep]) -> None:
        to_do = [item for item in plan if item.action != "skip"]
        self._gpus = GpuPool(visible_gpus() if to_do else [])
        for item in to_do:
            _require_possible(item, self._gpus.size)
        # All of them now: a step that cannot be sent is found before the first has begun.
        self._payloads = {item.path: payload_of(item) for item in to_do}
        self._stop = StopWish()
        self._lent: dict[str, list[str]] = {}  # GPUs of those steps that have room, by folder

    def __call__(self, planned: PlannedStep) -> None:
        """Run one step of the plan; returns when it is done, raises what it raised.

        It has its GPUs from `room`, if that was entered, else waits for them here.
        """
        if planned.path in self._lent:
            self._run(planned, self._lent[planned.path])
        else:
            with self._gpus_for(planned) as gpus:
                self._run(planned, gpus)

    @contextmanager
    def room(self, planned: PlannedStep) -> Iterator[None]:
        """While it is entered, the step has the GPUs that it asks for; waits until there are so.

        Raises once all are to stop.
        """
        with self._gpus_for(planned) as gpus:
            self._lent[planned.path] = gpus
            try:
                yield
            finally:
                del self._lent[planned.path]

    def ask_to_stop(self) -> None:
        """Let all steps that run now save and end, and no other begin."""
        self._stop.ask()
        self._gpus.look_again()

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

    def _run(self, planned: PlannedStep, gpus: Sequence[str]) -> None:
        wanted = resources_of(planned)
        count, each = wanted.processes, gpus_each(wanted, self._gpus.size)
        self._stop.raise_if_made()  # only now: room may have been long in coming
        with ExitStack() as opened:

            def start(index: int, given: Mapping[str, str]) -> StepMember:
                own = gpus[index * each : (index + 1) * each]
                environment = member_environment({**given, **self._shown(wanted, own)})
                log = opened.enter_context(opened_log(planned, index, count))
                payload = self._payloads[planned.path]
                member = StepMember(payload, environment=environment, log=log)
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

    def _gpus_for(self, planned: PlannedStep) -> AbstractContextManager[list[str]]:
        """GPUs that the step has as long as the context lasts; waits while it is still wanted."""
        wanted = resources_of(planned)
        count = wanted.processes * gpus_each(wanted, self._gpus.size)
        return self._gpus.lent(
            count, partial(tell_gpu_wait, planned, count), self._stop.raise_if_made
        )

    def _shown(self, wanted: Resources, own: Sequence[str]) -> dict[str, str]:
        """Variables that show a process its own GPUs; none where it may have whatever there is."""
        if wanted.gpus is None:
            return {}
        if own:
            return {VISIBLE: ",".join(own)}
        return hidden_gpus(os.environ, has_gpus=self._gpus.size > 0)


def process_runner(plan: Sequence[PlannedStep]) -> ProcessRunner:
    """A runner for the steps of `plan`.

    Raises `LaunchError` for a step that cannot be sent to another process, or that asks for more
    than this machine has. To be made in the main thread.
    """
    return ProcessRunner(plan)


def gpus_each(wanted: Resources, shown: int) -> int:
    """How many GPUs a process of a step takes for itself, on a machine that shows so many.

    Who says nothing takes all: two that train on one GPU would run out of its memory.
    """
    if wanted.gpus is None:
        return 0 if is_on_cpu() else shown
    return wanted.gpus


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
    if wanted.gpus is None and wanted.processes > 1 and gpus_each(wanted, gpus):
        share = gpus // wanted.processes
        raise LaunchError(
            f"step {planned.step.name!r} is of {wanted.processes} processes and says "
            f"nothing of GPUs, and this machine shows {gpus}",
            allowed="processes that are told how many GPUs each of them gets",
            fix=(f"set resources.gpus={share}, or " if share else "lower resources.processes, or ")
            + "resources.gpus=0 for CPUs alone",
        )
    if wanted.processes * (wanted.gpus or 0) > gpus:
        each = f" in each of {wanted.processes} processes" if wanted.processes > 1 else ""
        raise LaunchError(
            f"step {planned.step.name!r} asks for {wanted.gpus} GPUs{each}, and this "
            f"machine shows {gpus}",
            allowed="no more than there are",
            fix=f"lower resources.gpus or resources.processes, check {VISIBLE}, or run it on "
            "a cluster with --on ray",
        )
    if wanted.custom:
        raise LaunchError(
            f"step {planned.step.name!r} asks for {', '.join(wanted.custom)}",
            allowed="CPUs and GPUs, which is what processes of one machine can be given",
            fix="run it with --on ray on a cluster that has them, or leave them out",
        )
    # Not a limit: what is asked for in vain is refused, what is used beyond it is not.
    memory_gb = machine_memory_gb()
    if wanted.memory_gb is not None and wanted.processes * wanted.memory_gb > memory_gb:
        raise LaunchError(
            f"step {planned.step.name!r} asks for {wanted.memory_gb:g} GB in each of "
            f"{wanted.processes} processes, and this machine has {memory_gb:.1f}",
            allowed="no more than there is",
            fix="lower resources.memory_gb, or run it on a cluster with --on ray",
        )
