"""A comparison written down: `index.html` for people, `summary.md` and `summary.json` beside it."""

from datetime import UTC, datetime
from pathlib import Path

from chomp.errors import require
from chomp.storage import json_text, make_folder, read_bytes, write_text_atomic
from chomp.variants.diff_page import GENERATOR, diff_page
from chomp.variants.diff_summary import summary_json, summary_markdown
from chomp.variants.file_changes import FolderChanges

CONTEXT_LINES = 3


def write_report(
    changes: FolderChanges,
    out: Path,
    *,
    context_lines: int = CONTEXT_LINES,
    show_unchanged: bool = False,
    made_at: datetime | None = None,
) -> Path:
    """The page's path, once it and its summaries are in `out`, which is made.

    An earlier report there is replaced; a page that is not a report is left alone. `made_at` is the
    time the report bears, now unless given.
    """
    require(
        context_lines >= 0,
        f"context_lines={context_lines}",
        allowed="0 or more lines around a change",
        fix="use 0 to show only changed lines",
    )
    # A mistyped folder may hold somebody's site.
    page = out / "index.html"
    require(
        not page.exists() or f'content="{GENERATOR}"'.encode() in read_bytes(page)[:2000],
        f"{page} exists and is not a report of this program",
        allowed="a new folder, or one with an earlier report",
        fix="choose another folder, or remove that page",
    )
    now = (made_at or datetime.now(UTC)).astimezone(UTC)
    html = diff_page(
        changes, made_at=now, context_lines=context_lines, show_unchanged=show_unchanged
    )
    facts = json_text(summary_json(changes, made_at=now), name="summary.json", indent=2)
    # The page comes last: where there is one, its summaries are of the same comparison.
    make_folder(out)
    write_text_atomic(out / "summary.md", summary_markdown(changes, made_at=now))
    write_text_atomic(out / "summary.json", f"{facts}\n")
    write_text_atomic(page, html)
    return page
