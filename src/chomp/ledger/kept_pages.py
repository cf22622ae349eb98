"""The two pages of the ledger in a checkout: written, and looked at for being out of date."""

from pathlib import Path

from chomp.ledger.html_page import html_page
from chomp.ledger.markdown_page import markdown_page
from chomp.ledger.result_file import RESULTS
from chomp.ledger.table import ledger_rows
from chomp.storage import read_text, write_text_atomic

MARKDOWN = "docs/reports/ledger.md"
HTML = "docs/reports/ledger.html"


def has_ledger(root: Path) -> bool:
    """Whether a checkout keeps a ledger: one of its pages is there, or a result."""
    pages = [root / MARKDOWN, root / HTML]
    return any(path.is_file() for path in (*pages, *(root / RESULTS).glob("*.json")))


def ledger_pages(root: Path) -> dict[str, str]:
    """What the pages of a checkout should say, by their paths in it."""
    rows = ledger_rows(root)
    return {MARKDOWN: markdown_page(rows), HTML: html_page(rows)}


def write_ledger(root: Path) -> list[str]:
    """The pages are what the results make them; the paths of those that were not."""
    stale = stale_pages(root)
    pages = ledger_pages(root)
    for name in stale:
        write_text_atomic(root / name, pages[name])
    return stale


def stale_pages(root: Path) -> list[str]:
    """The pages that say something else than the results, or are not there."""
    return [
        name
        for name, text in ledger_pages(root).items()
        if not (root / name).is_file() or read_text(root / name) != text
    ]
