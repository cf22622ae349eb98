"""The tutorial on the executor: its commands run, and print what it says they print."""

from pathlib import Path

from tests.forked_commands import ForkedCommands
from tests.launch.tutorial_page import PAGE, page_with_outputs


def test_the_tutorial_says_what_its_commands_print(commands: ForkedCommands, tmp_path: Path):
    assert page_with_outputs(tmp_path, commands) == PAGE.read_text(), (
        "run `python -m tests.launch.tutorial_page` and read the difference"
    )


def test_the_tutorial_shows_every_way_to_choose_and_to_change():
    said = " ".join(PAGE.read_text().split())
    for flag in ("--plan", "--only", "--force", "--strict", "--max-concurrent", "--on", "-o"):
        assert f"{flag} " in said or f"`{flag}`" in said
