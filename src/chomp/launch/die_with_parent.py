"""A command that ends when the process that started it does, however that ends.

Run as a file of its own and with the standard library alone, which takes 20 ms:
`python die_with_parent.py PARENT COMMAND...` tells the kernel, and then becomes the command. Linux
only; elsewhere a process whose parent was killed goes on alone.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


def die_with_parent(command: Sequence[str]) -> list[str]:
    """The words that run `command` and end it with this process.

    To be started from a thread that lives as long as the command: the kernel watches the thread.
    """
    # Isolated and without site-packages, for speed; the command itself runs as it always does.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _become(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        # Killed and not asked: by now another process may hold the lock of what it works on.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return  # it ended before the kernel was told
    os.execvp(command[0], command)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
