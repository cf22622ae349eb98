"""The command line of every launch file: plan, try out or run its steps, with overrides.

A `ChompError` ends the command with its message alone; the traceback stays in the step's folder.
Any other exception is a bug, in a step or in the launch file, and keeps its traceback.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from chomp.config import apply_overrides
from chomp.config.fields import ConfigClass
from chomp.errors import ChompError, LaunchError, RunInterrupted, require
from chomp.executor import ExecutorStep, PlannedStep, plan_steps
from chomp.executor.pins import identities_at
from chomp.launch.allowed import allowed_fields, in_earlier_folder, refuse_other_run
from chomp.launch.command_line import CommandLine, parsed_command_line
from chomp.launch.launching import DryRun, Report, launched, require_dry_run
from chomp.launch.restarts import require_restartable, restarted, this_command
from chomp.launch.sweep import Point, Sweep, grid_of, points_in_file, sweep_of
from chomp.launch.sweep_table import DEFAULT_METRIC, LOWEST, require_order, tell_sweep
from chomp.launch.telling import tell_error, tell_stop, tell_warnings_only
from chomp.launch.together import is_spokesman
from chomp.screen import (
    NO_READER_EXIT_CODE,
    checked_screen,
    is_reader_gone,
    outliving_the_screen,
)
from chomp.storage import join
from chomp.storage.paths import require_current_folder

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


def _exit_code(file: _LaunchFile[L]) -> int:
    tell_warnings_only()
    try:
        asked = parsed_command_line(file.description)
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
        tell_stop(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        tell_stop("The same command continues.")
        return INTERRUPTED_EXIT_CODE
    except ChompError as error:
        tell_error(error)
        return error.exit_code


def _launched(file: _LaunchFile[L], asked: CommandLine) -> int:
    """Plan, try out or run, as the options say; the exit code."""
    options = asked.options
    require_current_folder()
    _require_sensible_table(asked)
    require_restartable(asked.restarts, asked.force)
    if asked.restarts and not (options.is_plan or options.is_dry_run):
        return restarted(this_command(sys.argv[0]), asked.restarts)
    if options.is_dry_run:
        require_dry_run(file.dry_run, fix="use --plan, or pass dry_run= to executor_main")
    # Overrides come before steps: what the steps are may depend on any field.
    config = apply_overrides(file.config, asked.overrides)
    if asked.is_sweep:
        return _swept(sweep_of(file.steps_of, config, _points(asked)), asked)
    steps = list(file.steps_of(config))
    planned = _planned(steps, asked)
    if _ends_with(planned, steps):
        return launched(planned, options, report=file.report, dry_run=file.dry_run)
    # Without the last step there is nothing that the launch file could say anything of.
    if options.is_dry_run:
        _refuse_dry_run(planned, steps, asked)
    return launched(planned, options)


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
    code = launched(planned, asked.options)
    if not asked.options.is_plan and is_spokesman():
        identities, there = identities_at(prefix), {item.path: item for item in planned}
        paths = [join(prefix, f"{run.name}-{identities.of(run).hash}") for run in sweep.runs]
        runs = dict(zip(sweep.points, map(there.get, paths), strict=True))
        planned_runs = {point: run for point, run in runs.items() if run is not None}
        tell_sweep(planned_runs, asked.sweep_by, best=asked.sweep_best)
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
