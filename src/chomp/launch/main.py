"""The command line of every launch file: plan, try out or run its steps, with overrides.

A `ChompError` ends the command with its message alone; the traceback stays in the step's folder.
Any other exception is a bug, in a step or in the launch file, and keeps its traceback.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import typer

from chomp.config import apply_overrides
from chomp.config.fields import ConfigClass
from chomp.errors import ChompError, ConfigError, LaunchError, RunInterrupted, message
from chomp.executor import ExecutorStep, PlannedStep, plan_steps
from chomp.executor.identity import Identities
from chomp.launch.allowed import (
    allowed_fields,
    allowed_overrides,
    in_earlier_folder,
    refuse_other_run,
)
from chomp.launch.launching import (
    DryRun,
    LaunchOptions,
    Report,
    launched,
    outputs_folder,
    require_dry_run,
)
from chomp.launch.restarts import require_restartable, restarted, this_command
from chomp.launch.telling import tell_error, tell_stop, tell_warnings_only
from chomp.storage import join

L = TypeVar("L", bound=ConfigClass)

# What a shell reports for a command ended by Ctrl-C.
INTERRUPTED_EXIT_CODE = 130


@dataclass(frozen=True, kw_only=True)
class _LaunchFile(Generic[L]):
    """What a launch file hands over."""

    steps_of: Callable[[L], Iterable[ExecutorStep]]
    config: L
    description: str
    report: Report | None
    dry_run: DryRun | None


@dataclass(frozen=True, kw_only=True)
class _CommandLine:
    """What the command line asked for."""

    overrides: Sequence[str]
    force: Sequence[str]
    allow: Sequence[str]
    restarts: int
    options: LaunchOptions


def executor_main(
    steps_of: Callable[[L], Iterable[ExecutorStep]],
    config: L,
    *,
    description: str = "",
    report: Report | None = None,
    dry_run: DryRun | None = None,
) -> None:
    """Run a launch file: build the steps of `config` (after overrides), then plan or run them.

    `report` is called with the output folder of the plan's last step once it is there, whether it
    was made now or found. `dry_run(config, is_data_ready)` is called in the place of the steps,
    with the config of the last one, paths filled in, and whether all it is made from is there: it
    says what a run would take, and writes nothing. Ends the process with the exit code.
    """
    file = _LaunchFile(
        steps_of=steps_of, config=config, description=description, report=report, dry_run=dry_run
    )
    sys.exit(_exit_code(file))


def _exit_code(file: _LaunchFile[L]) -> int:
    tell_warnings_only()
    try:
        asked = _parsed(file.description)
        return _launched(file, asked) if asked else 0
    except RunInterrupted as stop:
        tell_stop(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        tell_stop("The same command continues.")
        return INTERRUPTED_EXIT_CODE
    except ChompError as error:
        tell_error(error)
        return error.exit_code


def _parsed(description: str) -> _CommandLine | None:
    """What is asked for, or None once help was shown.

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
        allow: Annotated[
            list[str] | None,
            typer.Option(
                metavar="FIELD",
                help="Go on with an earlier run though this field of its schedule has changed.",
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
        restarts: Annotated[
            int,
            typer.Option(metavar="N", help="Start again up to N times after exit code 75."),
        ] = 0,
    ) -> _CommandLine:
        return _CommandLine(
            overrides=[
                *(overrides or []),
                *([] if attention is None else [f"model.attention={attention}"]),
                *allowed_overrides(allow or []),
            ],
            force=force or [],
            allow=allow or [],
            restarts=restarts,
            options=LaunchOptions(
                prefix=outputs_folder(prefix),
                is_plan=plan,
                is_dry_run=dry_run,
                is_strict=strict,
            ),
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
    return parsed if isinstance(parsed, _CommandLine) else None


def _launched(file: _LaunchFile[L], asked: _CommandLine) -> int:
    """Plan, try out or run, as the options say; the exit code."""
    options = asked.options
    require_restartable(asked.restarts, asked.force)
    if asked.restarts and not (options.is_plan or options.is_dry_run):
        return restarted(this_command(sys.argv[0]), asked.restarts)
    if options.is_dry_run:
        require_dry_run(file.dry_run, fix="use --plan, or pass dry_run= to executor_main")
    # Overrides come before steps: what the steps are may depend on any field.
    config = apply_overrides(file.config, asked.overrides)
    planned = _planned(list(file.steps_of(config)), asked)
    return launched(planned, options, report=file.report, dry_run=file.dry_run)


def _planned(steps: list[ExecutorStep], asked: _CommandLine) -> list[PlannedStep]:
    """The plan, whose last step may go on in the folder of an earlier run."""
    if not steps:
        raise LaunchError(
            message(
                given="a launch file that gives no steps",
                allowed="at least one step",
                fix="return a step from the function that is given to executor_main",
            )
        )
    prefix, last = asked.options.prefix, steps[-1]
    allowed = allowed_fields(last, asked.allow)
    is_named_by_hash = last.override_output_path is None
    if is_named_by_hash:
        identities = Identities()
        path = join(prefix, f"{last.name}-{identities.of(last).hash}")
        last = in_earlier_folder(last, path, identities, allowed)
    planned = plan_steps([*steps[:-1], last], prefix=prefix, force=asked.force, allow=allowed)
    if is_named_by_hash:  # then only --allow has made it another run than its name says
        refuse_other_run(planned[-1], allowed, elsewhere="choose another --prefix")
    return planned
