"""Steps in processes of their own on this machine: `--on process`.

A step that crashes takes nothing else with it, steps can run at the same time, and one whose
`resources` say so is a gang of processes that train together. All that can be checked is checked
before the first step begins.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Resources
from chomp.launch.console import print_gpu_wait
from chomp.launch.die_with_parent import die_with_parent
from chomp.launch.gang import log_restart, member_environment, raise_end, resources_of, run_gang
from chomp.launch.signals import StopRequest
from chomp.launch.step_process import pack_step
from chomp.launch.step_result import Outcome, open_log, read_outcome
from chomp.launch.visible_gpus import VISIBLE, GpuPool, hidden_gpus, is_on_cpu, visible_gpus

_MODULE = "chomp.launch.step_process"


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
        self._payloads = {item.path: pack_step(item) for item in to_do}
        self._stop = StopRequest()
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
        self._stop.raise_if_requested()  # only now: room may have been long in coming
        with ExitStack() as opened:

            def start(index: int, given: Mapping[str, str]) -> StepMember:
                own = gpus[index * each : (index + 1) * each]
                environment = member_environment({**given, **self._shown(wanted, own)})
                log = opened.enter_context(open_log(planned, index, count))
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
                on_restart=partial(log_restart, planned),
            )
        raise_end(planned, end, self._stop)

    def _gpus_for(self, planned: PlannedStep) -> AbstractContextManager[list[str]]:
        """GPUs that the step has as long as the context lasts; waits while it is still wanted."""
        wanted = resources_of(planned)
        count = wanted.processes * gpus_each(wanted, self._gpus.size)
        return self._gpus.lend(
            count, partial(print_gpu_wait, planned, count), self._stop.raise_if_requested
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


class StepMember:
    """A process that runs a step which was packed by `pack_step`; a `Member` of a gang.

    `environment` is its whole environment. It prints to `log`. It ends with this process, and
    Ctrl-C at the terminal does not reach it: whoever watches it hands that on. `close` it in the
    end.
    """

    def __init__(self, payload: bytes, *, environment: Mapping[str, str], log: BinaryIO) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chomp-step-")
        self._outcome = str(Path(self._folder.name, "outcome.json"))
        with tempfile.TemporaryFile() as sent:
            # As a file and not through a pipe, which the process might never empty.
            sent.write(payload)
            sent.seek(0)
            self._process = subprocess.Popen(
                die_with_parent([sys.executable, *_warning_flags(), "-m", _MODULE, self._outcome]),
                stdin=sent,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    @property
    def process_id(self) -> int:
        """Its id on this machine."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal that ended it; None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to save and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it now, and what it has started; does nothing to one that has ended."""
        if self._process.poll() is None:
            # Its group, which it leads: what it has started must not write any more either.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def outcome(self) -> Outcome | None:
        """How the step ended; None if its process could not say so any more."""
        return read_outcome(self._outcome)

    def close(self) -> None:
        """Take away what the process left behind. To be called once it has ended."""
        self._folder.cleanup()


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


def _warning_flags() -> list[str]:
    # What this process takes for an error is one there, too.
    return [flag for option in sys.warnoptions for flag in ("-W", option)]
