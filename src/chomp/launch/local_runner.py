"""Steps in this process, one after the other: `--on local`, which is the default.

A step takes what this process has. A gang, what only a cluster names, and more GPUs than JAX finds
here are refused.
"""

from collections.abc import Sequence

from chomp.errors import LaunchError
from chomp.executor import PlannedStep, Runner
from chomp.launch.visible_gpus import PLATFORMS, VISIBLE, is_on_cpu, visible_gpus


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
        if wanted.gpus and wanted.gpus > (usable := 0 if is_on_cpu() else len(visible_gpus())):
            raise LaunchError(
                f"step {planned.step.name!r} asks for {wanted.gpus} GPUs, and JAX can use {usable} "
                "here",
                allowed="no more than there are",
                fix=f"lower resources.gpus, check {VISIBLE} and {PLATFORMS}, or run it on a "
                "cluster with --on ray",
            )
    return _called_here


def _called_here(planned: PlannedStep) -> None:
    try:
        planned.step.fn(planned.config)
    except MemoryError as error:
        raise LaunchError(
            "more memory than this process may have",
            allowed="a step that fits into the machine's memory and the limits of the process",
            fix="lower train.batch_size or the size of the model, raise the limit (ulimit -v, or "
            "that of the container), or use a larger machine",
        ) from error
