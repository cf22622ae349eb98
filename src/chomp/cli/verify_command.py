"""`chomp verify-resume`: what it takes. What it does is in verify_resume.py."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action, Prefix, Template, given_config
from chomp.errors import require
from chomp.screen import outliving_the_screen
from chomp.step_options import Overrides

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp verify-resume configs/debug_smoke.yaml
  chomp verify-resume configs/debug_smoke.yaml --kills 20 --seed 7
  chomp verify-resume configs/base_smoke.yaml --devices 1,2,4 --keep runs/verified
  chomp verify-resume experiments/grug/base/launch.py --steps 60
"""


def verify_resume(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file or a launch file.")],
    overrides: Overrides = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Steps to run; default: the config's.")
    ] = None,
    kills: Annotated[int, typer.Option(metavar="K", min=1, help="How often to kill the run.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the instants at which it is killed.")] = 0,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Move the run between these numbers of CPU devices, another one after each kill.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Run there and keep it all; default: a temporary folder, kept if runs differ.",
        ),
    ] = None,
    prefix: Prefix = None,
    template: Template = None,
) -> Action:
    """What `chomp verify-resume` does."""
    from chomp.cli.verify_resume import Asked, verified_resume

    asked = Asked(steps=steps, kills=kills, seed=seed, devices=_counts(devices), keep=keep)
    given = given_config(config, overrides, prefix, template)
    return outliving_the_screen()(partial(verified_resume, given, asked))


def _counts(text: str | None) -> tuple[int, ...]:
    """The numbers of devices in `1,2,4`; none where nothing was given."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    is_right = all(part.isdecimal() and int(part) > 0 for part in parts)
    require(
        is_right and len(set(parts)) == len(parts) > 1,
        given=f"--devices {text}",
        allowed="at least two different numbers of devices, such as 1,2,4",
        fix="correct the list, or leave it out to stay on the devices that are there",
    )
    return tuple(map(int, parts))
