"""Steps on a Ray cluster: `--on ray`. The driver is the process of the launch file.

Each process of a step has an actor, which holds its resources on some node and runs it as a child:
JAX needs a process that nobody has used, and a crash is an exit code. Actors of a gang are placed
together or not at all, or two gangs that each got half of a cluster would wait for ever.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Resources
from chomp.executor.status import STATUS
from chomp.launch.gang import free_port, member_environment, raise_end, run_gang
from chomp.launch.process import StepMember, hidden_gpus, pack_step, visible_gpus
from chomp.launch.signals import StopRequest
from chomp.launch.step_result import Outcome, append_log, log_header, log_path, outcome_of
from chomp.storage import exists, join

# Set where nodes are added when they are asked for: what there is now says nothing then.
GROWS = "CHOMP_RAY_GROWS"
# Names the keys that `ray_run` sent to this job alone, so that it can hand them to its steps.
KEY_NAMES = "CHOMP_JOB_KEY_NAMES"
_ADDRESS = "RAY_ADDRESS"
# Variables of the driver that say how a step runs, and so hold on every node.
_FORWARDED = (
    *("CHOMP_", "GRUG_", "FERRY_", "LEVANTER_", "WANDB_", "HF_", "TOKENIZERS_"),
    *("JAX_", "XLA_", "NCCL_", "LIBTPU_", "NPROC"),
)
_OWN_FIELDS = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gb"}
_LEAST_CPUS = 0.001  # of a process that asks for nothing: Ray wants something to place
_REACH_S = 10.0
# Threads of an actor: one for the process, one for the word to end it, one for questions.
_THREADS = 3
_POLL_PROCESS_S, _POLL_CLUSTER_S = 0.05, 0.2
_PATIENCE_S = 10.0  # until the user is told that the cluster is full
# A node that is lost while it gets its actor costs a try; a cluster that loses three has a problem.
_TRIES_FOR_AN_ADDRESS = 3
# The exit code of a process whose node is gone: nobody knows how it ended.
_LOST_CODE = -9
_KILL_S = 3.0  # a node that can be reached has ended a process by then
_log = logging.getLogger(__name__)


class RayRunner:
    """Runs steps on a cluster; may be called from several threads at once. See `ray_runner`."""

    def __init__(self, payloads: Mapping[str, bytes], stop: StopRequest) -> None:
        self._payloads, self._stop = payloads, stop

    def __call__(self, planned: PlannedStep) -> None:
        """Run one step of the plan; returns when it is done, raises what it raised."""
        self._stop.raise_if_requested()
        wanted = planned.resources
        actors = _ActorGroup(planned.title, demand_of(wanted), wanted.processes, self._stop)

        def start(index: int, given: Mapping[str, str]) -> _RayMember:
            sent = SentProcess(
                payload=self._payloads[planned.path],
                # An argument and not Ray's runtime_env, which its dashboard shows to everybody.
                environment={**forwarded_environment(), **given},
                gpus=wanted.gpus or 0,
                folder=planned.path,
                working_folder=os.getcwd(),
                log=log_path(planned.path, index),
                log_header=log_header(planned, index, wanted.processes),
            )
            return actors.member(index, sent)

        try:
            end = run_gang(
                start,
                wanted.processes,
                name=planned.title,
                # A single process, too: the node that it was on may be gone for good.
                restarts=wanted.restarts,
                stop=self._stop,
                new_address=actors.new_address,
            )
        finally:
            actors.free()
        raise_end(planned, end, self._stop)

    def ask_to_stop(self) -> None:
        """Let all steps that run now save and end, and no other begin."""
        self._stop.ask()


@contextmanager
def ray_runner(plan: Sequence[PlannedStep]) -> Iterator[RayRunner]:
    """A runner for the steps of `plan` on the cluster of RAY_ADDRESS, or the one on this machine.

    Raises `LaunchError` if there is none, for a step that cannot be sent, and for one that asks for
    more than the nodes have. A context of the main thread: while it is entered, Ctrl-C and SIGTERM
    are passed on to the processes, which save and end; calls then raise `RunInterrupted`.
    """
    to_do = [item for item in plan if item.action != "skip"]
    payloads = {item.path: pack_step(item) for item in to_do}
    with _connection():
        nodes = [node["Resources"] for node in import_ray().nodes() if node["Alive"]]
        require_room(to_do, nodes)
        with StopRequest() as stop:
            yield RayRunner(payloads, stop)


def import_ray() -> Any:
    """Ray itself; `LaunchError` where it is not installed."""
    try:
        # An extra, which takes two seconds to import.
        import ray  # noqa: PLC0415
        import ray.exceptions  # noqa: PLC0415
        import ray.util.scheduling_strategies  # noqa: PLC0415
    except ImportError as error:
        raise LaunchError(
            "a Ray cluster was asked for, and Ray is not installed",
            allowed="an environment with ray[default]",
            fix="uv sync --extra ray, or pip install 'ray[default]'",
        ) from error
    return ray


def host_and_port(address: str, default_port: int) -> tuple[str, int]:
    """`host`, `host:port` or `[v6]:port` in its two parts. `LaunchError` for anything else."""
    try:
        parts = urlsplit(f"//{address}")
        if parts.hostname and parts.netloc == address:
            port = default_port if parts.port is None else parts.port
            if port and not address.endswith(":"):
                return parts.hostname, port
    except ValueError:
        pass  # a port that is no number, or too large
    raise LaunchError(
        f"{address!r} as the address of a cluster",
        allowed="host or host:port",
        fix=f"write for example 127.0.0.1:{default_port}",
    )


def require_listening(host: str, port: int, *, what: str, fix: str) -> None:
    """Raise `LaunchError` within seconds if nobody listens there; Ray would wait for minutes."""
    try:
        socket.create_connection((host, port), timeout=_REACH_S).close()
    except OSError as error:
        raise LaunchError(
            f"{what} at {host}:{port} does not answer ({error})",
            allowed="the address of a running cluster that can be reached from here",
            fix=fix,
        ) from error


def forwarded_environment() -> dict[str, str]:
    """Variables of this process that a step is to find on its node, too."""
    environment = member_environment({})
    keys = environment.get(KEY_NAMES, "").split()
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_FORWARDED) or name in keys
    }


# ---- What steps ask for, and what nodes have --------------------------------------------------


def demand_of(wanted: Resources) -> dict[str, float]:
    """What one process of a step takes of a node, by Ray's names."""
    demand = {
        "CPU": wanted.cpus,
        "GPU": float(wanted.gpus or 0),  # no number is none, as for Ray itself
        "memory": (wanted.memory_gb or 0.0) * 1e9,
        **wanted.custom,
    }
    return {name: amount for name, amount in demand.items() if amount} or {"CPU": _LEAST_CPUS}


def processes_that_fit(demand: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many processes with that demand the nodes can hold at the same time."""
    return sum(
        # Amounts are sums of fractions: 0.1 three times has to fit into 0.3.
        int(min(node.get(name, 0.0) / amount + 1e-9 for name, amount in demand.items()))
        for node in nodes
    )


def require_room(plan: Sequence[PlannedStep], nodes: Sequence[Mapping[str, float]]) -> None:
    """Raise `LaunchError` for the first step that these nodes could not run even if all were idle.

    `nodes` are the resources of each. With CHOMP_RAY_GROWS, missing nodes are taken to be added.
    Also warns of steps that name no number of GPUs, and so get none, though there are some.
    """
    grows = os.environ.get(GROWS, "") not in ("", "0")
    add_nodes = f"set {GROWS}=1 where nodes are added when they are asked for"
    known = {name for node in nodes for name in node if not name.startswith("node:")}
    for planned in plan:
        wanted, step = planned.resources, f"step {planned.step.name!r}"
        for name in _OWN_FIELDS.keys() & wanted.custom.keys():
            raise LaunchError(
                f"{step} with resources.custom[{name!r}]",
                allowed="names that are not Ray's own",
                fix=f"use resources.{_OWN_FIELDS[name]}",
            )
        if wanted.gpus is None and not wanted.custom and any(node.get("GPU") for node in nodes):
            _log.warning(
                "%s says nothing of GPUs, and gets none on a cluster: set resources.gpus to how "
                "many each of its processes is to have, or to 0",
                planned.title,
            )
        if grows:
            continue
        for name in sorted(wanted.custom.keys() - known):
            raise LaunchError(
                f"{step} asks for {name!r}, which no node has",
                allowed=f"one of {', '.join(sorted(known))}",
                fix="correct the name, start a node with it (ray start --resources), or "
                + add_nodes,
            )
        demand = demand_of(wanted)
        room = processes_that_fit(demand, nodes)
        if room < wanted.processes:
            each = ", ".join(f"{name} {amount:g}" for name, amount in demand.items())
            shown = ", ".join(
                f"({' '.join(f'{name} {node.get(name, 0.0):g}' for name in demand)})"
                for node in nodes[:8]
            )
            more = f", and {len(nodes) - 8} more" if len(nodes) > 8 else ""
            raise LaunchError(
                f"{step} asks for {wanted.processes} x ({each}), and the cluster's nodes have room "
                f"for {room} of them: {shown or 'there are no nodes'}{more}",
                allowed="what fits on its nodes when they are idle",
                fix=f"lower the step's resources, add nodes, or {add_nodes}",
            )


# ---- The connection of this process -----------------------------------------------------------


@contextmanager
def _connection() -> Iterator[None]:
    """Be a driver of the cluster. A connection that the launch file made is used and kept."""
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    address = os.environ.get(_ADDRESS) or "auto"
    if "://" in address:
        raise LaunchError(
            f"{_ADDRESS}={address} with --on ray",
            allowed="host:port of the cluster's head, from one of its nodes",
            fix="start the launch file on the cluster: python -m chomp.launch.ray_run "
            f"--cluster {address} -- python ... --on ray",
        )
    if address != "auto":
        fix = f"start one with ray start --head, or correct {_ADDRESS}"
        require_listening(*host_and_port(address, 6379), what="the Ray cluster", fix=fix)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # What processes print is in the logs of their steps; Ray would repeat it here.
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        raise LaunchError(
            f"no Ray cluster {where} that this process can join ({_first_lines(error, most=1)})",
            allowed="a running cluster with the same versions of Ray and Python, and its token",
            fix=f"start one with ray start --head, set {_ADDRESS} to another, or copy its token "
            "to ~/.ray/auth_token (or RAY_AUTH_TOKEN, with RAY_AUTH_MODE=token)",
        ) from error
    finally:
        # Ray ends the process at SIGTERM. That is for the command to decide.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
    try:
        yield
    finally:
        ray.shutdown()  # ends what this process still has running there


# ---- On a node --------------------------------------------------------------------------------


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
        # Not held until it is used: JAX binds it itself, and a gang tries another if it is taken.
        return f"{f'[{host}]' if ':' in host else host}:{free_port(host)}"

    def run(self, sent: SentProcess) -> tuple[int, Outcome | None]:
        """Start the process and wait for its end: the exit code, and what it left behind."""
        try:
            self._enter_folders(sent)
            with append_log(sent.log, sent.log_header) as log:
                environment = member_environment(sent.environment)
                if not sent.gpus:
                    # Ray hides those of others, but none from a process that asked for none. Last,
                    # since a driver with GPUs may have told it to use one.
                    environment |= hidden_gpus(environment, has_gpus=bool(visible_gpus()))
                # In this thread, which lives as long as the process: the kernel ties it to that.
                member = StepMember(sent.payload, environment=environment, log=log)
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

    def _enter_folders(self, sent: SentProcess) -> None:
        """Be where the driver is; `LaunchError` on a node that does not see what it sees."""
        missing, reason, cause = "", "", None
        try:
            os.chdir(sent.working_folder)  # of the actor, which has no other use for one
        except OSError as error:
            missing, cause = f"working folder {sent.working_folder}", error
            reason = f" ({error.strerror})"
        # The driver wrote a status there a moment ago: who does not see it has another folder.
        if not missing and not exists(join(sent.folder, STATUS)):
            missing = f"output folder {sent.folder}"
        if missing:
            raise LaunchError(
                f"the {missing} is not there on the node {socket.gethostname()}{reason}",
                allowed="folders that all nodes of the cluster see at the same path",
                fix="start in a shared folder, with a shared --prefix, or send the code along: "
                "python -m chomp.launch.ray_run",
            ) from cause


# ---- Their actors, as the driver sees them ----------------------------------------------------


class _RayMember:
    """A process of a step in its actor; a `Member` of a gang."""

    def __init__(self, actor: Any, sent: SentProcess) -> None:
        self._actor = actor
        self._is_placed = actor.free_address.remote()
        self._run = actor.run.remote(sent)
        self._end: tuple[int, Outcome | None] | None = None
        self._is_killed = False

    def poll(self) -> int | None:
        if self._end is None and _is_ready(self._run):
            ray = import_ray()
            try:
                self._end = ray.get(self._run)
            except ray.exceptions.RayError as error:
                is_gone = isinstance(error, ray.exceptions.RayActorError)
                if is_gone and not error.actor_init_failed:
                    if not self._is_killed:
                        # Ray knows of nodes and of memory what no log of the step says.
                        _log.warning("a process on the cluster is lost: %s", _first_lines(error))
                    self._end = _LOST_CODE, None
                else:
                    # There is no actor to be had: its environment cannot be made, say.
                    self._end = 1, outcome_of(_no_actor("a step", error))
        return None if self._end is None else self._end[0]

    def terminate(self) -> None:
        """Ask it to save and end; one that waits for room on the cluster has nothing to save."""
        if _is_ready(self._is_placed):
            self._actor.terminate.remote()
        else:
            self.kill()

    def kill(self) -> None:
        self._is_killed = True
        if _is_ready(self._is_placed):
            # By its actor, whose own end would take the process along, but not what that started.
            _is_ready(self._actor.kill.remote(), timeout_s=_KILL_S)
        import_ray().kill(self._actor, no_restart=True)

    def outcome(self) -> Outcome | None:
        return None if self._end is None else self._end[1]


class _ActorGroup:
    """The actors of one step, made anew for each try; to be freed in the end.

    Used by the one thread that waits for the step.
    """

    def __init__(
        self, title: str, demand: Mapping[str, float], count: int, stop: StopRequest
    ) -> None:
        self._title, self._demand, self._count, self._stop = title, demand, count, stop
        self._actors: list[Any] = []
        self._group: Any = None

    def new_address(self) -> str:
        """Make actors for all, free the earlier ones; host and port at the first of them."""
        lost = import_ray().exceptions.RayActorError
        for tries_left in reversed(range(_TRIES_FOR_AN_ADDRESS)):
            self._make()
            try:
                return str(self._wait_for(self._actors[0].free_address.remote()))
            except lost as error:
                if error.actor_init_failed or not tries_left:
                    raise _no_actor(self._title, error) from error
        raise AssertionError("the last try returns or raises")

    def member(self, index: int, sent: SentProcess) -> _RayMember:
        """The process that was sent, in the actor of that index."""
        if self._count == 1:
            self._make()  # nobody asked for an address
        return _RayMember(self._actors[index], sent)

    def free(self) -> None:
        """Give all actors back to the cluster. What still runs in them is ended."""
        for actor in self._actors:
            import_ray().kill(actor, no_restart=True)
        self._actors = []
        if self._group is not None:
            import_ray().util.remove_placement_group(self._group)
            self._group = None

    def _make(self) -> None:
        self.free()
        ray = import_ray()
        named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        options: dict[str, Any] = {
            # Not by Ray's own restarts: the others of a gang have to begin again, too.
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _THREADS,
            "num_cpus": 0,
            "resources": {name: each for name, each in self._demand.items() if name not in named},
            **{named[name]: each for name, each in self._demand.items() if name in named},
        }
        placed: list[dict[str, Any]] = [{}] * self._count
        if self._count > 1:
            # On as few nodes as will do: they are to talk to each other.
            bundles = [dict(self._demand)] * self._count
            self._group = ray.util.placement_group(bundles, strategy="PACK")
            self._wait_for(self._group.ready())
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            placed = [
                {"scheduling_strategy": strategy(self._group, placement_group_bundle_index=index)}
                for index in range(self._count)
            ]
        for each in placed:
            self._actors.append(ray.remote(ProcessActor).options(**options, **each).remote())

    def _wait_for(self, answer: Any) -> Any:
        """What the cluster answers, however long that takes, unless the command is to stop."""
        began, has_warned = time.monotonic(), False
        while not _is_ready(answer, timeout_s=_POLL_CLUSTER_S):
            self._stop.raise_if_requested()
            if not has_warned and time.monotonic() - began > _PATIENCE_S:
                has_warned = True
                _log.warning(
                    "%s waits for room on the cluster: %d x %s",
                    self._title,
                    self._count,
                    dict(self._demand),
                )
        return import_ray().get(answer)


def _is_ready(answer: Any, timeout_s: float = 0.0) -> bool:
    return bool(import_ray().wait([answer], timeout=timeout_s)[0])


def _no_actor(who: str, error: Exception) -> LaunchError:
    return LaunchError(
        f"{who} got no process on the cluster: {_first_lines(error)}",
        allowed="nodes that have chomp and what the step imports, in the driver's versions",
        fix="install the same environment on all nodes, or send it along: "
        "python -m chomp.launch.ray_run --extra ...",
    )


def _first_lines(error: Exception, most: int = 6) -> str:
    lines = [line.strip() for line in str(error).splitlines()[:most] if line.strip()]
    return " / ".join(lines) or type(error).__name__
