"""The comparison of two folders in few words: as Markdown, as JSON, and as one line."""

from datetime import datetime
from typing import Any

from chomp.variants.diff_page import filter_text
from chomp.variants.file_changes import FileChange, FolderChanges


def totals_text(changes: FolderChanges) -> str:
    """Files by status and the lines that differ, on one line."""
    counts = ", ".join(f"{count:,} {status}" for status, count in changes.status_counts.items())
    return f"{counts}; +{changes.added_lines:,} -{changes.deleted_lines:,} lines"


def code_text(text: str) -> str:
    """The text as code in a Markdown table, without what would end the code, cell or row."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "`" + plain.replace("`", "'").replace("|", "\\|") + "`"


def summary_markdown(changes: FolderChanges, *, made_at: datetime) -> str:
    """A heading, the totals, and a table of the files that differ."""
    rows = [
        f"| {file.status} | {code_text(file.path)}{_origin(file)} | {_lines(file)} |"
        for file in changes.files
        if file.status != "unchanged"
    ]
    table = ["| status | file | lines |", "|---|---|---:|", *rows] if rows else ["No difference."]
    head = [
        f"# {code_text(changes.left_label)} → {code_text(changes.right_label)}",
        "",
        f"{totals_text(changes)} ({filter_text(changes)}, {made_at:%Y-%m-%d %H:%M} UTC)",
        "",
    ]
    return "\n".join([*head, *table, ""])


def summary_json(changes: FolderChanges, *, made_at: datetime) -> dict[str, Any]:
    """All that the page counts, for a program; unchanged files are listed too."""
    return {
        "left": changes.left_label,
        "right": changes.right_label,
        "extensions": None if changes.extensions is None else list(changes.extensions),
        "made_at": made_at.isoformat(timespec="seconds"),
        "status_counts": dict(changes.status_counts),
        "added_lines": changes.added_lines,
        "deleted_lines": changes.deleted_lines,
        "files": [_file_json(file) for file in changes.files],
    }


def _file_json(file: FileChange) -> dict[str, Any]:
    # Lines of a binary file are 0, so that sums need no special case.
    facts: dict[str, Any] = {
        "path": file.path,
        "status": file.status,
        "added_lines": file.added_lines,
        "deleted_lines": file.deleted_lines,
        "is_binary": file.is_binary,
    }
    if file.rename is not None:
        kind, other = (
            ("renamed_to", file.rename.right)
            if file.right is None
            else ("renamed_from", file.rename.left)
        )
        facts |= {kind: other, "likeness": round(file.rename.likeness, 3)}
    return facts


def _lines(file: FileChange) -> str:
    return "binary" if file.is_binary else f"+{file.added_lines:,} -{file.deleted_lines:,}"


def _origin(file: FileChange) -> str:
    if file.rename is None:
        return ""
    is_old = file.right is None
    other = file.rename.right if is_old else file.rename.left
    return f" ({'now' if is_old else 'was'} {code_text(other)})"
