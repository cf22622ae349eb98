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
from chomp.errors import ChompError, ConfigError, LaunchError, RunInterrupted, require
from chomp.executor import ExecutorStep, PlannedStep, plan_steps
from chomp.executor.pins import identities_at
from chomp.launch.console import print_error, print_stop, show_log_warnings
from chomp.launch.multi_process import is_lead_process
from chomp.launch.run import (
    DryRun,
    LaunchOptions,
    Report,
    allowed_fields,
    allowed_overrides,
    in_earlier_folder,
    launch_plan,
    outputs_folder,
    refuse_other_run,
    require_dry_run,
)
from chomp.launch.signals import require_restartable, run_with_restarts, this_command
from chomp.launch.step_result import INTERRUPTED_EXIT_CODE
from chomp.launch.sweep import (
    DEFAULT_METRIC,
    HIGHEST,
    LOWEST,
    Point,
    Sweep,
    grid_of,
    points_in_file,
    print_sweep,
    require_order,
    sweep_of,
)
from chomp.screen import (
    NO_READER_EXIT_CODE,
    checked_screen,
    is_reader_gone,
    outliving_the_screen,
)
from chomp.step_options import Allow, Force, MaxConcurrent, On, Overrides, Restarts
from chomp.storage import join
from chomp.storage.paths import require_current_folder

L = TypeVar("L", bound=ConfigClass)
# The options of launch files alone, each with its type and its line of help.
_Plan = Annotated[bool, typer.Option("--plan", help="Show the steps, run nothing.")]
_DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Check the config and show what a run would take."),
]
_Attention = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Attention backend to force: -o model.attention=NAME."),
]
_Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX",
        help="Run matching steps alone, and what they need that is not there.",
    ),
]
_Prefix = Annotated[
    str | None,
    typer.Option(help="Where outputs go; default: CHOMP_PREFIX, or outputs/."),
]
_Strict = Annotated[
    bool,
    typer.Option("--strict", help="Refuse a result whose source or settings differ."),
]
_Sweep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=A,B,...",
        help="A run for each value; of several such options, for each combination.",
    ),
]
_SweepFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A run for each mapping in a YAML list."),
]
_SweepBy = Annotated[str, typer.Option(metavar="METRIC", help="What a sweep's table is sorted by.")]
_SweepBest = Annotated[
    str,
    typer.Option(metavar=f"{LOWEST}|{HIGHEST}", help="Which value of that metric is the best."),
]


@dataclass(frozen=True, kw_only=True)
class _LaunchFile(Generic[L]):
    """What a launch file hands over."""

    steps_of: Callable[[L], Iterable[ExecutorStep]]
    config: L
    description: str
    report: Report | None
    dry_run: DryRun | None


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
    with checked_screen():
        code = _exit_code(file)
    sys.exit(code)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What the command line asked for."""

    overrides: Sequence[str]
    only: Sequence[str]
    force: Sequence[str]
    allow: Sequence[str]
    restarts: int
    sweep: Sequence[str]  # axes of a grid
    sweep_file: str | None
    sweep_by: str
    sweep_best: str
    options: LaunchOptions

    @property
    def is_sweep(self) -> bool:
        """Whether several runs are asked for, each at other settings."""
        return bool(self.sweep) or self.sweep_file is not None


def parse_command_line(description: str) -> CommandLine | None:
    """What is asked for, or None once help was shown.

    Only parsing happens inside typer, which has its own ideas about KeyboardInterrupt, EOFError
    and exit codes.
    """

    def command(
        plan: _Plan = False,
        dry_run: _DryRun = False,
        overrides: Overrides = None,
        attention: _Attention = None,
        only: _Only = None,
        force: Force = None,
        allow: Allow = None,
        prefix: _Prefix = None,
        strict: _Strict = False,
        on: On = None,
        max_concurrent: MaxConcurrent = None,
        restarts: Restarts = 0,
        sweep: _Sweep = None,
        sweep_file: _SweepFile = None,
        sweep_by: _SweepBy = DEFAULT_METRIC,
        sweep_best: _SweepBest = LOWEST,
    ) -> CommandLine:
        return CommandLine(
            overrides=[
                *(overrides or []),
                *([] if attention is None else [f"model.attention={attention}"]),
                *allowed_overrides(allow or []),
            ],
            only=only or [],
            force=force or [],
            allow=allow or [],
            restarts=restarts,
            sweep=sweep or [],
            sweep_file=sweep_file,
            sweep_by=sweep_by,
            sweep_best=sweep_best,
            options=LaunchOptions(
                prefix=outputs_folder(prefix),
                is_plan=plan,
                is_dry_run=dry_run,
                is_strict=strict,
                on=on,
                max_concurrent=max_concurrent,
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
            error.format_message().rstrip("."),
            allowed="the options that --help lists",
            fix="correct the command line",
        ) from error
    return parsed if isinstance(parsed, CommandLine) else None


def _exit_code(file: _LaunchFile[L]) -> int:
    show_log_warnings()
    try:
        asked = parse_command_line(file.description)
        if asked is None:
            code = 0
        elif asked.options.is_plan or asked.options.is_dry_run:
            code = _launched(file, asked)
        else:
            # A run that has trained for days must not end because nobody reads what it prints.
            with outliving_the_screen():
                code = _launched(file, asked)
        sys.stdout.flush()
        return code
    except (BrokenPipeError, SystemExit) as error:
        if not is_reader_gone(error):
            raise
        return NO_READER_EXIT_CODE
    except RunInterrupted as stop:
        print_stop(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        print_stop("The same command continues.")
        return INTERRUPTED_EXIT_CODE
    except ChompError as error:
        print_error(error)
        return error.exit_code


def _launched(file: _LaunchFile[L], asked: CommandLine) -> int:
    """Plan, try out or run, as the options say; the exit code."""
    options = asked.options
    require_current_folder()
    _require_sensible_table(asked)
    require_restartable(asked.restarts, asked.force)
    if asked.restarts and not (options.is_plan or options.is_dry_run):
        return run_with_restarts(this_command(sys.argv[0]), asked.restarts)
    if options.is_dry_run:
        require_dry_run(file.dry_run, fix="use --plan, or pass dry_run= to executor_main")
    # Overrides come before steps: what the steps are may depend on any field.
    config = apply_overrides(file.config, asked.overrides)
    if asked.is_sweep:
        return _swept(sweep_of(file.steps_of, config, _points(asked)), asked)
    steps = list(file.steps_of(config))
    planned = _planned(steps, asked)
    if _ends_with(planned, steps):
        return launch_plan(planned, options, report=file.report, dry_run=file.dry_run)
    # Without the last step there is nothing that the launch file could say anything of.
    if options.is_dry_run:
        _refuse_dry_run(planned, steps, asked)
    return launch_plan(planned, options)


def _require_sensible_table(asked: CommandLine) -> None:
    """Raise `ConfigError` for wishes about a sweep's table that nothing can obey."""
    require_order(asked.sweep_best)
    is_usual = (asked.sweep_by, asked.sweep_best) == (DEFAULT_METRIC, LOWEST)
    require(
        asked.is_sweep or is_usual,
        f"--sweep-by {asked.sweep_by} --sweep-best {asked.sweep_best} without a sweep",
        allowed="an order for the table of a sweep",
        fix="add --sweep or --sweep-file, or leave them out",
    )


def _refuse_dry_run(
    planned: list[PlannedStep], steps: list[ExecutorStep], asked: CommandLine
) -> None:
    """Raise `ConfigError`: the plan does not end with the step that can be tried out."""
    last, allowed = steps[-1].name, "--dry-run of the last step, which is what can be tried out"
    is_planned = any(item.step.name == last for item in planned)
    require(
        not is_planned,
        f"--dry-run of a launch file whose last step, {last}, is needed by "
        f"{planned[-1].step.name}, which comes after it",
        allowed=allowed,
        fix=f"use --plan, or let the launch file return {planned[-1].step.name} last",
    )
    require(
        is_planned,
        f"--dry-run with --only {' '.join(asked.only)}, which leaves out {last}",
        allowed=allowed,
        fix="use --plan, or leave out --only",
    )


def _points(asked: CommandLine) -> list[Point]:
    """The runs that a sweep asks for, as overrides."""
    refused = [
        ("--allow", asked.allow),
        ("--dry-run", asked.options.is_dry_run),
        ("both --sweep and --sweep-file", asked.sweep and asked.sweep_file),
    ]
    for option, is_given in refused:
        require(
            not is_given,
            f"a sweep with {option}",
            allowed="a sweep by --sweep or by --sweep-file, planned or run",
            fix="leave it out, or launch that run by itself with -o",
        )
    return grid_of(asked.sweep) if asked.sweep_file is None else points_in_file(asked.sweep_file)


def _swept(sweep: Sweep, asked: CommandLine) -> int:
    """Plan or run a sweep, and say what came of each run; the exit code."""
    prefix = asked.options.prefix
    # The table compares runs, so those of a template that was edited since are made again.
    planned = plan_steps(
        sweep.steps,
        prefix=prefix,
        only=asked.only,
        force=asked.force,
        is_source_identity=True,
    )
    code = launch_plan(planned, asked.options)
    if not asked.options.is_plan and is_lead_process():
        identities, there = identities_at(prefix), {item.path: item for item in planned}
        paths = [join(prefix, f"{run.name}-{identities.of(run).hash}") for run in sweep.runs]
        runs = dict(zip(sweep.points, map(there.get, paths), strict=True))
        planned_runs = {point: run for point, run in runs.items() if run is not None}
        print_sweep(planned_runs, asked.sweep_by, best=asked.sweep_best)
    return code


def _planned(steps: list[ExecutorStep], asked: CommandLine) -> list[PlannedStep]:
    """The plan, whose last step may go on in the folder of an earlier run."""
    if not steps:
        raise LaunchError(
            "a launch file that gives no steps",
            allowed="at least one step",
            fix="return a step from the function that is given to executor_main",
        )
    prefix, last = asked.options.prefix, steps[-1]
    allowed = allowed_fields(last, asked.allow)
    is_named_by_hash = last.override_output_path is None
    if is_named_by_hash:
        identities = identities_at(prefix)
        path = join(prefix, f"{last.name}-{identities.of(last).hash}")
        last = in_earlier_folder(last, path, identities, allowed)
    planned = plan_steps(
        [*steps[:-1], last], prefix=prefix, only=asked.only, force=asked.force, allow=allowed
    )
    # Then only --allow has made it another run than its name says.
    if is_named_by_hash and _ends_with(planned, steps):
        refuse_other_run(planned[-1], allowed, elsewhere="choose another --prefix")
    return planned


def _ends_with(planned: list[PlannedStep], steps: list[ExecutorStep]) -> bool:
    """Whether the last step is in the plan; --only may have left it out."""
    return planned[-1].step.name == steps[-1].name
