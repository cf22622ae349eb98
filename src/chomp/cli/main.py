"""The `chomp` command: parse, run, and end with the right code.

As in launch files, a `ChompError` ends the command with its message alone; any other exception is a
bug and keeps its traceback.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from chomp.cli import commands
from chomp.cli.options import Command, app
from chomp.errors import ChompError, ConfigError, RunInterrupted
from chomp.storage.screen import NO_READER_EXIT_CODE, checked_screen, is_reader_gone

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.


# Files of commands that start JAX on devices; the others need much less memory.
_ON_DEVICES = ("train", "verify_resume", "compare", "evaluate", "generate", "harness")


def main() -> None:
    """Do what the command line says; ends the process with the exit code."""
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: Sequence[str]) -> int:
    """Do what the arguments say, print what goes wrong, and return the exit code."""
    with checked_screen():
        try:
            asked = parse(arguments)
            code = 0 if asked is None else run(asked)
            sys.stdout.flush()
            return code
        except (BrokenPipeError, SystemExit) as error:
            if not is_reader_gone(error):
                raise
            return NO_READER_EXIT_CODE
        except (RunInterrupted, KeyboardInterrupt) as stop:
            from chomp.launch.console import print_stop
            from chomp.launch.step_result import INTERRUPTED_EXIT_CODE

            if isinstance(stop, RunInterrupted):
                print_stop(str(stop))
                return stop.exit_code
            print_stop("Run the same command again to go on.")
            return INTERRUPTED_EXIT_CODE
        except ChompError as error:
            from chomp.launch.console import print_error

            print_error(error)
            return error.exit_code


def parse(arguments: Sequence[str]) -> Command | None:
    """What the arguments ask for; None once help or the version was shown.

    Nothing is run inside typer, which has its own ideas about KeyboardInterrupt, EOFError and exit
    codes.
    """
    try:
        asked = app(list(arguments), prog_name="chomp", standalone_mode=False)
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
    return asked if isinstance(asked, Command) else None


def run(asked: Command) -> int:
    """Do what a command asks for; the exit code."""
    from chomp.launch.console import show_log_warnings
    from chomp.storage.paths import require_current_folder, require_process_limits

    show_log_warnings()
    require_current_folder()
    module, _, function = asked.work.partition(":")
    if module in _ON_DEVICES:
        require_process_limits()
    code: int = getattr(import_module(f"chomp.cli.{module}"), function)(asked)
    return code


# --- two commands that only call the library ----------------------------------------------------


def launch_local(asked: commands.LaunchLocal) -> int:
    """Run the processes to their end; the exit code."""
    from chomp.launch.multi_process import launch_locally

    return launch_locally(
        asked.command or [],
        processes=asked.processes,
        devices_per_process=asked.devices_per_process,
        restarts=asked.restarts,
    )


def pin(asked: commands.Pin) -> int:
    """Add, list or remove pins."""
    from chomp.cli.output import say
    from chomp.executor.identity import add_pin, read_pins, remove_pin
    from chomp.launch.run import outputs_folder

    folder = outputs_folder(asked.prefix)
    if asked.is_list:
        pins = read_pins(folder)
        for name, kept in sorted(pins.items()):
            say(f"{name} counts as {kept}")
        if not pins:
            say(f"Nothing is pinned in {folder}.")
    elif asked.remove is not None:
        say(f"{remove_pin(folder, asked.remove)} counts as itself again.")
    else:
        kept, name = add_pin(folder, str(asked.kept), str(asked.other))
        say(f"{name} counts as {kept} from now on. Undo: chomp pin --remove {name}")
    return 0


if __name__ == "__main__":
    main()
