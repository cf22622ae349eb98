"""The options of `chomp train` alone, each with its type and its line of help.

Those that launch files have too are in chomp/step_options.py.
"""

from typing import Annotated

import typer

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file or a launch file.")]
RunDir = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Where the run goes; default: runs/<project>/<name of CONFIG>-<hash of the run>.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="none|latest|STEP",
        help="none: a fresh start, refused where there are checkpoints. latest: there must be one. "
        "STEP: go back to that one; newer ones are moved aside; given again, continue. Default: "
        "continue what there is.",
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Save and end after at most N more steps; the schedule stays that of the whole run, "
        "and the same command continues.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Check the config and show what a run would take; write nothing."
    ),
]
