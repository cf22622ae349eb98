"""What the two diff programs share: their options, and how they end.

As with the `chomp` command, an error on purpose is its message alone and a code, 2 for a command
line that cannot be right; anything else is a bug and keeps its traceback.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from chomp.errors import ChompError, ConfigError
from chomp.variants.diff_report import CONTEXT_LINES
from chomp.variants.file_changes import EXTENSIONS

_INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


class DiffParser(argparse.ArgumentParser):
    """A parser with the options of a comparison, whose errors have three parts."""

    def __init__(self, *, prog: str, description: str) -> None:
        # An abbreviation that works today would be refused once a second option begins so.
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        which = self.add_mutually_exclusive_group()
        which.add_argument(
            "--extensions",
            type=parsed_extensions,
            default=EXTENSIONS,
            metavar="LIST",
            help=f"extensions to look at, by commas (default: {','.join(EXTENSIONS)})",
        )
        which.add_argument(
            "--all-files",
            dest="extensions",
            action="store_const",
            const=None,
            help="look at files of any kind",
        )
        self.add_argument(
            "--context-lines",
            type=int,
            default=CONTEXT_LINES,
            metavar="N",
            help="unchanged lines shown around a change (default: %(default)s)",
        )

    def error(self, text: str) -> NoReturn:
        """Raise `ConfigError` in the place of ending the process."""
        raise ConfigError(
            text, allowed="the arguments that --help lists", fix="correct the command"
        )


def parsed_extensions(text: str) -> tuple[str, ...]:
    """The extensions in a list by commas, each with its dot."""
    names = [name.strip() for name in text.split(",")]
    if not all(name.strip(".") for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} holds an empty extension")
    return tuple(dict.fromkeys(name if name.startswith(".") else f".{name}" for name in names))


def exit_code(program: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Run a program and say what goes wrong; the code to end with."""
    try:
        program(arguments)
    except ChompError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0
