"""Two steps of one plan that cannot both be what their folder holds: refused before all else."""

from typing import Any

from chomp.errors import LaunchError
from chomp.executor.identity import Identities, Identity
from chomp.executor.planned import PlannedStep
from chomp.executor.reasons import plain_differences, short
from chomp.executor.source import function_name
from chomp.executor.step import ExecutorStep


def refuse_clash(one: ExecutorStep, other: ExecutorStep, identities: Identities, path: str) -> None:
    """Raise if two steps of different identities would have one output folder."""
    if identities.of(one).hash != identities.of(other).hash:
        raise LaunchError(
            f"two different steps, {one.name!r} and {other.name!r}, with one output folder, {path}",
            allowed="one step per folder",
            fix=f"give {other.name!r} another name or override_output_path",
        )


def refuse_unequal(
    planned: PlannedStep, step: ExecutorStep, identity: Identity, plain_config: Any
) -> None:
    """Raise if a step that shares the identity of a planned one would not do the same."""
    if planned.identity.own_hash != identity.own_hash:
        return  # pinned: they differ, and somebody said that it does not matter
    told = [
        f"{d.path} ({short(d.before)} and {short(d.after)})"
        for d in plain_differences(planned.plain_config, plain_config)
    ]
    functions = [function_name(planned.step.fn), function_name(step.fn)]
    told += [" and ".join(functions)] if functions[0] != functions[1] else []
    if told:
        raise LaunchError(
            f"two steps {planned.title} that differ in {', '.join(told)}",
            allowed="steps that are equal, or different in what is versioned or in name",
            fix="mark what differs with versioned(...), or give one another name",
        )
