"""Diff reports for the variants that a pull request adds or edits, a manifest, and the comment.

A new variant is compared with the closest existing one. An edited one is compared with itself
before the change, and with the closest of the others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from chomp.variants.checkout import BASE, commit_of, common_ancestor, variants_at
from chomp.variants.diff import EXTENSIONS, FolderChanges, folder_changes
from chomp.variants.diff_page import CONTEXT_LINES, code_text, write_report

# The workflow finds its own comment by it.
MARKER = "<!-- grug-variant-diff-report -->"


def closest(
    folder: Path,
    candidates: Mapping[str, Path],
    *,
    label: str | None = None,
    extensions: Sequence[str] | None = EXTENSIONS,
) -> FolderChanges | None:
    """The changes from the candidate that differs in the fewest lines; ties go to the first name.

    The names of candidates are their labels. None without candidates.
    """
    changes = [
        folder_changes(path, folder, extensions=extensions, left_label=name, right_label=label)
        for name, path in sorted(candidates.items())
    ]
    return min(changes, key=lambda each: each.distance, default=None)


def change_reports(
    root: Path,
    *,
    base: str,
    head: str,
    out: Path,
    extensions: Sequence[str] | None = EXTENSIONS,
    context_lines: int = CONTEXT_LINES,
) -> dict[str, Any]:
    """Write the reports between two commits below `out`, and return their manifest."""
    base_sha, head_sha = commit_of(root, base), commit_of(root, head)
    # What came to the base branch since the change began is not part of the change.
    start_sha = common_ancestor(root, base_sha, head_sha) or base_sha

    def compare(name: str, candidates: Mapping[str, Path]) -> FolderChanges | None:
        label = f"{name} at {head_sha[:7]}"
        return closest(at_head[name], candidates, label=label, extensions=extensions)

    def write(changes: FolderChanges, where: str) -> dict[str, Any]:
        write_report(changes, out / where, context_lines=context_lines)
        return {
            "distance_score": changes.distance,
            "report_relpath": f"{where}/index.html",
            "status_counts": dict(changes.status_counts),
        }

    reports: list[dict[str, Any]] = []
    with TemporaryDirectory() as scratch:
        at_base, at_start, at_head = (
            variants_at(root, sha, Path(scratch, side))
            for side, sha in (("base", base_sha), ("start", start_sha), ("head", head_sha))
        )
        added = sorted(at_head.keys() - at_base.keys() - at_start.keys() - {BASE})
        for name in added:
            # Base is always a candidate, even one that comes with the same change.
            candidates = {BASE: at_head[BASE]} if BASE in at_head else {}
            changes = compare(name, candidates | at_base)
            if changes is not None:
                found = {"variant": name, "change": "new", "closest_variant": changes.left_label}
                reports.append(found | write(changes, name))
        edited = []
        for name in sorted(at_head.keys() & at_start.keys()):
            own = compare(name, {f"{name} at {start_sha[:7]}": at_start[name]})
            if own is None or own.is_empty:
                continue
            edited.append(name)
            other = compare(name, {key: path for key, path in at_base.items() if key != name})
            beside = None
            if other is not None:
                where = f"{name}/against-{other.left_label}"
                beside = {"variant": other.left_label, **write(other, where)}
            found = {"variant": name, "change": "edited", "closest_variant": name}
            reports.append(found | write(own, name) | {"closest_other": beside})
    return {
        "base_sha": base_sha,
        "head_sha": head_sha,
        "merge_base_sha": start_sha,
        "added_variants": added,
        "edited_variants": edited,
        "report_count": len(reports),
        "reports": reports,
    }


def comment_markdown(manifest: Mapping[str, Any], *, report_url: str | None) -> str:
    """A table with a row for each report; empty if there is none, and no comment is wanted.

    `report_url` is where the folder of reports is published; without it, its paths are named.
    """
    if not manifest["reports"]:
        return ""
    rows = []
    for report in manifest["reports"]:
        is_new = report["change"] == "new"
        other = code_text(report["closest_variant"]) if is_new else "itself before"
        rows.append(_row(report["variant"], report["change"], other, report, report_url))
        if beside := report.get("closest_other"):
            name = code_text(beside["variant"])
            rows.append(_row(report["variant"], "", name, beside, report_url))
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
    files = ", ".join(f"{count} {name}" for name, count in report["status_counts"].items() if count)
    path = report["report_relpath"]
    link = f"[report]({report_url.rstrip('/')}/{quote(path)})" if report_url else code_text(path)
    cells = [code_text(variant), change, other, f"{report['distance_score']:,}", files, link]
    return f"| {' | '.join(cells)} |"
