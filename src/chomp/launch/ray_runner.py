"""Steps on a Ray cluster: `--on ray`.

The driver is the process of the launch file: it plans, holds the locks, and reports. A step is a
process on some node, or a gang of them, which `resources` places. The code and the output prefix
must be the same on all nodes; see docs/tutorials/cluster.md.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Resources
from chomp.launch.gang import log_restart, member_environment, raise_end, resources_of, run_gang
from chomp.launch.job_start import NAMES
from chomp.launch.ray_actors import ActorGroup, RayMember, SentProcess
from chomp.launch.ray_connection import RayConnection
from chomp.launch.signals import StopRequest
from chomp.launch.step_process import pack_step
from chomp.launch.step_result import log_header, log_path

# What of the driver's environment says how a step runs, and so holds on every node.
_FORWARDED = (
    *("CHOMP_", "GRUG_", "FERRY_", "LEVANTER_", "WANDB_", "HF_", "TOKENIZERS_"),
    *("JAX_", "XLA_", "NCCL_", "LIBTPU_", "NPROC"),
)
_log = logging.getLogger(__name__)
# Set where nodes come when they are asked for: what there is now says nothing then.
GROWS = "CHOMP_RAY_GROWS"
_OWN_FIELDS = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gb"}
# Of a process that asks for nothing: Ray wants something to place.
_LEAST_CPUS = 0.001


class RayRunner:
    """Runs steps on a cluster; may be called from several threads at once.

    From when it is made until `close` (it is a context, too) Ctrl-C and SIGTERM are handed on to
    the processes, which save and end; the calls then raise `RunInterrupted`.
    """

    def __init__(self, plan: Sequence[PlannedStep]) -> None:
        to_do = [item for item in plan if item.action != "skip"]
        self._payloads = {item.path: pack_step(item) for item in to_do}
        self._cluster = RayConnection()
        try:
            nodes = self._cluster.nodes()
            require_room(to_do, nodes)
        except BaseException:
            self._cluster.close()
            raise
        warn_idle_gpus(to_do, nodes)
        self._stop = StopRequest()
        # After the connection, which sets handlers of its own.
        self._stop.__enter__()

    def __call__(self, planned: PlannedStep) -> None:
        """Run one step of the plan; returns when it is done, raises what it raised."""
        self._stop.raise_if_requested()
        wanted = resources_of(planned)
        actors = ActorGroup(planned.title, demand_of(wanted), wanted.processes, self._stop)
        try:
            end = run_gang(
                partial(self._started, planned, actors),
                wanted.processes,
                # One process too: the node that it was on may be gone for good.
                restarts=wanted.restarts,
                stop=self._stop,
                new_address=actors.new_address,
                on_restart=partial(log_restart, planned),
            )
        finally:
            actors.free()
        raise_end(planned, end, self._stop)

    def ask_to_stop(self) -> None:
        """Let all steps that run now save and end, and no other begin."""
        self._stop.ask()

    def close(self) -> None:
        """Leave the cluster, and signals to whoever had them before."""
        self._stop.__exit__(None, None, None)
        self._cluster.close()

    def __enter__(self) -> "RayRunner":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _started(
        self, planned: PlannedStep, actors: ActorGroup, index: int, given: Mapping[str, str]
    ) -> RayMember:
        wanted = resources_of(planned)
        sent = SentProcess(
            payload=self._payloads[planned.path],
            # As an argument and not by Ray's runtime_env, which its dashboard shows to everybody.
            environment={**forwarded_environment(), **given},
            gpus=wanted.gpus or 0,
            folder=planned.path,
            working_folder=os.getcwd(),
            log=log_path(planned.path, index),
            log_header=log_header(planned, index, wanted.processes),
        )
        return actors.member(index, sent)


def ray_runner(plan: Sequence[PlannedStep]) -> RayRunner:
    """A runner for the steps of `plan` on the cluster of RAY_ADDRESS, or the one on this machine.

    Raises `LaunchError` if there is none, for a step that cannot be sent, and for one that asks for
    what no node has. To be made in the main thread.
    """
    return RayRunner(plan)


def forwarded_environment() -> dict[str, str]:
    """Variables of this process that a step is to find on its node, too."""
    environment = member_environment({})
    # Keys that `ray_run` sent to this process alone.
    keys = environment.get(NAMES, "").split()
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_FORWARDED) or name in keys
    }


def demand_of(wanted: Resources) -> dict[str, float]:
    """What one process of a step takes of a node, by Ray's names."""
    demand = {
        "CPU": wanted.cpus,
        "GPU": float(wanted.gpus or 0),  # nothing said is none, as Ray has it
        "memory": (wanted.memory_gb or 0.0) * 1e9,
        **wanted.custom,
    }
    return {name: amount for name, amount in demand.items() if amount} or {"CPU": _LEAST_CPUS}


def require_room(
    plan: Sequence[PlannedStep],
    nodes: Sequence[Mapping[str, float]],
    *,
    grows: bool | None = None,
) -> None:
    """Raise `LaunchError` for the first step that these nodes could not run even if all were free.

    `nodes` are the resources of each. A cluster that `grows` is taken to bring what is asked for;
    the default is what CHOMP_RAY_GROWS says.
    """
    grows = os.environ.get(GROWS, "") not in ("", "0") if grows is None else grows
    for planned in plan:
        wanted = resources_of(planned)
        _refuse_own_names(planned, wanted)
        if not grows:
            _refuse_unknown(planned, wanted, nodes)
            _refuse_too_much(planned, wanted, nodes)


def warn_idle_gpus(plan: Sequence[PlannedStep], nodes: Sequence[Mapping[str, float]]) -> None:
    """Warn of steps that say nothing of GPUs, and so get none, though the nodes have some."""
    if not any(node.get("GPU") for node in nodes):
        return
    for planned in plan:
        if resources_of(planned).gpus is None and not resources_of(planned).custom:
            _log.warning(
                "%s says nothing of GPUs, and gets none on a cluster: set resources.gpus to how "
                "many each of its processes is to have, or to 0",
                planned.title,
            )


def processes_that_fit(demand: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many processes with that demand the nodes can hold at the same time."""
    return sum(
        # Amounts are sums of fractions: 0.1 three times is to fit into 0.3.
        int(min(node.get(name, 0.0) / amount + 1e-9 for name, amount in demand.items()))
        for node in nodes
    )


def _refuse_own_names(planned: PlannedStep, wanted: Resources) -> None:
    for name in _OWN_FIELDS.keys() & wanted.custom.keys():
        raise LaunchError(
            f"step {planned.step.name!r} with resources.custom[{name!r}]",
            allowed="names that are not Ray's own",
            fix=f"use resources.{_OWN_FIELDS[name]}",
        )


def _refuse_unknown(
    planned: PlannedStep, wanted: Resources, nodes: Sequence[Mapping[str, float]]
) -> None:
    known = {name for node in nodes for name in node if not name.startswith("node:")}
    for name in sorted(wanted.custom.keys() - known):
        raise LaunchError(
            f"step {planned.step.name!r} asks for {name!r}, which no node has",
            allowed=f"one of {', '.join(sorted(known))}",
            fix="correct the name, start a node with it (ray start --resources), or set "
            f"{GROWS}=1 where nodes are added when they are asked for",
        )


def _refuse_too_much(
    planned: PlannedStep, wanted: Resources, nodes: Sequence[Mapping[str, float]]
) -> None:
    demand = demand_of(wanted)
    room = processes_that_fit(demand, nodes)
    if room >= wanted.processes:
        return
    each = ", ".join(f"{name} {amount:g}" for name, amount in demand.items())
    raise LaunchError(
        f"step {planned.step.name!r} asks for {wanted.processes} x ({each}), and the "
        f"cluster's nodes have room for {room} of them: {_told(nodes, demand)}",
        allowed="what fits on its nodes when they are idle",
        fix=f"lower the step's resources, add nodes, or set {GROWS}=1 where nodes are added "
        "when they are asked for",
    )


def _told(nodes: Sequence[Mapping[str, float]], demand: Mapping[str, float]) -> str:
    shown = [" ".join(f"{name} {node.get(name, 0.0):g}" for name in demand) for node in nodes[:8]]
    more = f", and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return f"({'), ('.join(shown)}){more}" if shown else "it has none"
