"""Options and arguments that several commands share, each with its type and its line of help.

Those that launch files have too are in chomp/step_options.py.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # it is imported once a command starts
    from chomp.cli.load_config import GivenConfig

# What parsing gives back: to be done once the whole line is parsed.
Action = Callable[[], int]


def later(command: Callable[..., int]) -> Callable[..., Action]:
    """Let typer only parse: the command itself is run outside of it.

    Typer has its own ideas about KeyboardInterrupt, EOFError and exit codes.
    """

    @wraps(command)
    def parsed(*arguments: object, **options: object) -> Action:
        return partial(command, *arguments, **options)

    return parsed


def group(help: str) -> typer.Typer:
    """Commands under one word, such as `chomp data`."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def examples(*lines: str) -> str:
    """Examples below the help of a command; the mark keeps the lines of its paragraph."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines), ""])


def config_of(
    path: str,
    overrides: list[str] | None = None,
    prefix: str | None = None,
    template: str | None = None,
) -> "GivenConfig":
    """CONFIG and its options, for the command itself."""
    from chomp.cli.load_config import GivenConfig  # noqa: PLC0415  # only once a command starts

    return GivenConfig(
        path=path, overrides=tuple(overrides or ()), prefix=prefix, template=template
    )


class Weights(StrEnum):
    """One set of weights of a checkpoint."""

    params = "params"
    ema = "ema"


ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file or a launch file.")]
Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, a launch file or a run folder.")
]
Prefix = Annotated[
    str | None, typer.Option(help="Folder of outputs; default: CHOMP_PREFIX, or outputs/.")
]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The template that a YAML file configures, by its name under experiments/grug or its "
        "folder; default: its key `template`, or megalodon.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run the run's template, whoever wrote it.")]

# Of commands that look at the model of a run.
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT",
        help="A run folder or its checkpoints folder (the newest checkpoint), or a step-N.",
    ),
]
AllowChanged = Annotated[
    bool,
    typer.Option(
        "--allow-changed",
        help="Go on if the run's config or template is not what the checkpoint was saved with.",
    ),
]
RunTemplate = Annotated[
    str | None,
    typer.Option("--template", metavar="FOLDER", help="Replaces the run's own template."),
]
Tokenizer = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Replaces the run's own tokenizer.")
]
Out = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Where the JSON goes; default: the run's artifacts/."),
]
OneOfTheWeights = Annotated[
    Weights | None,
    typer.Option(
        help="The weights themselves, or their moving average; default: the average, if any."
    ),
]

Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="A run folder or its checkpoints folder (the newest checkpoint), or a step-N.",
    ),
]
RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")]
Variant = Annotated[str, typer.Argument(metavar="NAME", help="A folder under experiments/grug.")]
