"""The options of `chomp compare`, each with its type and its line of help."""

from enum import StrEnum
from typing import Annotated

import typer


class At(StrEnum):
    """What both sides have spent where the verdict is given."""

    tokens = "tokens"
    flops = "flops"
    time = "time"


class Best(StrEnum):
    """Which value of a metric is the best."""

    lowest = "lowest"
    highest = "highest"


_Field = "KEY=VALUE"

Base = Annotated[
    str,
    typer.Argument(
        metavar="BASE",
        help="A variant, a launch file, a YAML file, a run folder, a folder of runs or a pattern.",
    ),
]
Variant = Annotated[str, typer.Argument(metavar="VARIANT", help="Likewise: what was changed.")]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Run what is missing of N seeds of both, then tell."),
]
FirstSeed = Annotated[
    int, typer.Option(min=0, metavar="K", help="With --seeds: the first of them.")
]
MetricName = Annotated[str, typer.Option(metavar="NAME", help="What is compared.")]
Deciding = Annotated[At, typer.Option(help="The budget that decides; the others are shown.")]
BestValue = Annotated[
    Best | None,
    typer.Option(
        help="Which value of the metric is better; of a loss, bpb or perplexity the lowest is."
    ),
]
Smallest = Annotated[
    float, typer.Option(min=0, metavar="PERCENT", help="Differences below do not matter.")
]
OtherData = Annotated[
    bool, typer.Option("--other-data", help="The data is the change: it may differ.")
]
Both = Annotated[
    list[str] | None,
    typer.Option(
        "--override", "--set", "-o", metavar=_Field, help="With --seeds: change a field of both."
    ),
]
OnlyBase = Annotated[
    list[str] | None, typer.Option("--set-base", metavar=_Field, help="The same, of BASE.")
]
OnlyVariant = Annotated[
    list[str] | None, typer.Option("--set-variant", metavar=_Field, help="The same, of VARIANT.")
]
On = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="With --seeds: local (default), process or ray."),
]
MaxConcurrent = Annotated[
    int | None, typer.Option(metavar="N", help="With --seeds: runs at the same time.")
]
Plan = Annotated[bool, typer.Option("--plan", help="With --seeds: show the runs, start none.")]
Force = Annotated[
    bool, typer.Option("--force", help="With --seeds: make all runs again, also those there are.")
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write all of it there too.")
]
Save = Annotated[bool, typer.Option("--save", help="Keep the result for `chomp variant ledger`.")]
Note = Annotated[str, typer.Option(help="With --save: what a reader should know.")]
