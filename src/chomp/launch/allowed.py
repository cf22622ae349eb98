"""`--allow`: a run goes on though its config has changed, in the fields that are named.

Two things keep a changed config away from a run: its checkpoints, which are told by the override
that `allowed_overrides` gives, and its folder, whose rules are here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chomp.config import Difference
from chomp.config.fields import dotted
from chomp.config.overrides import find_field
from chomp.errors import ConfigError, LaunchError
from chomp.executor import ExecutorStep, PlannedStep, read_status
from chomp.executor.explain import changes_since, nearest_allowed, not_allowed, short
from chomp.executor.identity import Identities
from chomp.executor.status import read_info
from chomp.executor.step import replaced
from chomp.launch.telling import force_flag

_CHANGES_SHOWN = 3
_STAGES = "data.stages"


def allowed_overrides(names: Sequence[str]) -> list[str]:
    """What `--allow` means as overrides, for the run's own config."""
    return [f"trainer.allow_changes=[{', '.join(names)}]"] if names else []


def allowed_fields(step: ExecutorStep, names: Sequence[str]) -> list[str]:
    """The fields that `--allow` names, as the step's config spells them.

    Raises `ConfigError` for one that is none, or that is part of a run's identity: the run itself
    would refuse to go on, but only after its folder has been written to.
    """
    config = replaced(step.config, lambda marker: "")
    fields = [_spelled(config, name) for name in names]
    return [*fields, *(_stores_of(config) if _STAGES in fields else ())]


def in_earlier_folder(
    step: ExecutorStep, path: str, identities: Identities, allowed: Sequence[str]
) -> ExecutorStep:
    """The step in the folder of the nearest earlier run that it may go on with, if there is one.

    `path`, named by the step's hash, is where it would go; what is there already is its own.
    """
    if not allowed or read_status(path) is not None:
        return step
    found = nearest_allowed(step.name, identities.of(step), path, allowed)
    return step if found is None else replace(step, override_output_path=found)


def refuse_other_run(planned: PlannedStep, allowed: Sequence[str], *, elsewhere: str) -> None:
    """Raise `LaunchError` if the folder is another run's. A plan would move that one aside.

    `elsewhere` says how to choose another folder.
    """
    found = planned.found
    if found is None or found.identity in (planned.identity.hash, planned.continues):
        return
    if planned.is_forced or found.attempt == 0:
        return  # moved aside as was asked for; or its data could not be made, and it never began
    info = read_info(planned.path)
    changes = [] if info is None else changes_since(info, planned.step.name, planned.identity)
    changes = not_allowed(changes, allowed)
    told = [f"{d.path}: {short(d.before)} there, {short(d.after)} here" for d in changes]
    more = f" and {len(told) - _CHANGES_SHOWN} more" if len(told) > _CHANGES_SHOWN else ""
    listed = f" ({', '.join(told[:_CHANGES_SHOWN])}{more})" if told else ""
    raise LaunchError(
        f"{planned.path} holds another run{listed}",
        allowed="a folder that is new, or one of the same run, which is then continued",
        fix=f"{_ways_on(planned.step, changes, elsewhere)}; {force_flag(planned)} moves the "
        "earlier run aside and starts over",
    )


def _ways_on(step: ExecutorStep, changes: Sequence[Difference], elsewhere: str) -> str:
    """How to go on in spite of changes: `--allow` is offered only where it would be taken."""
    config = replaced(step.config, lambda marker: "")
    fields = {d.path: _schedule_field(config, d.path) for d in changes}
    if _STAGES in fields.values():
        followers = _stores_of(config)
        fields = {path: field for path, field in fields.items() if path not in followers}
    fixed = [path for path, field in fields.items() if field is None]
    if fixed:
        few = ", ".join(fixed[:_CHANGES_SHOWN]) + " and more" * (len(fixed) > _CHANGES_SHOWN)
        they = "it is" if len(fixed) == 1 else "they are"
        return (
            f"{elsewhere} to start a new run, or set {few} back: {they} part of what a run is, "
            "which --allow does not change"
        )
    flags = " ".join(f"--allow {field}" for field in dict.fromkeys(fields.values()))
    goes_on = f"; {flags} goes on with it as it is now"
    return f"{elsewhere}, or undo the change{goes_on * (0 < len(changes) <= _CHANGES_SHOWN)}"


def _schedule_field(config: Any, path: str) -> str | None:
    """The field of the schedule that a changed place is in; None: it is part of the identity."""
    while path:
        found = find_field(config, path)
        if found is not None:
            return None if found[1] == "identity" else dotted(found[0])
        path = path.rpartition(".")[0]  # an item of a list that is shorter now
    return None


def _stores_of(config: Any) -> list[str]:
    """The fields that change with data.stages: which stores a component has follows from them."""
    names = list(config.data.components)
    stores = ("train_store", "validation_store")
    return [dotted(("data", "components", name, store)) for name in names for store in stores]


def _spelled(config: Any, name: str) -> str:
    found = find_field(config, name)
    if found is None or found[1] == "identity":
        fault = "no field of the run's config" if found is None else "part of the run's identity"
        raise ConfigError(
            f"--allow {name}, which is {fault}",
            allowed="fields of the schedule, such as train.steps or optim.lr",
            fix="correct the name" if found is None else "start a new run",
        )
    return dotted(found[0])
