"""The `chomp` command: parse, do, and end with the right code.

Typer only parses. A command's function gives back what is to be done, which is done out here: typer
has its own ideas about KeyboardInterrupt, EOFError and exit codes. As in launch files, a
`ChompError` ends the command with its message alone; any other exception is a bug and keeps its
traceback.
"""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from chomp import __version__
from chomp.cli import (
    compare_command,
    evaluation_commands,
    pin_command,
    report_command,
    train_command,
    verify_command,
    watch_command,
)
from chomp.cli.checkpoint_commands import checkpoint_app
from chomp.cli.config_arguments import Action
from chomp.cli.config_commands import config_app
from chomp.cli.data_commands import data_app
from chomp.cli.launch_command import launch_app
from chomp.cli.metrics_commands import metrics_app
from chomp.cli.variant_commands import variant_app
from chomp.errors import ChompError, ConfigError, RunInterrupted, message
from chomp.screen import NO_READER_EXIT_CODE, checked_screen, is_reader_gone

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes around help take 0.55 s in the place of 0.4
)
app.command(help="Train what a config says, or continue it.", epilog=train_command.EXAMPLES)(
    train_command.train
)
app.command(
    "verify-resume",
    help="Kill a run at random, resume it, and compare it with an unbroken one.",
    epilog=verify_command.EXAMPLES,
)(verify_command.verify_resume)
app.command(
    "eval",
    help="Held-out loss and bits per byte of a checkpoint, on its run's data or other data.",
    epilog=evaluation_commands.EVAL_EXAMPLES,
)(evaluation_commands.eval_)
app.command(help="Text that a checkpoint writes.", epilog=evaluation_commands.GENERATE_EXAMPLES)(
    evaluation_commands.generate
)
app.command(
    help="lm-eval tasks on a checkpoint (extra `harness`).",
    epilog=evaluation_commands.HARNESS_EXAMPLES,
)(evaluation_commands.harness)
app.command(
    help="A page of one or several runs: curves, evaluations, samples, time, config.",
    epilog=report_command.EXAMPLES,
)(report_command.report)
app.command(
    help="A run in the terminal while it trains: curves, evaluations, time left, last sample.",
    epilog=watch_command.EXAMPLES,
)(watch_command.watch)
app.command(
    help="Whether a change helped: paired runs at equal tokens, FLOPs and time.",
    epilog=compare_command.EXAMPLES,
)(compare_command.compare)
app.command(
    "pin",
    help="Let one identity of a step count as another, whose result is kept.",
    epilog=pin_command.EXAMPLES,
)(pin_command.pin)
app.add_typer(launch_app, name="launch")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(metrics_app, name="metrics")
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(variant_app, name="variant")


def main() -> None:
    """Do what the command line says; ends the process with the exit code."""
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: Sequence[str]) -> int:
    """Do what the arguments say, and tell what goes wrong; the exit code."""
    with checked_screen():
        return _exit_code(arguments)


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        action = _parsed(arguments)
        code = 0 if action is None else _done(action)
        sys.stdout.flush()
        return code
    except (BrokenPipeError, SystemExit) as error:
        if not is_reader_gone(error):
            raise
        return NO_READER_EXIT_CODE
    except RunInterrupted as stop:
        _tell_stop(str(stop))
        return stop.exit_code
    except KeyboardInterrupt:
        from chomp.launch.main import INTERRUPTED_EXIT_CODE

        _tell_stop("Run the same command again to go on.")
        return INTERRUPTED_EXIT_CODE
    except ChompError as error:
        from chomp.launch.telling import tell_error

        tell_error(error)
        return error.exit_code


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"chomp {__version__}")
        raise typer.Exit


@app.callback(help="Language-model pretraining in JAX.")
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


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
        fault = error.format_message().rstrip(".?")
        raise ConfigError(
            message(
                given=fault,
                allowed="the commands and options that --help lists",
                fix="correct the command line",
            )
        ) from error
    return parsed if callable(parsed) else None


def _done(action: Action) -> int:
    from chomp.launch.telling import tell_warnings_only
    from chomp.storage.paths import require_current_folder

    tell_warnings_only()
    require_current_folder()
    return action()


def _tell_stop(why: str) -> None:
    from chomp.launch.telling import tell_stop

    tell_stop(why)


if __name__ == "__main__":
    main()
