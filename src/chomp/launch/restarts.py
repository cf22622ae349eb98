"""A command that is started again when it was preempted: it says so by exit code 75.

Preempted is one process, by whoever lends the machine. The one that starts it again is another,
which does nothing else; a signal to that one is handed on, and ends both.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from chomp.errors import require
from chomp.launch.outcome import PREEMPTED_EXIT_CODE
from chomp.launch.telling import tell_restart

OPTION = "--restarts"


def restarted(command: Sequence[str], restarts: int) -> int:
    """Run `command` as a process, and again while it ends with 75, at most `restarts` times.

    Gives the exit code of the last one, as a shell would. Only from the main thread.
    """
    asked: list[int] = []
    early: list[int] = []  # of these, what came while no process could be told
    running: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if running:
            running[0].send_signal(number)
        else:
            early.append(number)

    earlier = {n: signal.signal(n, hand_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        for attempt in range(restarts + 1):
            running.append(subprocess.Popen(command))
            # From here on the handler tells it; each signal once, as a second one means at once.
            for number in early:
                running[0].send_signal(number)
            code = running[0].wait()
            running.clear()
            if code != PREEMPTED_EXIT_CODE or asked or attempt == restarts:
                break
            tell_restart(attempt + 1, restarts)
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
    """Raise `ConfigError` for a number of restarts that cannot be, or one that would lose work."""
    require(
        restarts >= 0,
        f"{OPTION} {restarts}",
        allowed="0 or more",
        fix=f"leave out {OPTION}, or give the times that a preempted run may be started again",
    )
    require(
        restarts == 0 or not force,
        f"{OPTION} {restarts} with --force",
        allowed="one of them: forced once more, the run would lose what it had saved",
        fix=f"run it once with --force, then with {OPTION} and without",
    )
