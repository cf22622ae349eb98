"""`chomp checkpoint ...`: what each command takes. What it does is in the file named for it."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action

checkpoint_app = typer.Typer(
    no_args_is_help=True, help="Saved states: list, verify, compare, export to safetensors."
)

Place = Annotated[
    str,
    typer.Argument(
        metavar="PLACE",
        help="A run folder, its checkpoints folder (both: the newest), or a step-N.",
    ),
]

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
_VERIFY_EXAMPLES = """\b
Examples:
  chomp checkpoint verify runs/mine
  chomp checkpoint verify runs/mine --all
"""
_DIFF_EXAMPLES = """\b
Examples:
  chomp checkpoint diff runs/mine/checkpoints/step-100 runs/mine
  chomp checkpoint diff runs/mine runs/other --all
"""
_EXPORT_EXAMPLES = """\b
Examples:
  chomp checkpoint export runs/mine --out exported
  chomp checkpoint export runs/mine/checkpoints/step-100 --out exported --dtype bfloat16
"""


class Weights(StrEnum):
    """Which weights of a state are exported."""

    params = "params"
    ema = "ema"


class FloatType(StrEnum):
    """What floating-point weights can be rounded to."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@checkpoint_app.command(
    "list",
    help="Show what checkpoints there are, from their metadata; no array is read.",
    epilog="\b\nExample:\n  chomp checkpoint list runs/mine\n",
)
def list_(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE", help="A run folder, its checkpoints folder, or a step-N in it."
        ),
    ],
) -> Action:
    """What `chomp checkpoint list` does."""
    from chomp.cli.checkpoint_list import list_place

    return partial(list_place, place)


@checkpoint_app.command(
    help="Read the arrays and compare them with the receipt they were saved with.",
    epilog=_VERIFY_EXAMPLES,
)
def verify(
    place: Place,
    every: Annotated[
        bool, typer.Option("--all", help="All checkpoints of the place, not only the newest.")
    ] = False,
) -> Action:
    """What `chomp checkpoint verify` does."""
    from chomp.cli.checkpoint_verify import verify_place

    return partial(verify_place, place, every=every)


@checkpoint_app.command(
    help="Compare two checkpoints: arrays, config, and where in training they are.",
    epilog=_DIFF_EXAMPLES,
)
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A run folder or a step-N.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    every: Annotated[bool, typer.Option("--all", help="Show equal arrays too.")] = False,
) -> Action:
    """What `chomp checkpoint diff` does."""
    from chomp.cli.checkpoint_diff import diff_places

    return partial(diff_places, before, after, every=every)


@checkpoint_app.command(
    help="Write the weights to safetensors, with the config, the tokenizer and the template.",
    epilog=_EXPORT_EXAMPLES,
)
def export(
    place: Place,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="A new folder.", show_default=False)],
    weights: Annotated[
        Weights, typer.Option(help="The weights themselves, or their moving average.")
    ] = Weights.params,
    dtype: Annotated[
        FloatType | None,
        typer.Option(help="Round floating-point weights to this; default: as they were saved."),
    ] = None,
    allow_changed: Annotated[
        bool,
        typer.Option(
            "--allow-changed",
            help="Go on though the run's template is not what the checkpoint was saved with.",
        ),
    ] = False,
) -> Action:
    """What `chomp checkpoint export` does."""
    from chomp.cli.checkpoint_export import export_place

    return partial(
        export_place,
        place,
        out,
        weights=weights.value,
        dtype=None if dtype is None else dtype.value,
        allows_changed=allow_changed,
    )
