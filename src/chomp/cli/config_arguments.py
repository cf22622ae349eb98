"""CONFIG and the options that go with it, as every command that takes one declares them."""

from collections.abc import Callable
from typing import Annotated

import typer

from chomp.cli.given_config import GivenConfig

# What a command's function gives back: to be done once the whole line is parsed.
Action = Callable[[], int]

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, a launch file or a run folder.")
]
Prefix = Annotated[
    str | None, typer.Option(help="Where outputs are; default: CHOMP_PREFIX, or outputs/.")
]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The template that a YAML file configures, by its name under experiments/grug or its "
        "folder; default: its key `template`, or megalodon.",
    ),
]


def given_config(
    path: str, overrides: list[str] | None, prefix: str | None, template: str | None
) -> GivenConfig:
    """What a command line says about one config."""
    return GivenConfig(
        path=path,
        overrides=tuple(overrides or ()),
        prefix=prefix,
        template=template,
    )
