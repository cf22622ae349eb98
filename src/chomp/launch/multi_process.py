"""A launch of several processes that train together, as member and as parent.

Member: one launch file, started in each process by SLURM, by hand or by `chomp launch local`.
Process 0 alone takes locks and runs ordinary steps while the others wait; a training step is run by
all. Parent: `chomp launch local` starts a command several times and prints what all of them say.
"""

# ruff: noqa: PLC0415
# `chomp.mesh` imports JAX, which a launch of one process must not have to wait for.

import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO, Any

from chomp.config import fingerprint
from chomp.errors import ChompError, LaunchError, require
from chomp.executor import PlannedStep, Runner
from chomp.executor.step import template_folder
from chomp.launch.console import print_stop
from chomp.launch.gang import (
    ADDRESS,
    ADDRESS_TAKEN,
    COUNT,
    INDEX,
    describe_exit_code,
    member_environment,
    run_gang,
)
from chomp.launch.process import PLATFORMS, VISIBLE, is_on_cpu, visible_gpus
from chomp.launch.signals import StopRequest, die_with_parent
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE, PREEMPTED_EXIT_CODE, Outcome
from chomp.storage.screen import outliving_the_screen

# Set by `srun`, but not for a batch script, which is one process of a job that may have many. What
# these and JAX's own variables mean is read by `chomp.mesh`.
_SLURM_COUNT, _SLURM_NODES = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"
_SLURM_INDEX = "SLURM_PROCID"
_POLL_S = 0.2
_TAKEN_FILE = "CHOMP_ADDRESS_TAKEN_FILE"  # of `chomp.mesh`, which imports JAX
_EXAMPLE = "write for example -- python experiments/grug/base/launch.py"
# The words of one launch must not be taken for those of the next in the same processes.
_launches = itertools.count()
_log = logging.getLogger(__name__)
_printing = threading.Lock()


# ---- A member ---------------------------------------------------------------------------------


def is_lead_process() -> bool:
    """Whether this process reports on a launch: alone, or the first of several. Asks no device."""
    return not _may_be_several() or (
        (os.environ.get(INDEX) or os.environ.get(_SLURM_INDEX) or "0") == "0"
    )


@contextmanager
def print_once() -> Iterator[None]:
    """What is printed inside comes out of one process of a launch; errors come out of all."""
    if is_lead_process():
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def run_together(planned: Sequence[PlannedStep], run: Callable[[Runner], int]) -> int | None:
    """Run a plan with the other processes of this launch; the exit code, None if it is alone.

    `run`, which runs the plan with a runner, is called in process 0 alone. A step is run by all if
    its `resources.processes` is their number; the last one also if it asks for no number and is a
    template's own function. Returns in all processes with the same code, or raises in those that
    have a reason of their own.
    """
    if not _are_several():
        return None
    import jax

    from chomp.mesh import leave_on_error

    # JAX catches SIGTERM to tell a training loop of it, and there is none here.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with leave_on_error():
        _require_same_plan(planned, jax.process_index(), jax.process_count())
        topic = f"launch-{next(_launches)}"
        if jax.process_index() == 0:
            return _lead(topic, planned, run, jax.process_count())
        return _follow(topic, planned)


def decide_once(name: str, decide: Callable[[], Any]) -> Any:
    """What process 0 of this launch decides (plain, as JSON has it), in all of its processes.

    `decide` is called in process 0 alone; if it raises, all processes do, with `name`.
    """
    if not _are_several():
        return decide()
    from chomp.mesh import broadcast, is_first, leave_on_error, raise_together

    with leave_on_error(), raise_together(name):
        found = decide() if is_first() else None
    return broadcast(name, found)


def _are_several() -> bool:
    """Whether this launch has several processes, which have joined each other then."""
    if not _may_be_several():
        return False
    from chomp.mesh import prepare_devices

    prepare_devices()  # all of it, and not only joining: what is set there must come before devices
    import jax

    return jax.process_count() > 1


def _may_be_several() -> bool:
    """Whether it is worth asking JAX, which takes the devices of this machine."""
    count = os.environ.get(COUNT)
    if count or os.environ.get(INDEX):
        return count != "1"  # an index alone is refused by `chomp.mesh`
    tasks = os.environ.get(_SLURM_COUNT, "")
    return tasks.isdigit() and int(tasks) > 1 and bool(os.environ.get(_SLURM_NODES))


def _require_same_plan(planned: Sequence[PlannedStep], own: int, count: int) -> None:
    """Raise `LaunchError` in all processes unless they are about to make the same thing."""
    from chomp.mesh import all_gather

    for item in planned:
        wanted = item.resources.processes
        if item.action != "skip" and wanted not in (1, count):
            raise LaunchError(
                f"step {item.step.name!r} with resources.processes={wanted}, in a launch "
                f"of {count} processes",
                allowed=f"steps of one process, or of all {count}",
                fix=f"start {wanted} processes, or run with --on process or --on ray from one",
            )
    last = planned[-1]
    plans = all_gather("plan", [last.title, last.path, fingerprint(dict(last.sources))])
    different = [index for index, plan in enumerate(plans) if plan != plans[0]]
    if different:
        shown = "\n".join(f"  process {index}: {plans[index]}" for index in [0, *different])
        raise LaunchError(
            f"process {own} found that the processes of this launch have different plans (step, "
            f"folder, source):\n{shown}\n",
            allowed="one launch file with the same arguments and environment in all of them",
            fix="start all of them alike, from the same source",
        )


def _lead(
    topic: str, planned: Sequence[PlannedStep], run: Callable[[Runner], int], count: int
) -> int:
    """Run the plan as process 0, which calls the others to the steps of all."""
    from chomp.mesh import leave_on_error, post

    posted = 0

    def run_step(item: PlannedStep) -> None:
        nonlocal posted
        # The library's own functions (tokens, tokenizers) run alone, wherever they stand.
        is_last = item.path == planned[-1].path and template_folder(item.step.fn) is not None
        if not is_last and item.resources.processes != count:
            item.step.fn(item.config)
            return
        posted += 1
        post(topic, {"number": posted, "path": item.path})
        with leave_on_error():  # the others are inside the step, and must not wait there
            item.step.fn(item.config)

    code = 1
    try:
        code = run(run_step)
    except BaseException as error:
        usual = INTERRUPTED_EXIT_CODE if isinstance(error, KeyboardInterrupt) else 1
        code = error.exit_code if isinstance(error, ChompError) else usual
        raise
    finally:
        post(topic, {"number": posted + 1, "code": code})
    return code


def _follow(topic: str, planned: Sequence[PlannedStep]) -> int:
    """Do what process 0 says until it says that the launch has ended; the exit code."""
    from chomp.mesh import read_posts

    last_read = 0
    while True:
        # However long that takes: if process 0 is lost, JAX ends those that wait for it. Asked
        # again and again and not awaited: inside JAX a process would not notice a signal.
        word: dict[str, Any] | None = read_posts(topic).get(0)
        if word is None or word["number"] <= last_read:
            time.sleep(_POLL_S)
            continue
        last_read = word["number"]
        if "code" in word:
            return int(word["code"])
        item = next((item for item in planned if item.path == word["path"]), None)
        if item is None:
            raise LaunchError(
                f"process 0 runs {word['path']}, which is not in the plan of this process",
                allowed="processes that see the same results under their prefix",
                fix="use a prefix that all of them share, and start all of them again",
            )
        item.step.fn(item.config)


# ---- The parent -------------------------------------------------------------------------------


def launch_locally(
    command: Sequence[str],
    *,
    processes: int,
    devices_per_process: int | None = None,
    restarts: int = 0,
) -> int:
    """Run `command` in several processes that know each other; the exit code.

    0 once all ended with it, else that of the one that failed first, as a shell gives it. If there
    are GPUs, each process gets as many of its own, by default an equal share of all; otherwise
    `devices_per_process` CPU devices, by default one.
    """
    words = _with_this_python(command)
    for name, value, least in (
        ("--processes", processes, 1),
        ("--devices-per-process", devices_per_process, 1),
        ("--restarts", restarts, 0),
    ):
        require(
            value is None or value >= least,
            f"{name} {value}",
            allowed=f"{least} or more",
            fix=f"give {name} such a number, or leave it out",
        )
    devices = _devices_of_each(processes, devices_per_process)
    with (
        outliving_the_screen(),
        StopRequest() as stop,
        tempfile.TemporaryDirectory(prefix="chomp-launch-") as folder,
    ):
        taken = {_TAKEN_FILE: str(Path(folder, "address-taken"))}
        end = run_gang(
            lambda index, given: _Command(words, index, {**given, **devices[index], **taken}),
            processes,
            restarts=restarts,
            stop=stop,
        )
    if end.code == 0:
        return 0
    # A process that was asked to stop and did so did not fail, whatever its exit code.
    if stop.signal is not None and end.is_lost:
        print_stop(
            f"{processes} process{'es' * (processes > 1)} ended. The same command continues."
        )
        return stop.interruption().exit_code
    if processes > 1:
        _log.warning("process %d of %d %s", end.member, processes, describe_exit_code(end.code))
    return end.code if end.code > 0 else 128 - end.code


class _Command:
    """One of the processes, whose lines are printed here; a `Member` of a gang."""

    def __init__(self, command: Sequence[str], index: int, given: Mapping[str, str]) -> None:
        self._given = given
        # Python holds lines back for a pipe, and tables take it for 80 columns wide.
        columns = max(shutil.get_terminal_size().columns - len("[0] "), 20)
        self._process = subprocess.Popen(
            die_with_parent(command),
            env=member_environment(given) | {"PYTHONUNBUFFERED": "1", "COLUMNS": str(columns)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C comes through this process, and once
        )
        self._printers = [
            threading.Thread(target=_print_lines, args=(source, target, index), daemon=True)
            for source, target in (
                (self._process.stdout, sys.stdout),
                (self._process.stderr, sys.stderr),
            )
        ]
        for printer in self._printers:
            printer.start()

    def poll(self) -> int | None:
        """Its exit code; None while it runs, or has said what is not printed yet."""
        code = self._process.poll()
        if code is not None:
            for printer in self._printers:
                # Not for ever: a grandchild that lives on may hold the pipe open.
                printer.join(timeout=2.0)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def outcome(self) -> Outcome | None:
        """What its exit code means: an error of its own, an agreed stop, or None for a signal."""
        code = self._process.returncode
        if code is None or code < 0:
            return None  # killed: that may happen to any process, and another try may help
        if code == 0:
            return Outcome()
        # Process 0 says so in a file, since any program may end with that exit code. The file is
        # of this try, and not of a launch inside the command, which inherits the variable.
        said = Path(self._given[_TAKEN_FILE])
        if said.exists() and said.read_text() == self._given.get(ADDRESS):
            return Outcome(kinds=(ADDRESS_TAKEN,), exit_code=code)
        is_stopped = code in (PREEMPTED_EXIT_CODE, INTERRUPTED_EXIT_CODE)
        return Outcome(kinds=("RunInterrupted" if is_stopped else "ChompError",), exit_code=code)


def _print_lines(source: IO[bytes], target: IO[str], index: int) -> None:
    """Print each line behind the number of its process."""
    with source:
        for line in source:
            text = line.decode("utf-8", "replace").rstrip("\n")
            with _printing:  # lines of two processes are not mixed
                target.write(f"[{index}] {text}\n")
                target.flush()


def _devices_of_each(processes: int, wanted: int | None) -> list[dict[str, str]]:
    """For each process the variables that say which devices it has."""
    gpus = [] if is_on_cpu() else visible_gpus()
    if not gpus:
        return [{} if wanted is None else {"JAX_NUM_CPU_DEVICES": str(wanted)}] * processes
    each = wanted or len(gpus) // processes
    require(
        0 < each * processes <= len(gpus),
        f"{processes} processes with {max(each, 1)} GPUs each, and this machine shows {len(gpus)}",
        allowed="no more than there are",
        fix=f"lower --processes or --devices-per-process, check {VISIBLE}, or set {PLATFORMS}=cpu",
    )
    return [{VISIBLE: ",".join(gpus[i * each : (i + 1) * each])} for i in range(processes)]


def _with_this_python(command: Sequence[str]) -> list[str]:
    """The command, where "python" is the one that runs this: another may not have chomp."""
    require(bool(command), "no command to start", allowed="a command after --", fix=_EXAMPLE)
    first, *rest = command
    if first in ("python", "python3"):
        words = [sys.executable, *rest]
    elif first == "chomp":
        words = [sys.executable, "-m", "chomp", *rest]
    else:
        words = [sys.executable, first, *rest] if first.endswith(".py") else [first, *rest]
    require(
        shutil.which(words[0]) is not None,
        f"{first}, which is not a command here",
        allowed="a program on the PATH, or a file that ends in .py",
        fix=_EXAMPLE,
    )
    return words
