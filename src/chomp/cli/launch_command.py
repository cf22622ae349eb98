"""`chomp launch`: a command in several processes that train together."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp launch local --processes 2 -- python experiments/grug/base/launch.py
  chomp launch local --processes 2 --devices-per-process 4 -- chomp train configs/debug_smoke.yaml
"""

launch_app = typer.Typer(
    help="Processes that train together.", no_args_is_help=True, rich_markup_mode=None
)


@launch_app.callback()
def _top() -> None:
    """Keeps `local` a command of its own: typer would make the only one the whole."""


@launch_app.command(
    help="Start a command several times on this machine, as processes that train together.",
    epilog=EXAMPLES,
)
def local(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="A launch file, or `chomp train CONFIG`."),
    ] = None,
    processes: Annotated[
        int, typer.Option(metavar="N", help="How many processes train together.")
    ] = 2,
    devices_per_process: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="GPUs of each, where there are any (default: all shared out), else "
            "CPU devices (default: 1).",
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(metavar="N", help="Start all of them again up to N times after one was lost."),
    ] = 0,
) -> Action:
    """What `chomp launch local` does."""
    from chomp.launch.launch_local import launched_locally

    return partial(
        launched_locally,
        command or [],
        processes=processes,
        devices_per_process=devices_per_process,
        restarts=restarts,
    )
