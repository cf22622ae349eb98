"""The processes of a step on a Ray cluster: one actor for each, placed together or not at all.

An actor holds the resources of one process. The step does not run in the actor, but in a process of
its own, the same as anywhere else: JAX wants one that nobody has used, and a crash there is an exit
code here. If the actor is killed, or the driver that made it, so is the process.

Several actors are held by one placement group, so that two gangs which each got half of a cluster
do not wait for each other for ever.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chomp.errors import LaunchError
from chomp.executor.status import STATUS
from chomp.launch.gang import free_port, member_environment
from chomp.launch.process import StepMember
from chomp.launch.ray_connection import import_ray
from chomp.launch.signals import StopRequest
from chomp.launch.step_result import Outcome, append_log, outcome_of
from chomp.launch.visible_gpus import hidden_gpus, visible_gpus
from chomp.storage import exists, join

_log = logging.getLogger(__name__)
# One for the process, one for the word to end it, one for questions.
_THREADS = 3
_POLL_PROCESS_S = 0.05
_POLL_CLUSTER_S = 0.2
# After so long it is worth a word that the cluster is full.
_PATIENCE_S = 10.0
# A node that is lost while it gets its actor costs a try; a cluster that loses three has a problem.
_TRIES_FOR_AN_ADDRESS = 3
# The exit code of a process whose node is gone: nobody knows, and it does not go on.
_LOST_CODE = -9
# A node that can be reached has ended a process by then.
_KILL_S = 3.0


@dataclass(frozen=True, kw_only=True)
class SentProcess:
    """All that an actor has to know to run one process of a step. Plain data."""

    payload: bytes  # by `pack_step`
    environment: Mapping[str, str]  # over that of the node
    gpus: int  # of the node, which its actor was given
    folder: str  # the step's output
    working_folder: str  # of the driver, which relative paths in the config mean
    log: str
    log_header: str


class ProcessActor:
    """One process of a step, on the node where this is. Methods are called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_asked = False
        self._is_killed = False
        self._member: StepMember | None = None

    def free_address(self) -> str:
        """This node's address in the cluster, with a port that nobody listens on now."""
        host = str(import_ray().util.get_node_ip_address())
        # Not kept until it is used: JAX binds it itself, and a gang tries another if it is taken.
        return f"{f'[{host}]' if ':' in host else host}:{free_port(host)}"

    def run(self, sent: SentProcess) -> tuple[int, Outcome | None]:
        """Start the process and wait for its end: the exit code, and what it left behind."""
        try:
            _enter_folders(sent)
            with append_log(sent.log, sent.log_header) as log:
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
                time.sleep(_POLL_PROCESS_S)
            return code, member.outcome()
        finally:
            with self._lock:
                self._member = None
            member.close()


class RayMember:
    """A process of a step in its actor; a `Member` of a gang."""

    def __init__(self, actor: Any, sent: SentProcess) -> None:
        self._actor = actor
        self._is_placed = actor.free_address.remote()
        self._run = actor.run.remote(sent)
        self._end: tuple[int, Outcome | None] | None = None
        self._is_killed = False

    def poll(self) -> int | None:
        """Its exit code, below 0 for a signal that ended it or a node that is gone."""
        if self._end is None and _is_ready(self._run):
            self._end = _ended(self._run, is_expected=self._is_killed)
        return None if self._end is None else self._end[0]

    def terminate(self) -> None:
        """Ask it to save and end; one that waits for room on the cluster has nothing to save."""
        if _is_ready(self._is_placed):
            self._actor.terminate.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """End it now, with its actor."""
        self._is_killed = True
        if _is_ready(self._is_placed):
            # By its actor: an end of the actor takes the process along, but not what that started.
            _is_ready(self._actor.kill.remote(), timeout_s=_KILL_S)
        _free(self._actor)

    def outcome(self) -> Outcome | None:
        """How the step ended; None if nobody could say so any more."""
        return None if self._end is None else self._end[1]


class ActorGroup:
    """The actors of one step, taken anew for each try; to be freed in the end.

    Used by the one thread that waits for the step.
    """

    def __init__(
        self, title: str, demand: Mapping[str, float], count: int, stop: StopRequest
    ) -> None:
        self._title, self._demand, self._count, self._stop = title, demand, count, stop
        self._actors: list[Any] = []
        self._group: Any = None

    def new_address(self) -> str:
        """Take actors for all, free the earlier ones; host and port at the first of them."""
        lost = import_ray().exceptions.RayActorError
        for tries_left in reversed(range(_TRIES_FOR_AN_ADDRESS)):
            self._take()
            try:
                return str(self._awaited(self._actors[0].free_address.remote()))
            except lost as error:
                if error.actor_init_failed or not tries_left:
                    raise _no_actor(self._title, error) from error
        raise AssertionError("the last try returns or raises")

    def member(self, index: int, sent: SentProcess) -> RayMember:
        """The process that was sent, in the actor of that index."""
        if self._count == 1:
            self._take()  # nobody asked for an address
        return RayMember(self._actors[index], sent)

    def free(self) -> None:
        """Give all actors back to the cluster. What still runs in them is ended."""
        for actor in self._actors:
            _free(actor)
        self._actors = []
        if self._group is not None:
            import_ray().util.remove_placement_group(self._group)
            self._group = None

    def _take(self) -> None:
        self.free()
        options = [_options(self._demand)] * self._count
        if self._count > 1:
            options = self._reserved()
        for each in options:
            self._actors.append(import_ray().remote(ProcessActor).options(**each).remote())

    def _reserved(self) -> list[dict[str, Any]]:
        """Options of actors inside of a placement group that has room for all of them."""
        strategy = import_ray().util.scheduling_strategies.PlacementGroupSchedulingStrategy
        # On as few nodes as will do: they are to talk to each other.
        bundles = [dict(self._demand)] * self._count
        self._group = import_ray().util.placement_group(bundles, strategy="PACK")
        self._awaited(self._group.ready())
        return [
            _options(self._demand)
            | {"scheduling_strategy": strategy(self._group, placement_group_bundle_index=index)}
            for index in range(self._count)
        ]

    def _awaited(self, answer: Any) -> Any:
        """What the cluster answers, however long that takes, unless nobody wants it any more."""
        began, is_told = time.monotonic(), False
        while not _is_ready(answer, timeout_s=_POLL_CLUSTER_S):
            self._stop.raise_if_requested()
            if not is_told and time.monotonic() - began > _PATIENCE_S:
                _log.warning(
                    "%s waits for room on the cluster: %d x %s",
                    self._title,
                    self._count,
                    dict(self._demand),
                )
                is_told = True
        return import_ray().get(answer)


def _options(demand: Mapping[str, float]) -> dict[str, Any]:
    """A demand by Ray's names of resources, as options of an actor."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {
        # Not by Ray's own restarts: the others of a gang have to begin again, too.
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": _THREADS,
        "num_cpus": 0,
    }
    options |= {named[name]: amount for name, amount in demand.items() if name in named}
    return options | {
        "resources": {name: amount for name, amount in demand.items() if name not in named}
    }


def _is_ready(answer: Any, timeout_s: float = 0.0) -> bool:
    return bool(import_ray().wait([answer], timeout=timeout_s)[0])


def _ended(run: Any, *, is_expected: bool) -> tuple[int, Outcome | None]:
    ray = import_ray()
    try:
        code, outcome = ray.get(run)
        return code, outcome
    except ray.exceptions.RayActorError as error:
        if error.actor_init_failed:
            return 1, outcome_of(_no_actor("a step", error))
        if not is_expected:
            # With Ray's reason, which knows of nodes and of memory what no log of the step says.
            _log.warning("a process on the cluster is lost: %s", _first_lines(error))
        return _LOST_CODE, None
    except ray.exceptions.RayError as error:
        # There is no actor to be had: its environment, say, fails to be made.
        return 1, outcome_of(_no_actor("a step", error))


def _no_actor(who: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"{who} got no process on the cluster: {_first_lines(error)}",
        allowed="nodes that have chomp and what the step imports, of the driver's versions",
        fix="install the same environment on all nodes, or send it along: "
        "python -m chomp.launch.ray_run --extra ...",
    )


def _first_lines(error: Exception, most: int = 6) -> str:
    return " / ".join(line.strip() for line in str(error).splitlines()[:most] if line.strip())


def _free(actor: Any) -> None:
    import_ray().kill(actor, no_restart=True)


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
        fix=f"choose a shared folder ({which}), or send the code along with "
        "python -m chomp.launch.ray_run",
    )
