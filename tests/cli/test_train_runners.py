"""Options of `chomp train` that launch files have too, and those that nothing can obey."""

from pathlib import Path
from typing import Annotated, Any, get_args

import pytest

from chomp.cli import config_arguments, train_arguments
from chomp.launch import command_line
from tests.cli.conftest import Chomp


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on", "moon"], "--on moon. Allowed: one of local, process, ray"),
        (["--max-concurrent", "0"], "--max-concurrent 0. Allowed: 1 or more"),
        (["--on", "local", "--max-concurrent", "2"], "Fix: use --on process"),
    ],
)
def test_options_that_nothing_can_obey_are_refused_before_the_launch_file_is_loaded(
    chomp: Chomp, folder: Path, options: list[str], words: str
):
    (folder / "launch.py").write_text("raise AssertionError('it was loaded')\n")
    told = chomp("train", "launch.py", *options)
    assert (told.code, told.out) == (2, "")
    assert words in told.err


@pytest.mark.parametrize(
    ("of_train", "of_launch_files"),
    [
        (config_arguments.Overrides, command_line._Overrides),
        (train_arguments.Force, command_line._Force),
        (train_arguments.Allow, command_line._Allow),
        (train_arguments.On, command_line._On),
        (train_arguments.MaxConcurrent, command_line._MaxConcurrent),
        (train_arguments.Restarts, command_line._Restarts),
    ],
)
def test_an_option_of_launch_files_is_told_in_the_same_words(of_train: Any, of_launch_files: Any):
    assert told(of_train) == told(of_launch_files)


def told(option: Any) -> tuple[Any, ...]:
    """What an option takes and what help says of it."""
    declared, info = get_args(Annotated[option, ...])[:2]
    return declared, info.param_decls, info.metavar, info.help
