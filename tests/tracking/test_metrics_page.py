"""The page of metrics is the table of names."""

from pathlib import Path

from chomp.tracking import METRICS
from scripts.metrics_page import metrics_page

PAGE = Path(__file__).parents[2] / "docs" / "references" / "metrics.md"


def test_the_page_is_made_from_the_names() -> None:
    assert PAGE.read_text() == metrics_page(), (
        "run: python scripts/metrics_page.py > docs/references/metrics.md"
    )


def test_every_name_and_short_key_is_on_the_page_in_a_section_of_its_own() -> None:
    page = metrics_page()
    for metric in METRICS.values():
        assert page.count(f"| `{metric.key}` |") == 1
        assert metric.short is None or f"`{metric.short}`" in page
    assert "## Other" not in page
