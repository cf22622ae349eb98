"""The options of a launch file's command line, parsed: what was asked for, nothing done yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from chomp.errors import ConfigError
from chomp.launch.allowed import allowed_overrides
from chomp.launch.launching import LaunchOptions, outputs_folder
from chomp.launch.sweep_table import DEFAULT_METRIC, HIGHEST, LOWEST
from chomp.step_options import Allow, Force, MaxConcurrent, On, Overrides, Restarts

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


def parsed_command_line(description: str) -> CommandLine | None:
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
