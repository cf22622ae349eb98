"""A comparison written down: `index.html` for people, `summary.md` and `summary.json` beside it.

Here is also what the two diff programs share: their options, and how they end. As with the `chomp`
command, an error on purpose is its message alone and a code, 2 for a command line that cannot be
right; anything else is a bug and keeps its traceback.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from chomp.errors import ChompError, ConfigError, require
from chomp.storage import json_text, make_folder, read_bytes, write_text_atomic
from chomp.variants.diff_page import GENERATOR, diff_page, filter_text
from chomp.variants.file_changes import EXTENSIONS, FileChange, FolderChanges

CONTEXT_LINES = 3
_INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


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


class DiffParser(argparse.ArgumentParser):
    """A parser with the options of a comparison, whose errors have three parts."""

    def __init__(self, *, prog: str, description: str) -> None:
        # An abbreviation that works today would be refused once a second option begins so.
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        which = self.add_mutually_exclusive_group()
        which.add_argument(
            "--extensions",
            type=parsed_extensions,
            default=EXTENSIONS,
            metavar="LIST",
            help=f"extensions to look at, by commas (default: {','.join(EXTENSIONS)})",
        )
        which.add_argument(
            "--all-files",
            dest="extensions",
            action="store_const",
            const=None,
            help="look at files of any kind",
        )
        self.add_argument(
            "--context-lines",
            type=int,
            default=CONTEXT_LINES,
            metavar="N",
            help="unchanged lines shown around a change (default: %(default)s)",
        )

    def error(self, text: str) -> NoReturn:
        """Raise `ConfigError` in the place of ending the process."""
        raise ConfigError(
            text, allowed="the arguments that --help lists", fix="correct the command"
        )


def parsed_extensions(text: str) -> tuple[str, ...]:
    """The extensions in a list by commas, each with its dot."""
    names = [name.strip() for name in text.split(",")]
    if not all(name.strip(".") for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} holds an empty extension")
    return tuple(dict.fromkeys(name if name.startswith(".") else f".{name}" for name in names))


def exit_code(program: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Run a program and say what goes wrong; the code to end with."""
    try:
        program(arguments)
    except ChompError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0
