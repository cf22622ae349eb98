"""The comment of a pull request about the variants it adds and edits."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from chomp.variants.diff_summary import code_text

# By which the workflow finds its own comment again.
MARKER = "<!-- grug-variant-diff-report -->"


def comment_markdown(manifest: Mapping[str, Any], *, report_url: str | None) -> str:
    """A table with a row for each report; empty if there is none, and no comment is wanted.

    `report_url` is where the folder of the reports can be read; without one, paths in it are named.
    """
    if not manifest["reports"]:
        return ""
    rows = []
    for report in manifest["reports"]:
        is_new = report["change"] == "new"
        other = report["closest_variant"] if is_new else "itself before"
        rows.append(_row(report["variant"], report["change"], other, report, report_url))
        # Of an edited variant two things matter: what was done to it, and where that leaves it.
        if report.get("closest_other"):
            beside = report["closest_other"]
            rows.append(_row(report["variant"], "", beside["variant"], beside, report_url))
    head = [
        MARKER,
        "### Grug variants in this change",
        "",
        "| Variant | Change | Closest existing variant | Distance score | Files | Diff |",
        "|---|---|---|---:|---|---|",
    ]
    span = f"{manifest['merge_base_sha'][:12]}..{manifest['head_sha'][:12]}"
    tail = ["", f"Lines added and deleted in `{span}`; the reports are kept for 14 days."]
    return "\n".join([*head, *rows, *tail, ""])


def _row(
    variant: str, change: str, other: str, report: Mapping[str, Any], report_url: str | None
) -> str:
    counts = report["status_counts"]
    files = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    path = report["report_relpath"]
    link = f"[report]({report_url.rstrip('/')}/{quote(path)})" if report_url else code_text(path)
    beside = other if other == "itself before" else code_text(other)
    cells = [code_text(variant), change, beside, f"{report['distance_score']:,}", files, link]
    return f"| {' | '.join(cells)} |"
