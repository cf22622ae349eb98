"""Steps in this process, one after the other: `--on local`, which is the default.

A step takes what this process has: its resources are wishes to whoever can hand out machines. Only
a gang, and what a cluster names, cannot be had here.
"""

from collections.abc import Sequence

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Runner


def local_runner(plan: Sequence[PlannedStep]) -> Runner:
    """A runner that calls a step's function here. `LaunchError` for a plan that it cannot run."""
    for planned in plan:
        wanted = planned.step.resources
        if planned.action == "skip" or wanted is None:
            continue
        if wanted.processes > 1 or wanted.custom:
            asked = f"{wanted.processes} processes" if wanted.processes > 1 else dict(wanted.custom)
            raise LaunchError(
                f"step {planned.step.name!r} asks for {asked}",
                allowed="steps of one process, and of what this machine is known to have, "
                "where steps run in this one",
                fix="add --on process for processes of this machine, or --on ray for those of "
                "a cluster",
            )
    return _called_here


def _called_here(planned: PlannedStep) -> None:
    planned.step.fn(planned.config)
