"""The command line of every launch file: plan, try out or run its steps, with overrides.

A `ChompError` ends the command with its message alone; the traceback stays in the step's folder.
Any other exception is a bug, in a step or in the launch file, and keeps its traceback.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import typer

from chomp.config import apply_overrides
from chomp.config.fields import ConfigClass
from chomp.errors import ChompError, ConfigError, LaunchError, RunInterrupted, message, require
from chomp.executor import ExecutorStep, PlannedStep, plan_steps, run_plan
from chomp.launch.telling import (
    refuse_differences,
    tell_differences,
    tell_done,
    tell_error,
    tell_failure,
    tell_nothing_run,
    tell_plan,
    tell_start,
    tell_stop,
    tell_wait,
    tell_warnings_only,
)
from chomp.storage import require_writable_folder

L = TypeVar("L", bound=ConfigClass)
Report = Callable[[str], None]

DEFAULT_PREFIX = "outputs"
# What a shell reports for a command ended by Ctrl-C.
INTERRUPTED_EXIT_CODE = 130


@dataclass(frozen=True, kw_only=True)
class _LaunchFile(Generic[L]):
    """What a launch file hands over."""

    steps_of: Callable[[L], Iterable[ExecutorStep]]
    config: L
    description: str
    report: Report | None
    dry_run: Callable[[L], None] | None


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What the command line asked for."""

    is_plan: bool
    is_dry_run: bool
    overrides: Sequence[str]
    force: Sequence[str]
    prefix: str
    is_strict: bool


def executor_main(
    steps_of: Callable[[L], Iterable[ExecutorStep]],
    config: L,
    *,
    description: str = "",
    report: Report | None = None,
    dry_run: Callable[[L], None] | None = None,
) -> None:
    """Run a launch file: build the steps of `config` (after overrides), then plan or run them.

    `report` is called with the output folder of the plan's last step once it is there, whether it
    was made now or found. `dry_run` is called with the config in the place of its steps: it says
    what a run would take, and writes nothing. Ends the process with the exit code.
    """
    file = _LaunchFile(
        steps_of=steps_of, config=config, description=description, report=report, dry_run=dry_run
    )
    sys.exit(_exit_code(file))


def _exit_code(file: _LaunchFile[L]) -> int:
    tell_warnings_only()
    try:
        options = _parsed_options(file.description)
        return _launched(file, options) if options else 0
    except RunInterrupted as stop:
        tell_stop(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        tell_stop("The same command continues.")
        return INTERRUPTED_EXIT_CODE
    except ChompError as error:
        tell_error(error)
        return error.exit_code


def _parsed_options(description: str) -> _Options | None:
    """The options, or None once help was shown.

    Only parsing happens inside typer, which has its own ideas about KeyboardInterrupt, EOFError
    and exit codes.
    """

    def command(
        plan: Annotated[bool, typer.Option("--plan", help="Show the steps, run nothing.")] = False,
        dry_run: Annotated[
            bool,
            typer.Option("--dry-run", help="Check the config and show what a run would take."),
        ] = False,
        overrides: Annotated[
            list[str] | None,
            typer.Option("--set", "-o", metavar="KEY=VALUE", help="Change a dotted config field."),
        ] = None,
        attention: Annotated[
            str | None,
            typer.Option(
                metavar="NAME", help="Attention backend to force: -o model.attention=NAME."
            ),
        ] = None,
        force: Annotated[
            list[str] | None,
            typer.Option(
                metavar="REGEX",
                help="Run matching steps again from the start; earlier results are moved aside.",
            ),
        ] = None,
        prefix: Annotated[
            str | None,
            typer.Option(help="Where outputs go; default: CHOMP_PREFIX, or outputs/."),
        ] = None,
        strict: Annotated[
            bool,
            typer.Option("--strict", help="Refuse a result whose source or settings differ."),
        ] = False,
    ) -> _Options:
        return _Options(
            is_plan=plan,
            is_dry_run=dry_run,
            overrides=[
                *(overrides or []),
                *([] if attention is None else [f"model.attention={attention}"]),
            ],
            force=force or [],
            prefix=prefix or os.environ.get("CHOMP_PREFIX") or DEFAULT_PREFIX,
            is_strict=strict,
        )

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=description)(command)
    try:
        parsed = app(standalone_mode=False)
    except Exception as error:
        # Wrong flags: typer raises these out of its own or an installed click, by version.
        if not hasattr(error, "format_message"):
            raise
        raise ConfigError(
            message(
                given=error.format_message().rstrip("."),
                allowed="the options that --help lists",
                fix="correct the command line",
            )
        ) from error
    return parsed if isinstance(parsed, _Options) else None


def _launched(file: _LaunchFile[L], options: _Options) -> int:
    """Plan, try out or run, as the options say; the exit code."""
    if options.is_dry_run:
        _require_dry_run(file)
    # Overrides come before steps: what the steps are may depend on any field.
    config = apply_overrides(file.config, options.overrides)
    planned = plan_steps(list(file.steps_of(config)), prefix=options.prefix, force=options.force)
    if not planned:
        raise LaunchError(
            message(
                given="a launch file that gives no steps",
                allowed="at least one step",
                fix="return a step from the function that is given to executor_main",
            )
        )
    if options.is_strict:
        refuse_differences(planned)
    tell_differences(planned)
    if options.is_plan or options.is_dry_run:
        tell_plan(planned)
        if options.is_dry_run and file.dry_run is not None:
            file.dry_run(config)
        tell_nothing_run("a dry run" if options.is_dry_run else "the plan")
        return 0
    if any(item.action != "skip" for item in planned):
        # Now, and not after the first step has worked for an hour.
        require_writable_folder(options.prefix)
        failures = run_plan(
            planned, _run_here, on_start=tell_start, on_wait=tell_wait, on_failure=tell_failure
        )
        if failures:
            # The first is never that of a dependant, which would come after its dependency.
            first = failures[0].error
            return first.exit_code if isinstance(first, ChompError) else 1
    last = planned[-1]
    if last.action == "skip":
        tell_done(last)
    if file.report is not None:
        file.report(last.path)
    return 0


def _require_dry_run(file: _LaunchFile[L]) -> None:
    require(
        file.dry_run is not None,
        given="--dry-run on a launch file that has none",
        allowed="--dry-run where the launch file hands executor_main a dry_run function",
        fix="use --plan, or pass dry_run= to executor_main",
    )


def _run_here(planned: PlannedStep) -> None:
    """The local runner: call the step's function in this process."""
    planned.step.fn(planned.config)
