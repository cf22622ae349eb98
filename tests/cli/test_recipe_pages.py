"""The pages on data and on evaluating: their commands run, and print what the pages say."""

from pathlib import Path

import pytest

from tests.cli.recipe_pages import (
    DATA,
    EVALUATE,
    blocks,
    page_with_outputs,
    without_numbers,
    without_what_varies,
)

AGAIN = "run `python -m tests.cli.recipe_pages` and read the difference"


def test_the_page_on_data_says_what_its_commands_print(tmp_path: Path):
    assert len(blocks(DATA, "console")) >= 8
    shown = page_with_outputs(DATA, tmp_path)
    assert without_what_varies(shown) == without_what_varies(DATA.read_text()), AGAIN


@pytest.mark.slow  # it trains what it evaluates: 20 s
def test_the_page_on_evaluating_says_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import datasets

    # What `datasets` makes of local files goes with them.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    assert len(blocks(EVALUATE, "console")) == 4
    pages = page_with_outputs(EVALUATE, tmp_path), EVALUATE.read_text()
    shown, said = (without_numbers(without_what_varies(page)) for page in pages)
    assert shown == said, AGAIN
