"""Plan, try out or run steps, and report: what a launch file and `chomp train` share.

Also here: who runs the steps (`--on local`, `process` or `ray`), and `--allow`, which continues a
run though fields of its schedule have changed.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chomp.config.fields import dotted
from chomp.config.overrides import find_field
from chomp.errors import ChompError, ConfigError, LaunchError, require
from chomp.executor import ExecutorStep, PlannedStep, Runner, read_status, run_plan
from chomp.executor.identity import Identities
from chomp.executor.plan import (
    CHANGES_SHOWN,
    changes_since,
    describe_changes,
    nearest_allowed,
    not_allowed,
)
from chomp.executor.status import read_info
from chomp.executor.step import replaced
from chomp.launch.console import (
    force_flag,
    print_differences,
    print_done,
    print_failure,
    print_failures,
    print_lost_checkpoints,
    print_nothing_run,
    print_plan,
    print_start,
    print_wait,
    refuse_differences,
)
from chomp.launch.multi_process import is_lead_process, print_once, run_together
from chomp.launch.process import (
    PLATFORMS,
    VISIBLE,
    ProcessRunner,
    is_on_cpu,
    usual_concurrency,
    visible_gpus,
)
from chomp.storage import require_writable_folder
from chomp.storage.paths import require_plain_path, without_dots

DEFAULT_PREFIX = "outputs"
RUNNERS = ("local", "process", "ray")
# Threads of this process that only wait: the cluster itself decides what runs when.
_MOST_ON_RAY = 32
_STAGES = "data.stages"
Report = Callable[[str], None]
# Takes the config of the last step with every path filled in, and whether its data is there.
DryRun = Callable[[Any, bool], None]


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What to do with a plan, and how to run it."""

    prefix: str
    is_plan: bool = False
    is_dry_run: bool = False
    is_strict: bool = False
    on: str | None = None  # the runner; None: the one that `max_concurrent` needs
    max_concurrent: int | None = None  # steps at the same time; None: the runner decides

    def __post_init__(self) -> None:
        runner_name(self.on, self.max_concurrent)  # refused in a plan, too


def outputs_folder(prefix: str | None) -> str:
    """Where outputs go: the prefix that was given, else `CHOMP_PREFIX`, else the usual folder."""
    return without_dots(prefix or os.environ.get("CHOMP_PREFIX") or DEFAULT_PREFIX)


def launch_plan(
    planned: list[PlannedStep],
    options: LaunchOptions,
    *,
    report: Report | None = None,
    dry_run: DryRun | None = None,
) -> int:
    """Show a plan, try it out or run it, as the options say; the exit code.

    `report` is called with the output folder of the last step once it is there.
    """
    if options.is_strict:
        refuse_differences(planned)
    if is_lead_process():
        print_differences(planned)
        print_lost_checkpoints(planned)
    last = planned[-1]
    _require_plain_paths(planned)
    if options.is_plan or options.is_dry_run:
        with print_once():
            print_plan(planned)
            if options.is_dry_run and dry_run is not None:
                # A plan leaves out what a finished step was made from, which may be gone by now.
                found = map(read_status, last.dependencies)
                is_there = all(each is not None and each.state == "SUCCESS" for each in found)
                is_data_ready = is_there and all(item.action == "skip" for item in planned[:-1])
                # In all processes: compiling a step for their devices needs all of them.
                dry_run(last.config, is_data_ready)
            print_nothing_run("a dry run" if options.is_dry_run else "the plan")
        return 0
    code = run_planned(
        planned, prefix=options.prefix, on=options.on, max_concurrent=options.max_concurrent
    )
    if code or not is_lead_process():
        return code
    if last.action == "skip":
        print_done(last)
    if report is not None:
        report(last.path)
    return 0


def run_planned(
    planned: list[PlannedStep],
    *,
    prefix: str,
    on: str | None = None,
    max_concurrent: int | None = None,
) -> int:
    """Run what is not there yet, and report on it; the exit code, 0 if all of it is there now."""
    name = runner_name(on, max_concurrent)
    is_here = name == "local"  # in this process, and not with logs of their own
    _require_plain_paths(planned)
    to_do = [item for item in planned if item.action != "skip"]

    def run_steps(runner: Runner, **options: Any) -> int:
        # Now, and not after the first step has worked for an hour.
        for item in to_do:
            if item.step.check is not None and item.action == "run":
                try:
                    item.step.check(item.config, is_here)
                except ChompError as error:
                    error.within(item.step.name)
                    raise
        chosen = [item.path for item in to_do if item.step.override_output_path is not None]
        for folder in (prefix, *chosen) if to_do else ():
            require_writable_folder(folder)
        failures = run_plan(
            planned,
            runner,
            on_start=partial(print_start, has_log=not is_here),
            on_wait=print_wait,
            on_failure=print_failure,
            **options,
        )
        if not failures:
            return 0
        print_failures(failures, of=len(to_do))
        # A dependant never fails first: its dependency does.
        first = failures[0].error
        return first.exit_code if isinstance(first, ChompError) else 1

    def run_as_lead(runner: Runner) -> int:
        require(
            is_here,
            f"steps that are to run by {name!r}, in a launch of several processes",
            allowed="steps that run in those processes",
            fix="leave out --on and --max-concurrent, or start the launch file once",
        )
        return run_steps(runner)

    # Before all else: processes of one launch that disagree about what is there must not part.
    if (code := run_together(planned, run_as_lead)) is not None:
        return code
    if not to_do:
        return 0  # and no cluster is asked for anything
    if is_here:
        return run_steps(local_runner(planned))
    if name == "process":
        with ProcessRunner(planned) as processes:
            return run_steps(
                processes,
                max_concurrent=max_concurrent or usual_concurrency(planned),
                room=processes.room,
                ask_to_stop=processes.ask_to_stop,
            )
    from chomp.launch.ray_runner import ray_runner  # noqa: PLC0415 - Ray is an extra

    with ray_runner(planned) as cluster:
        return run_steps(
            cluster,
            max_concurrent=max_concurrent or min(_MOST_ON_RAY, len(to_do)),
            ask_to_stop=cluster.ask_to_stop,
        )


def require_dry_run(dry_run: DryRun | None, *, fix: str) -> None:
    """Raise `ConfigError` if a launch file has nothing to try out; `fix` says what to do then."""
    require(
        dry_run is not None,
        "--dry-run on a launch file that has none",
        allowed="--dry-run where the launch file has a function dry_run(config, is_data_ready)",
        fix=fix,
    )


def runner_name(name: str | None, max_concurrent: int | None) -> str:
    """The runner that the options ask for; `ConfigError` for options that contradict each other.

    Steps at the same time need processes of their own: a training run has this one to itself, with
    its signals, its devices and its environment.
    """
    require(
        name is None or name in RUNNERS,
        f"--on {name}",
        allowed=f"one of {', '.join(RUNNERS)}",
        fix="local: in this process; process: in processes of this machine; ray: on a cluster",
    )
    require(
        max_concurrent is None or max_concurrent >= 1,
        f"--max-concurrent {max_concurrent}",
        allowed="1 or more",
        fix="give the number of steps that may run at the same time",
    )
    at_once = max_concurrent is not None and max_concurrent > 1
    require(
        not (at_once and name == "local"),
        f"--max-concurrent {max_concurrent} with --on local",
        allowed="one step at a time in this process",
        fix="use --on process",
    )
    return name or ("process" if at_once else "local")


def local_runner(plan: Sequence[PlannedStep]) -> Runner:
    """A runner that calls a step's function here. `LaunchError` for a plan that it cannot run."""
    for planned in plan:
        wanted = planned.resources
        if planned.action == "skip":
            continue
        if wanted.processes > 1 or wanted.custom:
            asked = f"{wanted.processes} processes" if wanted.processes > 1 else dict(wanted.custom)
            raise LaunchError(
                f"step {planned.step.name!r} asks for {asked}",
                allowed="steps of one process that ask for CPUs, GPUs and memory, where steps run "
                "in this process",
                fix="add --on process for processes of this machine, or --on ray for a cluster",
            )
        if wanted.gpus and wanted.gpus > (usable := 0 if is_on_cpu() else len(visible_gpus())):
            raise LaunchError(
                f"step {planned.step.name!r} asks for {wanted.gpus} GPUs, and JAX can use {usable} "
                "here",
                allowed="no more than there are",
                fix=f"lower resources.gpus, check {VISIBLE} and {PLATFORMS}, or run it on a "
                "cluster with --on ray",
            )
    return _run_here


def _run_here(planned: PlannedStep) -> None:
    try:
        planned.step.fn(planned.config)
    except MemoryError as error:
        raise LaunchError(
            "more memory than this process may have",
            allowed="a step that fits into the machine's memory and the limits of the process",
            fix="lower train.batch_size or the size of the model, raise the limit (ulimit -v, or "
            "that of the container), or use a larger machine",
        ) from error


def _require_plain_paths(planned: Sequence[PlannedStep]) -> None:
    # What is done already stays usable wherever it is.
    for item in planned:
        if item.action != "skip":
            require_plain_path(item.path)


# ---- --allow ----------------------------------------------------------------------------------


def allowed_overrides(names: Sequence[str]) -> list[str]:
    """What `--allow` means as overrides of the run's own config."""
    return [f"trainer.allow_changes=[{', '.join(names)}]"] if names else []


def allowed_fields(step: ExecutorStep, names: Sequence[str]) -> list[str]:
    """The fields that `--allow` names, as the step's config spells them.

    Raises `ConfigError` for an unknown field, or one that is part of a run's identity: the run
    itself would refuse it too, but only after its folder has been written to.
    """
    config = replaced(step.config, lambda marker: "")
    fields = []
    for name in names:
        found = find_field(config, name)
        if found is None or found[1] == "identity":
            fault = (
                "no field of the run's config" if found is None else "part of the run's identity"
            )
            raise ConfigError(
                f"--allow {name}, which is {fault}",
                allowed="fields of the schedule, such as train.steps or optim.lr",
                fix="correct the name" if found is None else "start a new run",
            )
        fields.append(dotted(found[0]))
    return [*fields, *(_stores_of(config) if _STAGES in fields else ())]


def in_earlier_folder(
    step: ExecutorStep, path: str, identities: Identities, allowed: Sequence[str]
) -> ExecutorStep:
    """The step in the folder of the nearest earlier run that it may continue, if there is one.

    `path`, named by the step's hash, is where it would run; what is there already is its own.
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
    # `--allow` is offered only where it would be accepted.
    config = replaced(planned.step.config, lambda marker: "")
    fields = {each.path: _schedule_field(config, each.path) for each in changes}
    if _STAGES in fields.values():
        followers = _stores_of(config)
        fields = {path: field for path, field in fields.items() if path not in followers}
    fixed = [path for path, field in fields.items() if field is None]
    if fixed:
        few = ", ".join(fixed[:CHANGES_SHOWN]) + " and more" * (len(fixed) > CHANGES_SHOWN)
        they = "it is" if len(fixed) == 1 else "they are"
        fix = (
            f"{elsewhere} to start a new run, or set {few} back: {they} part of what a run is, "
            "which --allow does not change"
        )
    else:
        flags = " ".join(f"--allow {field}" for field in dict.fromkeys(fields.values()))
        allow = f"; {flags} continues it with the new values"
        fix = f"{elsewhere}, or undo the change{allow * (0 < len(changes) <= CHANGES_SHOWN)}"
    listed = f" ({describe_changes(changes, '{}: {} there, {} here')})" if changes else ""
    raise LaunchError(
        f"{planned.path} holds another run{listed}",
        allowed="a folder that is new, or one of the same run, which is then continued",
        fix=f"{fix}; {force_flag(planned)} moves the earlier run aside and starts over",
    )


def _schedule_field(config: Any, path: str) -> str | None:
    """The field of the schedule that a changed place is in; None if it is part of the identity."""
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
