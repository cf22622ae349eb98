"""Diff reports for the variants that a pull request adds or edits, a manifest, and the comment.

A new variant is compared with the closest one there was. An edited one is compared with itself as
it was where the two commits parted, and with the closest of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from chomp.variants.checkout import BASE
from chomp.variants.diff_report import CONTEXT_LINES, code_text, write_report
from chomp.variants.file_changes import EXTENSIONS, FolderChanges, folder_changes
from chomp.variants.folders import commit_of, common_ancestor, variants_at

# By which the workflow finds its own comment again.
MARKER = "<!-- grug-variant-diff-report -->"


@dataclass(frozen=True)
class Neighbour:
    """A variant that another was compared with, and what differs."""

    name: str
    changes: FolderChanges

    @property
    def distance(self) -> int:
        """Lines added and deleted over the files of both."""
        return distance(self.changes)


def distance(changes: FolderChanges) -> int:
    """Lines that two folders do not share; 0 for equal ones."""
    return changes.added_lines + changes.deleted_lines


def closest(
    folder: Path,
    candidates: Mapping[str, Path],
    *,
    label: str | None = None,
    extensions: Sequence[str] | None = EXTENSIONS,
) -> Neighbour | None:
    """The candidate that takes the fewest lines to become `folder`; of several, the first by name.

    None without candidates. The names of candidates are their labels in a report.
    """
    found = [
        Neighbour(
            name,
            folder_changes(
                candidates[name], folder, extensions=extensions, left_label=name, right_label=label
            ),
        )
        for name in sorted(candidates)
    ]
    # `min` takes the first of equals, and names are sorted.
    return min(found, key=lambda neighbour: neighbour.distance, default=None)


@dataclass(frozen=True)
class _Commits:
    """Variants by name at the three commits that matter."""

    base: Mapping[str, Path]  # the branch that the change goes to
    start: Mapping[str, Path]  # where the change began
    head: Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class _Writer:
    """How reports are made, and where they go."""

    out: Path
    commit: str
    extensions: Sequence[str] | None
    context_lines: int

    def compared(self, name: str, folder: Path, candidates: Mapping[str, Path]) -> Neighbour | None:
        label = f"{name} at {self.commit[:7]}"
        return closest(folder, candidates, label=label, extensions=self.extensions)

    def entry(self, neighbour: Neighbour, where: str) -> dict[str, Any]:
        """What the manifest says of a report, once it is written."""
        write_report(neighbour.changes, self.out / where, context_lines=self.context_lines)
        return {
            "distance_score": neighbour.distance,
            "report_relpath": f"{where}/index.html",
            "status_counts": dict(neighbour.changes.status_counts),
        }


def change_reports(
    root: Path,
    *,
    base: str,
    head: str,
    out: Path,
    extensions: Sequence[str] | None = EXTENSIONS,
    context_lines: int = CONTEXT_LINES,
) -> dict[str, Any]:
    """The manifest of all reports between two commits, once they are below `out`."""
    base_sha, head_sha = commit_of(root, base), commit_of(root, head)
    # What came to the branch since is not this change's doing.
    start_sha = common_ancestor(root, base_sha, head_sha) or base_sha
    writer = _Writer(out=out, commit=head_sha, extensions=extensions, context_lines=context_lines)
    with TemporaryDirectory() as scratch:
        shas = {"base": base_sha, "start": start_sha, "head": head_sha}
        at = {name: variants_at(root, sha, Path(scratch, name)) for name, sha in shas.items()}
        commits = _Commits(**at)
        added = sorted(commits.head.keys() - commits.base.keys() - commits.start.keys() - {BASE})
        new = [_new_report(name, commits, writer) for name in added]
        edited = [
            _edited_report(name, commits, writer, start_sha)
            for name in sorted(commits.head.keys() & commits.start.keys())
        ]
    reports = [report for report in [*new, *edited] if report is not None]
    return {
        "base_sha": base_sha,
        "head_sha": head_sha,
        "merge_base_sha": start_sha,
        "added_variants": added,
        "edited_variants": [item["variant"] for item in edited if item is not None],
        "report_count": len(reports),
        "reports": reports,
    }


def _new_report(name: str, commits: _Commits, writer: _Writer) -> dict[str, Any] | None:
    # Base is always a candidate, even one that comes with the same change.
    candidates = {BASE: commits.head.get(BASE), **commits.base}
    there = {other: path for other, path in candidates.items() if path and other != name}
    found = writer.compared(name, commits.head[name], there)
    if found is None:  # the first variant of a repository has nothing to be compared with
        return None
    entry = writer.entry(found, name)
    return {"variant": name, "change": "new", "closest_variant": found.name, **entry}


def _edited_report(
    name: str, commits: _Commits, writer: _Writer, start_sha: str
) -> dict[str, Any] | None:
    folder = commits.head[name]
    own = writer.compared(name, folder, {f"{name} at {start_sha[:7]}": commits.start[name]})
    if own is None or own.changes.is_empty:
        return None
    others = {other: path for other, path in commits.base.items() if other != name}
    other = writer.compared(name, folder, others)
    beside = None
    if other is not None:
        entry = writer.entry(other, f"{name}/against-{other.name}")
        beside = {"variant": other.name, **entry}
    entry = writer.entry(own, name)
    head = {"variant": name, "change": "edited", "closest_variant": name}
    return {**head, **entry, "closest_other": beside}


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
