"""Steps planned, tried out or run, and told about: what a launch file and `chomp train` share."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chomp.errors import ChompError, LaunchError, message, require
from chomp.executor import PlannedStep, read_status, run_plan
from chomp.launch.telling import (
    refuse_differences,
    tell_differences,
    tell_done,
    tell_failure,
    tell_nothing_run,
    tell_plan,
    tell_start,
    tell_wait,
)
from chomp.storage import require_writable_folder

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


def outputs_folder(prefix: str | None) -> str:
    """Where outputs go: the prefix that was given, else `CHOMP_PREFIX`, else the usual folder."""
    return prefix or os.environ.get("CHOMP_PREFIX") or DEFAULT_PREFIX


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
    tell_differences(planned)
    last = planned[-1]
    if options.is_plan or options.is_dry_run:
        tell_plan(planned)
        if options.is_dry_run and dry_run is not None:
            dry_run(last.config, is_data_ready(planned))
        tell_nothing_run("a dry run" if options.is_dry_run else "the plan")
        return 0
    if code := run_planned(planned, prefix=options.prefix):
        return code
    if last.action == "skip":
        tell_done(last)
    if report is not None:
        report(last.path)
    return 0


def run_planned(planned: list[PlannedStep], *, prefix: str) -> int:
    """Run what is not there yet, and tell of it; the exit code, 0 if all of it is there now."""
    to_do = [item for item in planned if item.action != "skip"]
    if not to_do:
        return 0
    _refuse_gang()
    # Now, and not after the first step has worked for an hour.
    chosen = [item.path for item in to_do if item.step.override_output_path is not None]
    for folder in (prefix, *chosen):
        require_writable_folder(folder)
    failures = run_plan(
        planned, _run_here, on_start=tell_start, on_wait=tell_wait, on_failure=tell_failure
    )
    if not failures:
        return 0
    # The first is never that of a dependant, which would come after its dependency.
    first = failures[0].error
    return first.exit_code if isinstance(first, ChompError) else 1


def _refuse_gang() -> None:
    """Raise `LaunchError` where this is one of several processes that are to train together."""
    count = os.environ.get("JAX_NUM_PROCESSES", "1")
    if count != "1":
        raise LaunchError(
            message(
                given=f"JAX_NUM_PROCESSES={count} with a command that runs steps: each process "
                "would wait for the lock of the other's step",
                allowed="one process here; several that call the template's run_grug themselves",
                fix="unset JAX_NUM_PROCESSES and JAX_PROCESS_ID, or call run_grug in each process",
            )
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
        given="--dry-run on a launch file that has none",
        allowed="--dry-run where the launch file has a function dry_run(config, is_data_ready)",
        fix=fix,
    )


def _run_here(planned: PlannedStep) -> None:
    """The local runner: call the step's function in this process."""
    planned.step.fn(planned.config)
