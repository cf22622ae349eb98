"""`chomp compare`: did a change help? Paired runs at equal budgets, and a verdict."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action, Prefix
from chomp.errors import require

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp compare base moe --seeds 3
  chomp compare base base --set-variant optim.lr=1e-3 --seeds 3 -o train.steps=200
  chomp compare 'outputs/grug/base-*' 'outputs/grug/moe-*' --metric eval/bpb --at flops
  chomp compare base moe --save
"""


class At(StrEnum):
    """What both sides have spent where the verdict is given."""

    tokens = "tokens"
    flops = "flops"
    time = "time"


class Best(StrEnum):
    """Which value of a metric is the best."""

    lowest = "lowest"
    highest = "highest"


_SIDE_HELP = "A variant, a launch file, a YAML file, a run folder, a folder of runs or a pattern."
_Only = "KEY=VALUE"


def compare(
    base: Annotated[str, typer.Argument(metavar="BASE", help=_SIDE_HELP)],
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="Likewise: what was changed.")],
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Run what is missing of N seeds of both, then tell."),
    ] = None,
    first_seed: Annotated[
        int, typer.Option(min=0, metavar="K", help="With --seeds: the first of them.")
    ] = 0,
    metric: Annotated[str, typer.Option(metavar="NAME", help="What is compared.")] = "eval/loss",
    at: Annotated[At, typer.Option(help="The budget that decides; the others are shown.")] = (
        At.tokens
    ),
    best: Annotated[Best, typer.Option(help="Which value of the metric is better.")] = Best.lowest,
    smallest: Annotated[
        float, typer.Option(min=0, metavar="PERCENT", help="Differences below do not matter.")
    ] = 0.1,
    other_data: Annotated[
        bool, typer.Option("--other-data", help="The data is the change: it may differ.")
    ] = False,
    both: Annotated[
        list[str] | None,
        typer.Option("--set", "-o", metavar=_Only, help="With --seeds: change a field of both."),
    ] = None,
    only_base: Annotated[
        list[str] | None, typer.Option("--set-base", metavar=_Only, help="The same, of BASE.")
    ] = None,
    only_variant: Annotated[
        list[str] | None, typer.Option("--set-variant", metavar=_Only, help="The same, of VARIANT.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="With --seeds: local (default), process or ray."),
    ] = None,
    max_concurrent: Annotated[
        int | None, typer.Option(metavar="N", help="With --seeds: runs at the same time.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="With --seeds: show the runs, start none.")
    ] = False,
    prefix: Prefix = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all of it there too.")
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Keep the result for `chomp variant ledger`.")
    ] = False,
    note: Annotated[str, typer.Option(help="With --save: what a reader should know.")] = "",
) -> Action:
    """What `chomp compare` does."""
    running = [*(both or ()), *(only_base or ()), *(only_variant or ())]
    refused = {
        "-o": running,
        "--first-seed": first_seed,
        "--on": on,
        "--max-concurrent": max_concurrent,
        "--plan": plan,
    }
    for option, value in refused.items():
        require(
            seeds is not None or not value,
            given=f"{option} without --seeds",
            allowed=f"{option} where runs are started",
            fix="add --seeds N, or leave it out",
        )
    from chomp.cli.compare_run import CompareOptions, SeedOptions, compared

    asked = CompareOptions(
        base=base,
        variant=variant,
        metric=metric,
        at=str(at),
        best=str(best),
        smallest_percent=smallest,
        is_other_data=other_data,
        prefix=prefix,
        json=json,
        is_saved=save,
        note=note,
        seeds=None
        if seeds is None
        else SeedOptions(
            seeds=tuple(range(first_seed, first_seed + seeds)),
            both=tuple(both or ()),
            base=tuple(only_base or ()),
            variant=tuple(only_variant or ()),
            on=on,
            max_concurrent=max_concurrent,
            is_plan=plan,
        ),
    )
    return partial(compared, asked)
