"""A command started several times on this machine, as one of the processes that train together.

What a cluster does over many machines, tried out on one: `chomp launch local --processes 2 -- ...`.
Each process is told of the others by JAX's variables; what it prints comes out here, marked with
its number. The first that fails ends the others.
"""

import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from chomp.errors import ConfigError, require
from chomp.launch.gang import ADDRESS, ADDRESS_TAKEN, GangEnd, member_environment, run_gang
from chomp.launch.outcome import INTERRUPTED_EXIT_CODE, PREEMPTED_EXIT_CODE, Outcome
from chomp.launch.step_end import told_code
from chomp.launch.stop_wish import StopWish
from chomp.launch.telling import tell_stop
from chomp.launch.tether import tethered
from chomp.launch.visible_gpus import PLATFORMS, VISIBLE, is_on_cpu, visible_gpus
from chomp.screen import outliving_the_screen

_log = logging.getLogger(__name__)
_printing = threading.Lock()
_TAKEN_FILE = "CHOMP_ADDRESS_TAKEN_FILE"  # of `chomp.mesh`, which imports JAX


def launched_locally(
    command: Sequence[str],
    *,
    processes: int,
    devices_per_process: int | None = None,
    restarts: int = 0,
) -> int:
    """Run `command` in several processes that are told of each other; the exit code.

    0 once all ended with it, else that of the one that failed first, as a shell gives it. Where
    there are GPUs, each process gets as many of its own, and all there are are shared out if
    nothing is said; else `devices_per_process` CPU devices, by default one.
    """
    _require_sensible(command, processes, devices_per_process, restarts)
    shares = _device_shares(processes, devices_per_process)
    words = _with_this_python(command)
    with (
        outliving_the_screen(),
        StopWish() as stop,
        tempfile.TemporaryDirectory(prefix="chomp-launch-") as folder,
    ):
        told = {_TAKEN_FILE: str(Path(folder, "address-taken"))}
        end = run_gang(
            lambda index, given: _Command(words, index, {**given, **shares[index], **told}),
            processes,
            restarts=restarts,
            stop=stop,
            on_restart=partial(_tell_restart, processes, restarts),
        )
        asked = stop.exit_code()
    if end.code == 0:
        return 0
    # Who was asked to stop and did so did not fail, whatever the code that it ended with.
    if asked is not None and end.is_lost:
        tell_stop(f"{processes} process{'es' * (processes > 1)} ended. The same command continues.")
        return asked
    if processes > 1:
        _log.warning("process %d of %d %s", end.member, processes, told_code(end.code))
    return end.code if end.code > 0 else 128 - end.code


class _Command:
    """One of the processes, whose lines are printed here; a `Member` of a gang."""

    def __init__(self, command: Sequence[str], index: int, given: Mapping[str, str]) -> None:
        self._given = given
        self._process = subprocess.Popen(
            tethered(command),
            env=member_environment(given) | _printing_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C comes through this process, and once
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        ways = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._printers = [
            threading.Thread(target=_print_marked, args=(source, target, index), daemon=True)
            for source, target in ways
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
        """Ask it to save and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def outcome(self) -> Outcome | None:
        """What its end tells: an error of its own, an agreed stop, or None for a signal."""
        code = self._process.returncode
        if code is None or code < 0:
            return None  # killed: that may happen to anybody, and may be tried again
        if code == 0:
            return Outcome()
        if self._is_address_taken():
            return Outcome(kinds=(ADDRESS_TAKEN,), exit_code=code)
        is_stopped = code in (PREEMPTED_EXIT_CODE, INTERRUPTED_EXIT_CODE)
        return Outcome(kinds=("RunInterrupted" if is_stopped else "ChompError",), exit_code=code)

    def _is_address_taken(self) -> bool:
        """Whether process 0 said so; not by its exit code, which any program may end with."""
        said = Path(self._given[_TAKEN_FILE])
        # Of this try, and not of a launch inside of the command, which inherits the variable.
        return said.exists() and said.read_text() == self._given.get(ADDRESS)


def _printing_environment() -> dict[str, str]:
    """Python keeps lines back for a pipe, and tables take it for 80 columns wide."""
    columns = shutil.get_terminal_size().columns - len("[0] ")
    return {"PYTHONUNBUFFERED": "1", "COLUMNS": str(max(columns, 20))}


def _print_marked(source: IO[bytes], target: IO[str], index: int) -> None:
    """Print each line behind the number of its process."""
    with source:
        for line in source:
            text = line.decode("utf-8", "replace").rstrip("\n")
            with _printing:  # a line is one process's, whole
                target.write(f"[{index}] {text}\n")
                target.flush()


def _device_shares(processes: int, wanted: int | None) -> list[dict[str, str]]:
    """What tells each process which devices are its own."""
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
    first, *rest = command
    if first in ("python", "python3"):
        return [sys.executable, *rest]
    if first == "chomp":
        return [sys.executable, "-m", "chomp", *rest]
    return [sys.executable, first, *rest] if first.endswith(".py") else [first, *rest]


def _require_sensible(
    command: Sequence[str], processes: int, devices: int | None, restarts: int
) -> None:
    if not command:
        raise ConfigError(
            "no command to start",
            allowed="a command after --",
            fix="write for example -- python experiments/grug/base/launch.py",
        )
    require(
        shutil.which(_with_this_python(command)[0]) is not None,
        f"{command[0]}, which is no command here",
        allowed="a program on the PATH, or a file that ends in .py",
        fix="write for example -- python experiments/grug/base/launch.py",
    )
    for name, value, least in (
        ("--processes", processes, 1),
        ("--devices-per-process", devices, 1),
        ("--restarts", restarts, 0),
    ):
        require(
            value is None or value >= least,
            f"{name} {value}",
            allowed=f"{least} or more",
            fix=f"give {name} such a number, or leave it out",
        )


def _tell_restart(processes: int, restarts: int, end: GangEnd) -> None:
    _log.warning(
        "process %d of %d %s; starting all of them again, %d of %d times",
        end.member,
        processes,
        told_code(end.code),
        end.restarts + 1,
        restarts,
    )
