"""What a step asks of a cluster in Ray's words, and whether its nodes have that at all."""

import logging
import os
from collections.abc import Mapping, Sequence

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Resources
from chomp.launch.step_end import resources_of

_log = logging.getLogger(__name__)

# Set where nodes come when they are asked for: what there is now says nothing then.
GROWS = "CHOMP_RAY_GROWS"
_OWN_FIELDS = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gb"}
# Of a process that asks for nothing: Ray wants something to place.
_LEAST_CPUS = 0.001


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


def tell_idle_gpus(plan: Sequence[PlannedStep], nodes: Sequence[Mapping[str, float]]) -> None:
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
