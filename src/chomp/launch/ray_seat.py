"""What a step's process needs on a node of a cluster: somebody beside it, who starts and ends it.

A seat is a Ray actor that holds the resources of one process. The step does not run in the actor,
but in a process of its own, the same as anywhere else: JAX wants one that nobody has used, and a
crash there is an exit code here. If the actor is killed, or the driver that made it, so is the
process.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from chomp.errors import LaunchError
from chomp.executor.status import STATUS
from chomp.launch.free_port import free_port
from chomp.launch.gang import member_environment
from chomp.launch.outcome import Outcome, outcome_of
from chomp.launch.ray_connection import imported_ray
from chomp.launch.step_logs import appended_log
from chomp.launch.step_member import StepMember
from chomp.launch.visible_gpus import hidden_gpus, visible_gpus
from chomp.storage import exists, join

_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class SentProcess:
    """All that a seat has to know to run one process of a step. Plain data."""

    payload: bytes  # by `payload_of`
    environment: Mapping[str, str]  # over that of the node
    gpus: int  # of the node, which its seat was given
    folder: str  # the step's output
    working_folder: str  # of the driver, which relative paths in the config mean
    log: str
    log_header: str


class Seat:
    """One process of a step, on the node where this is. Methods are called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_asked = False
        self._is_killed = False
        self._member: StepMember | None = None

    def free_address(self) -> str:
        """This node's address in the cluster, with a port that nobody listens on now."""
        host = str(imported_ray().util.get_node_ip_address())
        # Not kept until it is used: JAX binds it itself, and a gang tries another if it is taken.
        return f"{f'[{host}]' if ':' in host else host}:{free_port(host)}"

    def run(self, sent: SentProcess) -> tuple[int, Outcome | None]:
        """Start the process and wait for its end: the exit code, and what it left behind."""
        try:
            _enter_folders(sent)
            with appended_log(sent.log, sent.log_header) as log:
                environment = member_environment(sent.environment)
                if not sent.gpus:
                    # Ray hides those of others, but none from a process that has asked for none.
                    # Last, since a driver with GPUs may have sent word to use one.
                    environment |= hidden_gpus(environment, has_gpus=bool(visible_gpus()))
                member = StepMember(sent.payload, environment=environment, log=log)
                # In this thread, which lives as long as the process: the kernel ties it to that.
                return self._until_ended(member)
        except Exception as error:
            return 1, outcome_of(error)

    def terminate(self) -> None:
        """Ask the process to save and end; one that comes later is asked as soon as it is there."""
        with self._lock:
            self._is_asked = True
            if self._member is not None:
                self._member.terminate()

    def kill(self) -> None:
        """End the process now, and what it has started; one that comes later ends at once."""
        with self._lock:
            self._is_killed = True
            if self._member is not None:
                self._member.kill()

    def _until_ended(self, member: StepMember) -> tuple[int, Outcome | None]:
        with self._lock:
            self._member = member
            if self._is_killed:
                member.kill()
            elif self._is_asked:
                member.terminate()
        try:
            while (code := member.poll()) is None:
                time.sleep(_POLL_S)
            return code, member.outcome()
        finally:
            with self._lock:
                self._member = None
            member.close()


def _enter_folders(sent: SentProcess) -> None:
    """Be where the driver is; `LaunchError` on a node that does not see what the driver sees."""
    try:
        os.chdir(sent.working_folder)  # of the actor, which has no other use for one
    except OSError as error:
        raise _not_shared(f"the folder {sent.working_folder}", "it to start from") from error
    # The driver wrote a status there a moment ago: who does not see it has another folder.
    if not exists(join(sent.folder, STATUS)):
        raise _not_shared(f"the output folder {sent.folder}", "--prefix")


def _not_shared(what: str, which: str) -> LaunchError:
    return LaunchError(
        f"{what} is not there on the node {socket.gethostname()}",
        allowed="folders that all nodes of the cluster see at the same place",
        fix=f"choose a shared folder or a bucket ({which}), or send the code along with "
        "python -m chomp.launch.ray_run",
    )
