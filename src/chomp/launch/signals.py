"""Ctrl-C, SIGTERM and the death of a parent, for commands that start other processes.

`StopRequest` counts signals; whoever watches processes passes them on. Only the main thread can set
handlers, while several threads may watch.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from chomp.errors import RunInterrupted, require
from chomp.launch.console import print_restart
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE, PREEMPTED_EXIT_CODE

OPTION = "--restarts"
_PATIENCE = b"Asked to stop: waiting for the processes to save. A third signal kills them.\n"
_EXIT_CODES = {signal.SIGINT: INTERRUPTED_EXIT_CODE, signal.SIGTERM: PREEMPTED_EXIT_CODE}
_POLL_S = 0.05
# Killed and not asked: by then another process may hold the lock of what it works on. Linux only
# (1 is PR_SET_PDEATHSIG); elsewhere a process whose parent was killed goes on alone.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit()  # it ended before the kernel was told
os.execvp(sys.argv[2], sys.argv[2:])
"""


class StopRequest:
    """While entered (by the main thread), SIGINT and SIGTERM are counted for those that watch.

    Without a watcher they raise `RunInterrupted` there and then.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None  # the first that came
        self.times = 0
        self._watchers = 0
        self._counting = threading.Lock()
        self._earlier: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _EXIT_CODES:
                # None: a handler set outside of Python, which Python cannot put back.
                self._earlier[number] = signal.signal(number, self._note) or signal.SIG_DFL
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While it is entered, somebody checks `times` and passes signals on. From any thread."""
        with self._counting:
            self._watchers += 1
        try:
            yield
        finally:
            with self._counting:
                self._watchers -= 1

    def ask(self) -> None:
        """Request a stop without a signal, unless there was one: a second would mean: at once."""
        if self.signal is None:
            self.signal, self.times = signal.SIGTERM, 1

    def raise_if_requested(self) -> None:
        """Raise the exception that ends the command, if it was asked to stop."""
        if self.signal is not None:
            raise self.interruption()

    def interruption(self, saved: str = "The same command continues.") -> RunInterrupted:
        """The exception that ends the command. `saved` is what the processes said about it."""
        assert self.signal is not None, "only a command that was asked to stop is interrupted"
        # Named by the signal that came here: the processes get SIGTERM, whatever it was.
        return RunInterrupted(f"{self.signal.name}: {saved}", exit_code=_EXIT_CODES[self.signal])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)
        self.times += 1
        if self._watchers == 0:
            raise self.interruption()
        if self.times == 1:
            # Not through Python's streams: the signal may have come in the middle of a write.
            os.write(2, _PATIENCE)


def die_with_parent(command: Sequence[str]) -> list[str]:
    """The words that run `command` and end it with this process, however that ends.

    To be started from a thread that lives as long as the command: the kernel watches the thread.
    """
    # Isolated and without site-packages: that takes 20 ms. The command runs as it always does.
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


def run_with_restarts(command: Sequence[str], restarts: int) -> int:
    """Run `command` as a process, and again while it ends with 75, at most `restarts` times.

    Returns the exit code of the last one, as a shell would. Only from the main thread. A signal to
    this process is passed on, and ends both.
    """
    received: list[int] = []
    early: list[int] = []  # of these, what came while no process was running
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if running:
            running[0].send_signal(number)
        else:
            early.append(number)

    earlier = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        for attempt in range(restarts + 1):
            running.append(subprocess.Popen(command))
            # From here on the handler does this. Each signal once: a second one means at once.
            for number in early:
                running[0].send_signal(number)
            # Polled: Python would handle a signal that comes just before `wait` blocks only once
            # the process has ended.
            while running[0].poll() is None:
                time.sleep(_POLL_S)
            code = running.pop().returncode
            if code != PREEMPTED_EXIT_CODE or received or attempt == restarts:
                break
            print_restart(attempt + 1, restarts)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code  # ended by a signal


def this_command(*start: str) -> list[str]:
    """The command line of this process without the option, behind the words that start it."""
    words, kept = iter(sys.argv[1:]), []
    for word in words:
        if word == OPTION:
            next(words, None)
        elif not word.startswith(f"{OPTION}="):
            kept.append(word)
    return [sys.executable, *start, *kept]


def require_restartable(restarts: int, force: Sequence[str]) -> None:
    """Raise `ConfigError` for a negative number of restarts, or for ones that would lose work."""
    require(
        restarts >= 0,
        f"{OPTION} {restarts}",
        allowed="0 or more",
        fix=f"leave out {OPTION}, or say how often a preempted run may be started again",
    )
    require(
        restarts == 0 or not force,
        f"{OPTION} {restarts} with --force",
        allowed="one of them: forced again at a restart, the run would lose what it had saved",
        fix=f"run it once with --force, then with {OPTION} alone",
    )
