"""Steps planned, tried out or run, and told about: what a launch file and `chomp train` share."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chomp.errors import ChompError, require
from chomp.executor import PlannedStep, Runner, read_status, run_plan
from chomp.launch.runners import ChosenRunner, chosen_name, runner_named
from chomp.launch.telling import (
    refuse_differences,
    tell_differences,
    tell_done,
    tell_failure,
    tell_failures,
    tell_lost_checkpoints,
    tell_nothing_run,
    tell_plan,
    tell_start,
    tell_wait,
)
from chomp.launch.together import is_spokesman, run_together, spoken_once
from chomp.storage import require_writable_folder
from chomp.storage.paths import require_plain_path, without_dots

Report = Callable[[str], None]
# Takes the config of the last step with every path filled in, and whether its data is there.
DryRun = Callable[[Any, bool], None]

DEFAULT_PREFIX = "outputs"


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What is to be done about a plan, besides running it."""

    prefix: str
    is_plan: bool = False
    is_dry_run: bool = False
    is_strict: bool = False
    on: str | None = None  # the runner; None: the one that `max_concurrent` needs
    max_concurrent: int | None = None  # steps at the same time; None: what the runner thinks fit

    def __post_init__(self) -> None:
        chosen_name(self.on, self.max_concurrent)  # refused in a plan, too


def outputs_folder(prefix: str | None) -> str:
    """Where outputs go: the prefix that was given, else `CHOMP_PREFIX`, else the usual folder."""
    return without_dots(prefix or os.environ.get("CHOMP_PREFIX") or DEFAULT_PREFIX)


def launched(
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
    if is_spokesman():
        tell_differences(planned)
        tell_lost_checkpoints(planned)
    last = planned[-1]
    _require_plain_paths(planned)
    if options.is_plan or options.is_dry_run:
        with spoken_once():
            tell_plan(planned)
            if options.is_dry_run and dry_run is not None:
                # In all processes: what compiles a step for their devices wants all of them.
                dry_run(last.config, is_data_ready(planned))
            tell_nothing_run("a dry run" if options.is_dry_run else "the plan")
        return 0
    code = run_planned(
        planned, prefix=options.prefix, on=options.on, max_concurrent=options.max_concurrent
    )
    if code or not is_spokesman():
        return code
    if last.action == "skip":
        tell_done(last)
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
    """Run what is not there yet, and tell of it; the exit code, 0 if all of it is there now."""
    name = chosen_name(on, max_concurrent)
    _require_plain_paths(planned)

    def run_as_first(run: Runner) -> int:
        _require_local(name)
        return _ran(planned, prefix, ChosenRunner(run=run), is_here=True)

    # Before all else: processes of one launch that disagree about what is there must not part.
    if (code := run_together(planned, run_as_first)) is not None:
        return code
    if all(item.action == "skip" for item in planned):
        return 0  # and no cluster is asked for anything
    with runner_named(name, planned, max_concurrent=max_concurrent) as runner:
        return _ran(planned, prefix, runner, is_here=name == "local")


def _require_plain_paths(planned: Sequence[PlannedStep]) -> None:
    # What is done already stays usable wherever it is.
    for item in planned:
        if item.action != "skip":
            require_plain_path(item.path)


def _ran(planned: list[PlannedStep], prefix: str, runner: ChosenRunner, *, is_here: bool) -> int:
    to_do = [item for item in planned if item.action != "skip"]
    if not to_do:
        return 0
    # Now, and not after the first step has worked for an hour.
    for item in to_do:
        if item.step.check is not None and item.action == "run":
            try:
                item.step.check(item.config, is_here)
            except ChompError as error:
                error.within(item.step.name)
                raise
    chosen = [item.path for item in to_do if item.step.override_output_path is not None]
    for folder in (prefix, *chosen):
        require_writable_folder(folder)
    failures = run_plan(
        planned,
        runner.run,
        max_concurrent=runner.max_concurrent,
        room=runner.room,
        on_start=partial(tell_start, has_log=runner.has_logs),
        on_wait=tell_wait,
        on_failure=tell_failure,
        ask_to_stop=runner.ask_to_stop,
    )
    if not failures:
        return 0
    tell_failures(failures, of=len(to_do))
    # The first is never that of a dependant, which would come after its dependency.
    first = failures[0].error
    return first.exit_code if isinstance(first, ChompError) else 1


def _require_local(name: str) -> None:
    require(
        name == "local",
        f"steps that are to run by {name!r}, in a launch of several processes",
        allowed="steps that run in those processes",
        fix="leave out --on and --max-concurrent, or start the launch file once",
    )


def is_data_ready(planned: Sequence[PlannedStep]) -> bool:
    """Whether all that the last step of a plan is made from is there, and stays as it is."""
    # A plan leaves out what a finished step was made from, and that may be gone by now.
    found = map(read_status, planned[-1].dependencies)
    is_there = all(status is not None and status.state == "SUCCESS" for status in found)
    return is_there and all(item.action == "skip" for item in planned[:-1])


def require_dry_run(dry_run: DryRun | None, *, fix: str) -> None:
    """Raise `ConfigError` if a launch file has nothing to try out; `fix` says what to do then."""
    require(
        dry_run is not None,
        "--dry-run on a launch file that has none",
        allowed="--dry-run where the launch file has a function dry_run(config, is_data_ready)",
        fix=fix,
    )
