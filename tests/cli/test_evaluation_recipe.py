"""The page on evaluating a run: its commands run, and print what it says they print."""

from pathlib import Path

import datasets
import pytest

from tests.cli.evaluation_page import PAGE, blocks, page_with_outputs, without_numbers


@pytest.mark.slow  # it trains what it evaluates: 20 s
def test_the_page_says_what_its_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # What `datasets` makes of local files goes with them.
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    assert len(blocks("console")) == 4
    assert without_numbers(page_with_outputs(tmp_path)) == without_numbers(PAGE.read_text()), (
        "run `python -m tests.cli.evaluation_page` and read the difference"
    )
