"""The page on bringing your own data: its commands run, and print what it says they print."""

from pathlib import Path

from tests.cli.recipe_page import PAGE, blocks, page_with_outputs, without_hashes


def test_the_page_says_what_its_commands_print(tmp_path: Path):
    assert len(blocks("console")) >= 8
    assert without_hashes(page_with_outputs(tmp_path)) == without_hashes(PAGE.read_text()), (
        "run `python -m tests.cli.recipe_page` and read the difference"
    )
