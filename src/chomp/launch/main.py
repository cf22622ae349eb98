"""The command line of every launch file: plan, try out or run its steps, with overrides.

A `ChompError` ends the command with its message alone; the traceback stays in the step's folder.
Any other exception is a bug, in a step or in the launch file, and keeps its traceback.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import Annotated, Any, TypeVar

import typer

from chomp.config import apply_overrides
from chomp.config.fields import ConfigClass
from chomp.errors import ChompError, ConfigError, LaunchError, RunInterrupted, require
from chomp.executor import ExecutorStep, PlannedStep, plan_steps, planning_only
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
    Sweep,
    grid_of,
    points_in_file,
    print_sweep,
    require_order,
    sweep_of,
)
from chomp.step_options import Allow, Force, MaxConcurrent, On, Overrides, Restarts, VerifySources
from chomp.storage import join
from chomp.storage.file_hashes import read_files_again
from chomp.storage.paths import require_current_folder, require_process_limits
from chomp.storage.screen import (
    NO_READER_EXIT_CODE,
    checked_screen,
    is_reader_gone,
    outliving_the_screen,
)

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
    was made now or found. `dry_run(config, is_data_ready)` is called instead of running the steps,
    with the config of the last one, paths filled in, and whether everything it is made from is
    there: it says what a run would take, and writes nothing. Ends the process with the exit code.
    """

    def launch(
        plan: _Plan = False,
        is_dry_run: _DryRun = False,
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
        verify_sources: VerifySources = False,
    ) -> int:
        only, force, allow = only or [], force or [], allow or []
        options = LaunchOptions(
            prefix=outputs_folder(prefix),
            is_plan=plan,
            is_dry_run=is_dry_run,
            is_strict=strict,
            on=on,
            max_concurrent=max_concurrent,
        )
        require_current_folder()
        require_process_limits()
        require_order(sweep_best)
        is_sweep = bool(sweep) or sweep_file is not None
        require(
            is_sweep or (sweep_by, sweep_best) == (DEFAULT_METRIC, LOWEST),
            f"--sweep-by {sweep_by} --sweep-best {sweep_best} without a sweep",
            allowed="an order for the table of a sweep",
            fix="add --sweep or --sweep-file, or leave them out",
        )
        require_restartable(restarts, force)
        if restarts and not (plan or is_dry_run):
            return run_with_restarts(this_command(sys.argv[0]), restarts)
        if is_dry_run:
            require_dry_run(dry_run, fix="use --plan, or pass dry_run= to executor_main")
        # Overrides come before steps: what the steps are may depend on any field.
        changes = list(overrides or [])
        changes += [] if attention is None else [f"model.attention={attention}"]
        changed = apply_overrides(config, [*changes, *allowed_overrides(allow)])
        # A run that has trained for days must not end because nobody reads what it prints.
        with nullcontext() if plan or is_dry_run else outliving_the_screen():
            if is_sweep:
                for option, is_given in (
                    ("--allow", allow),
                    ("--dry-run", is_dry_run),
                    ("both --sweep and --sweep-file", sweep and sweep_file),
                ):
                    require(
                        not is_given,
                        f"a sweep with {option}",
                        allowed="a sweep by --sweep or by --sweep-file, planned or run",
                        fix="leave it out, or launch that run by itself with -o",
                    )
                points = grid_of(sweep or []) if sweep_file is None else points_in_file(sweep_file)
                with planning_only(plan), read_files_again(verify_sources):
                    runs = sweep_of(steps_of, changed, points)
                return _sweep(runs, options, only, force, by=sweep_by, best=sweep_best)
            with planning_only(plan), read_files_again(verify_sources):
                steps = list(steps_of(changed))
            planned = _plan_run(steps, options.prefix, only, force, allow)
            if _ends_with(planned, steps):
                return launch_plan(planned, options, report=report, dry_run=dry_run)
            # Without its last step there is nothing that the launch file could say anything about.
            if is_dry_run:
                raise _no_dry_run(planned, steps, only)
            return launch_plan(planned, options)

    with checked_screen():
        code = _exit_code(launch, description)
    sys.exit(code)


def parse_options(
    command: Callable[..., Any],
    words: Sequence[str] | None = None,
    *,
    help: str,
    allowed: str = "the options that --help lists",
    fix: str = "correct the command line",
) -> Callable[..., Any] | None:
    """`command` with its options taken from the words, or None once help was shown.

    Typer only parses: it has its own ideas about KeyboardInterrupt, EOFError and exit codes.
    """

    @wraps(command)
    def with_options(**options: object) -> Callable[..., Any]:
        return partial(command, **options)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=help)(with_options)
    try:
        parsed = app(words, standalone_mode=False)
    except Exception as error:
        # Wrong options: typer raises these out of its own or an installed click, by version.
        if not hasattr(error, "format_message"):
            raise
        raise ConfigError(error.format_message().rstrip("."), allowed=allowed, fix=fix) from error
    return parsed if isinstance(parsed, partial) else None


def _exit_code(launch: Callable[..., int], description: str) -> int:
    show_log_warnings()
    try:
        chosen = parse_options(launch, help=description)
        code = 0 if chosen is None else chosen()
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


def _sweep(
    sweep: Sweep,
    options: LaunchOptions,
    only: Sequence[str],
    force: Sequence[str],
    *,
    by: str,
    best: str,
) -> int:
    """Plan or run a sweep, and print a table of its runs; the exit code."""
    prefix = options.prefix
    # The table compares runs, so those of a template that was edited since are made again.
    planned = plan_steps(
        sweep.steps, prefix=prefix, only=only, force=force, is_source_identity=True
    )
    code = launch_plan(planned, options)
    if not options.is_plan and is_lead_process():
        identities, there = identities_at(prefix), {item.path: item for item in planned}
        paths = [join(prefix, f"{run.name}-{identities.of(run).hash}") for run in sweep.runs]
        runs = {
            point: there[path]
            for point, path in zip(sweep.points, paths, strict=True)
            if path in there
        }
        print_sweep(runs, by, best=best)
    return code


def _plan_run(
    steps: list[ExecutorStep],
    prefix: str,
    only: Sequence[str],
    force: Sequence[str],
    allow: Sequence[str],
) -> list[PlannedStep]:
    """The plan, whose last step may continue in the folder of an earlier run."""
    if not steps:
        raise LaunchError(
            "a launch file that gives no steps",
            allowed="at least one step",
            fix="return a step from the function that is given to executor_main",
        )
    last = steps[-1]
    allowed = allowed_fields(last, allow)
    is_named_by_hash = last.override_output_path is None
    if is_named_by_hash:
        identities = identities_at(prefix)
        path = join(prefix, f"{last.name}-{identities.of(last).hash}")
        last = in_earlier_folder(last, path, identities, allowed)
    planned = plan_steps([*steps[:-1], last], prefix=prefix, only=only, force=force, allow=allowed)
    # Then only --allow has made it another run than its name says.
    if is_named_by_hash and _ends_with(planned, steps):
        refuse_other_run(planned[-1], allowed, elsewhere="choose another --prefix")
    return planned


def _ends_with(planned: list[PlannedStep], steps: list[ExecutorStep]) -> bool:
    """Whether the last step is the last of the plan; --only may have left it out."""
    return planned[-1].step.name == steps[-1].name


def _no_dry_run(
    planned: list[PlannedStep], steps: list[ExecutorStep], only: Sequence[str]
) -> ConfigError:
    """The plan does not end with the last step of the launch file."""
    last, end = steps[-1].name, planned[-1].step.name
    allowed = "--dry-run of the last step, which is what can be tried out"
    if any(item.step.name == last for item in planned):
        return ConfigError(
            f"--dry-run of a launch file whose last step, {last}, is needed by {end}, which comes "
            "after it",
            allowed=allowed,
            fix=f"use --plan, or let the launch file return {end} last",
        )
    return ConfigError(
        f"--dry-run with --only {' '.join(only)}, which leaves out {last}",
        allowed=allowed,
        fix="use --plan, or leave out --only",
    )
