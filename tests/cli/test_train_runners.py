"""Options of `chomp train` that nothing can obey."""

from pathlib import Path

import pytest

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
