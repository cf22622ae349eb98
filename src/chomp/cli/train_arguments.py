"""The options of `chomp train`, each with its type and its line of help.

Some are those of launch files too (launch/command_line.py), in the same words: a test compares
them. They are not imported from there, since that takes longer than `chomp --help` may.
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
        "STEP: go back to that one; newer ones are moved aside. Default: continue what there is.",
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
Force = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX",
        help="Run matching steps again from the start; earlier results are moved aside.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD",
        help="Go on with an earlier run though this field of its schedule has changed.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Where steps run: local (this process, the default), process (processes of this "
        "machine) or ray (a cluster).",
    ),
]
MaxConcurrent = Annotated[
    int | None, typer.Option(metavar="N", help="Steps that may run at the same time.")
]
Restarts = Annotated[
    int, typer.Option(metavar="N", help="Start again up to N times after exit code 75.")
]
