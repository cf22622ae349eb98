"""The command line of every launch file: plan, try out or run its steps, with overrides.

A `ChompError` ends the command with its message alone; the traceback stays in the step's folder.
Any other exception is a bug, in a step or in the launch file, and keeps its traceback.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial, wraps
from typing import Annotated, TypeVar

import typer

from chomp.config import apply_overrides
from chomp.config.fields import ConfigClass
from chomp.errors import ChompError, ConfigError, LaunchError, RunInterrupted, require
from chomp.executor import ExecutorStep, plan_steps, planning_only
from chomp.executor.identity import identities_at
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
    bool, typer.Option("--dry-run", help="Check the config and show what a run would take.")
]
_Attention = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Attention backend to force: -o model.attention=NAME."),
]
_ONLY = "Run matching steps alone, and what they need that is not there."
_Only = Annotated[list[str] | None, typer.Option(metavar="REGEX", help=_ONLY)]
_Prefix = Annotated[
    str | None, typer.Option(help="Where outputs go; default: CHOMP_PREFIX, or outputs/.")
]
_Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse a result whose source or settings differ.")
]
_SWEEP = "A run for each value; of several such options, for each combination."
_Sweep = Annotated[list[str] | None, typer.Option(metavar="KEY=A,B,...", help=_SWEEP)]
_SweepFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="A run for each mapping in a YAML list.")
]
_SweepBy = Annotated[str, typer.Option(metavar="METRIC", help="What a sweep's table is sorted by.")]
_BEST = "Which value of that metric is the best."
_SweepBest = Annotated[str, typer.Option(metavar=f"{LOWEST}|{HIGHEST}", help=_BEST)]


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
        for option, is_given in (
            ("--allow", allow),
            ("--dry-run", is_dry_run),
            ("both --sweep and --sweep-file", sweep and sweep_file is not None),
        ):
            require(
                not (is_sweep and is_given),
                f"a sweep with {option}",
                allowed="a sweep by --sweep or by --sweep-file, planned or run",
                fix="leave it out, or launch that run by itself with -o",
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
                points = grid_of(sweep or []) if sweep_file is None else points_in_file(sweep_file)
                with planning_only(plan), read_files_again(verify_sources):
                    swept = sweep_of(steps_of, changed, points)
                # The table compares runs, so those of a template that was edited are made again.
                planned = plan_steps(
                    swept.steps,
                    prefix=options.prefix,
                    only=only,
                    force=force,
                    is_source_identity=True,
                )
                code = launch_plan(planned, options)
                if not plan and is_lead_process():
                    identities = identities_at(options.prefix)
                    titles = [f"{run.name}-{identities.of(run).hash}" for run in swept.runs]
                    there = {item.title: item for item in planned}
                    runs = zip(swept.points, titles, strict=True)
                    shown = {point: there[title] for point, title in runs if title in there}
                    print_sweep(shown, sweep_by, best=sweep_best)
                return code
            with planning_only(plan), read_files_again(verify_sources):
                steps = list(steps_of(changed))
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
                identities = identities_at(options.prefix)
                path = join(options.prefix, f"{last.name}-{identities.of(last).hash}")
                steps[-1] = in_earlier_folder(last, path, identities, allowed)
            planned = plan_steps(
                steps, prefix=options.prefix, only=only, force=force, allow=allowed
            )
            if planned[-1].step.name == last.name:  # --only may have left it out
                # Then only --allow has made it another run than its name says.
                if is_named_by_hash:
                    refuse_other_run(planned[-1], allowed, elsewhere="choose another --prefix")
                return launch_plan(planned, options, report=report, dry_run=dry_run)
            # Without its last step there is nothing that the launch file could say anything about.
            if not is_dry_run:
                return launch_plan(planned, options)
            fault, fix = f"with --only {' '.join(only)}, which leaves out", "leave out --only"
            if any(item.step.name == last.name for item in planned):
                end = planned[-1].step.name
                fault = (
                    f"of a launch file whose last step is needed by {end}, which comes after it:"
                )
                fix = f"let the launch file return {end} last"
            raise ConfigError(
                f"--dry-run {fault} {last.name}",
                allowed="--dry-run of the last step, which is what can be tried out",
                fix=f"use --plan, or {fix}",
            )

    with checked_screen():
        show_log_warnings()
        try:
            chosen = _parse(launch, description)
            code = 0 if chosen is None else chosen()
            sys.stdout.flush()
        except (BrokenPipeError, SystemExit) as error:
            if not is_reader_gone(error):
                raise
            code = NO_READER_EXIT_CODE
        except RunInterrupted as stop:
            print_stop(str(stop))
            code = stop.exit_code
        except KeyboardInterrupt:
            print_stop("The same command continues.")
            code = INTERRUPTED_EXIT_CODE
        except ChompError as error:
            print_error(error)
            code = error.exit_code
    sys.exit(code)


def _parse(command: Callable[..., int], help: str) -> Callable[[], int] | None:
    """`command` with the options of the command line, or None once help was shown.

    Typer only parses: it has its own ideas about KeyboardInterrupt, EOFError and exit codes.
    """

    @wraps(command)
    def with_options(**options: object) -> Callable[[], int]:
        return partial(command, **options)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=help)(with_options)
    try:
        parsed = app(standalone_mode=False)
    except Exception as error:
        # Wrong options: typer raises these out of its own or an installed click, by version.
        if not hasattr(error, "format_message"):
            raise
        raise ConfigError(
            error.format_message().rstrip("."),
            allowed="the options that --help lists",
            fix="correct the command line",
        ) from error
    return parsed if isinstance(parsed, partial) else None
