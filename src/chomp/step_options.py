"""Options of commands that run steps, each with its type and its line of help.

`chomp train` and launch files declare the same ones. They have a module of their own since both the
command line and the launch room import it, the one in less time than that room takes.
"""

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override",
        "--set",
        "-o",
        metavar="KEY=VALUE",
        help="Change a dotted config field; of two values for one field the last wins.",
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
        help="Continue an earlier run although this field of its schedule has changed.",
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
VerifySources = Annotated[
    bool,
    typer.Option(
        "--verify-sources",
        help="Read all source files again; else only those that changed since they were read.",
    ),
]
MaxConcurrent = Annotated[
    int | None, typer.Option(metavar="N", help="Steps that may run at the same time.")
]
Restarts = Annotated[
    int, typer.Option(metavar="N", help="Restart up to N times after exit code 75 (preempted).")
]
