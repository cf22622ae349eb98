"""The `chomp` command: parse, run, and end with the right code.

As in launch files, a `ChompError` ends the command with its message alone; any other exception is a
bug and keeps its traceback.
"""

import sys
from collections.abc import Sequence

from chomp.cli.commands import app
from chomp.cli.options import Action
from chomp.errors import ChompError, ConfigError, RunInterrupted
from chomp.screen import NO_READER_EXIT_CODE, checked_screen, is_reader_gone


def main() -> None:
    """Do what the command line says; ends the process with the exit code."""
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: Sequence[str]) -> int:
    """Do what the arguments say, print what goes wrong, and return the exit code."""
    with checked_screen():
        return _exit_code(arguments)


# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        action = _parsed(arguments)
        code = 0
        if action is not None:
            from chomp.launch.console import show_log_warnings
            from chomp.storage.paths import require_current_folder

            show_log_warnings()
            require_current_folder()
            code = action()
        sys.stdout.flush()
        return code
    except (BrokenPipeError, SystemExit) as error:
        if not is_reader_gone(error):
            raise
        return NO_READER_EXIT_CODE
    except RunInterrupted as stop:
        from chomp.launch.console import print_stop

        print_stop(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        from chomp.launch.console import print_stop
        from chomp.launch.step_result import INTERRUPTED_EXIT_CODE

        print_stop("Run the same command again to go on.")
        return INTERRUPTED_EXIT_CODE
    except ChompError as error:
        from chomp.launch.console import print_error

        print_error(error)
        return error.exit_code


def _parsed(arguments: Sequence[str]) -> Action | None:
    """What is to be done; None once help or the version was shown."""
    try:
        parsed = app(list(arguments), prog_name="chomp", standalone_mode=False)
    except Exception as error:
        # Wrong arguments: typer raises these out of its own or an installed click, by version.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return None
        raise ConfigError(
            error.format_message().rstrip(".?"),
            allowed="the commands and options that --help lists",
            fix="correct the command line",
        ) from error
    return parsed if callable(parsed) else None


if __name__ == "__main__":
    main()
