"""A diff report for every variant that a pull request adds or edits, and a manifest of them.

A new variant is compared with the closest one there was. An edited one is compared with itself as
it was where the two commits parted, and with the closest of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chomp.variants.checkout import BASE
from chomp.variants.closest import Neighbour, closest
from chomp.variants.commit_folders import commit_of, common_ancestor, variants_at
from chomp.variants.diff_report import CONTEXT_LINES, write_report
from chomp.variants.file_changes import EXTENSIONS


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
