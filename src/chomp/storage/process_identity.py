"""Which process this is, and whether another one is surely dead.

A process id alone says little: ids are used again, every container counts from 1, and two machines
can share a host name. So an identity also names the boot, the pid namespace and the moment the
process started. The invariant: `is_surely_dead` may say no about a dead process, never yes about a
live one.
"""

import os
import socket
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """One process, told apart from every other one, also after its id is used again."""

    host: str
    pid_space: str  # where process ids mean the same: boot and pid namespace; "" when unknown
    pid: int
    start_id: str  # the moment it started, in the kernel's ticks since boot; "" when unknown

    def is_surely_dead(self) -> bool:
        """Whether this process can be seen to have ended; False whenever that cannot be told."""
        if not self._is_here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            pass  # another user's process exists; an impossible number proves nothing
        state, start_id = _state_and_start(self.pid)
        # A zombie has ended; its parent only has not asked yet.
        return state in ("Z", "X") or bool(start_id and self.start_id and start_id != self.start_id)

    def is_surely_running(self) -> bool:
        """Whether this process can be seen to be there, and not to be stopped, as by Ctrl-Z."""
        if not self._is_here():
            return False
        state, start_id = _state_and_start(self.pid)
        is_this = bool(start_id) and start_id == self.start_id
        return is_this and state not in ("T", "Z", "X")

    def _is_here(self) -> bool:
        # Either alone could deceive: host names repeat, and a cloned machine keeps its boot.
        is_here = self.pid_space == _pid_space() and self.host == socket.gethostname()
        return is_here and bool(self.pid_space) and self.pid >= 1


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    return ProcessIdentity(
        host=socket.gethostname(),
        pid_space=_pid_space(),
        pid=os.getpid(),
        start_id=_state_and_start(os.getpid())[1],
    )


def _pid_space() -> str:
    # Without /proc (macOS) nothing is surely dead, and leases fall back on watching the heartbeat.
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _state_and_start(pid: int) -> tuple[str, str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return "", ""
    # The second field is the command in brackets, and may itself hold spaces and brackets.
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")
