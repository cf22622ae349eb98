"""`chomp pin`: let one identity of a step count as another, whose result is kept."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import Annotated

import typer

from chomp.cli.config_arguments import Action, Prefix
from chomp.cli.terminal import say
from chomp.errors import require

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp pin outputs/grug/base-<hash that is done> outputs/grug/base-<hash that --plan shows>
  chomp pin --list
  chomp pin --remove grug/base-<hash>
"""


def pin(
    kept: Annotated[
        str | None,
        typer.Argument(metavar="A", help="The result that is kept: NAME-HASH or its folder."),
    ] = None,
    other: Annotated[
        str | None,
        typer.Argument(metavar="B", help="The identity that shall count as it, likewise."),
    ] = None,
    is_list: Annotated[bool, typer.Option("--list", help="Show what is pinned.")] = False,
    remove: Annotated[
        str | None, typer.Option(metavar="B", help="Let B count as itself again.")
    ] = None,
    prefix: Prefix = None,
) -> Action:
    """What `chomp pin` does."""
    pair = [text for text in (kept, other) if text is not None]
    wishes = [bool(pair), is_list, remove is not None]
    require(
        wishes.count(True) == 1 and len(pair) in (0, 2),
        given="chomp pin with "
        + (" ".join([*pair, *["--list"] * is_list, *([remove] if remove else [])]) or "nothing"),
        allowed="chomp pin A B, chomp pin --list, or chomp pin --remove B",
        fix="give one of them; A is the result that is kept",
    )
    if is_list:
        return partial(_list, prefix)
    return partial(_pin, prefix, *pair) if pair else partial(_remove, prefix, str(remove))


def _pin(prefix: str | None, kept: str, other: str) -> int:
    from chomp.executor.pins import add_pin
    from chomp.launch.launching import outputs_folder

    kept_title, other_title = add_pin(outputs_folder(prefix), kept, other)
    say(f"{other_title} counts as {kept_title} from now on. Undo: chomp pin --remove {other_title}")
    return 0


def _remove(prefix: str | None, other: str) -> int:
    from chomp.executor.pins import remove_pin
    from chomp.launch.launching import outputs_folder

    say(f"{remove_pin(outputs_folder(prefix), other)} counts as itself again.")
    return 0


def _list(prefix: str | None) -> int:
    from chomp.executor.pins import read_pins
    from chomp.launch.launching import outputs_folder

    folder = outputs_folder(prefix)
    pins = read_pins(folder)
    for other, kept in sorted(pins.items()):
        say(f"{other} counts as {kept}")
    if not pins:
        say(f"Nothing is pinned in {folder}.")
    return 0
