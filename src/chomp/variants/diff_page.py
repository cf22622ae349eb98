"""The comparison of two folders as one HTML page that needs nothing else, not even a network.

The style and the script beside this file are put into the page. Its security policy lets that one
script run and nothing be loaded, so that even source made to break out of the page could not act.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files

from chomp.variants.diff_rows import escaped, rows_html
from chomp.variants.file_changes import STATUSES, Content, FileChange, FolderChanges

# Tells a page of ours from somebody's, which must not be written over.
GENERATOR = "chomp grug_dir_diff"
_PAGE = """\
<!doctype html>
<html lang="en" data-view="split">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{generator}">
<title>{left} &rarr; {right}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1><span>{left}</span> <i>&rarr;</i> <span>{right}</span></h1>
<p>{filter} &middot; <time>{time}</time></p>
<ul class="counters">
{counters}
</ul>
{table}
</header>
<nav aria-label="View">
<button type="button" id="previous" title="previous change (k or p)">&uarr;</button>
<button type="button" id="next" title="next change (j or n)">&darr;</button>
<output id="position" aria-live="polite"></output>
<span class="gap"></span>
<button type="button" id="view" title="side by side or unified (u)">Unified</button>
<button type="button" id="folds" title="all unchanged lines (e)">Expand all</button>
<button type="button" id="theme" title="light or dark (t)">Dark</button>
<button type="button" id="help" title="keys (?)">?</button>
</nav>
<main>
{sections}
</main>
<dialog id="keys" aria-label="Keys">
<h2>Keys</h2>
<dl>
<dt><kbd>j</kbd> <kbd>n</kbd></dt><dd>next change</dd>
<dt><kbd>k</kbd> <kbd>p</kbd></dt><dd>previous change</dd>
<dt><kbd>J</kbd> <kbd>K</kbd></dt><dd>next, previous file</dd>
<dt><kbd>u</kbd></dt><dd>side by side or unified</dd>
<dt><kbd>e</kbd></dt><dd>show or fold all unchanged lines</dd>
<dt><kbd>t</kbd></dt><dd>light or dark</dd>
<dt><kbd>?</kbd></dt><dd>these keys; <kbd>Esc</kbd> closes</dd>
</dl>
<form method="dialog"><button>Close</button></form>
</dialog>
<script>{script}</script>
</body>
</html>
"""


def page_style(own: str) -> str:
    """The common style and, after it, that of one kind of page."""
    return f"{_source('page_style.css')}\n{own}"


def diff_style() -> str:
    """The whole style of a page of differences, which other pages may show in a part of theirs."""
    return page_style(_source("diff_page.css"))


def diff_page(
    changes: FolderChanges, *, made_at: datetime, context_lines: int, show_unchanged: bool
) -> str:
    """The whole page. `show_unchanged` lists equal files too, which are else only counted."""
    shown = [file for file in changes.files if show_unchanged or file.status != "unchanged"]
    anchors = _anchors(shown)
    sections = [_section(file, changes, anchors, context_lines) for file in shown]
    script = _source("diff_page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _PAGE.format(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        generator=GENERATOR,
        left=escaped(changes.left_label),
        right=escaped(changes.right_label),
        filter=escaped(filter_text(changes)),
        time=f"{made_at:%Y-%m-%d %H:%M} UTC",
        counters="\n".join(_counters(changes)),
        table=_table(shown, anchors),
        sections="\n".join(sections),
        style=diff_style(),
        script=script,
    )


def filter_text(changes: FolderChanges) -> str:
    """Which files were looked at, in words."""
    return "all files" if changes.extensions is None else f"files {', '.join(changes.extensions)}"


def _source(name: str) -> str:
    return files("chomp.variants").joinpath(name).read_text(encoding="utf-8")


def _anchors(shown: list[FileChange]) -> dict[str, str]:
    """An id for each path: the path itself where HTML and an address allow it."""
    anchors: dict[str, str] = {}
    for file in shown:
        plain = re.sub(r"[^\w./-]", "_", file.path, flags=re.ASCII)
        is_taken = f"file-{plain}" in anchors.values()
        anchors[file.path] = f"file-{plain}" + (f"~{len(anchors)}" if is_taken else "")
    return anchors


def _counters(changes: FolderChanges) -> Iterator[str]:
    counts = changes.status_counts
    for status in STATUSES:
        yield f'<li class="{status}"><b>{counts[status]:,}</b> {status}</li>'
    plus, minus = changes.added_lines, changes.deleted_lines
    yield (f'<li class="lines"><b><ins>+{plus:,}</ins> <del>&minus;{minus:,}</del></b> lines</li>')


def _table(shown: list[FileChange], anchors: dict[str, str]) -> str:
    if not shown:
        return '<p class="equal">The folders are equal.</p>'
    most = max(file.added_lines + file.deleted_lines for file in shown)
    rows = "\n".join(_table_row(file, anchors[file.path], most) for file in shown)
    return f'<table class="files"><tbody>\n{rows}\n</tbody></table>'


def _table_row(file: FileChange, anchor: str, most: int) -> str:
    return (
        f'<tr><td><span class="badge {file.status}">{file.status}</span></td>'
        f'<td><a href="#{anchor}">{escaped(file.path)}</a>{_moved_to(file)}</td>'
        f"<td>{_line_counts(file)}</td><td>{_bar(file, most)}</td></tr>"
    )


def _moved_to(file: FileChange) -> str:
    if file.rename is None:
        return ""
    arrow, path = (
        ("&rarr;", file.rename.right) if file.right is None else ("&larr;", file.rename.left)
    )
    return f' <span class="moved">{arrow} {escaped(path)}</span>'


def _line_counts(file: FileChange) -> str:
    if file.is_binary:
        return '<span class="counts">binary</span>'
    plus = f"<ins>+{file.added_lines:,}</ins>" if file.added_lines else ""
    minus = f"<del>&minus;{file.deleted_lines:,}</del>" if file.deleted_lines else ""
    return f'<span class="counts">{plus} {minus}</span>'


def _bar(file: FileChange, most: int) -> str:
    """A bar as long as the file's share of the largest change, divided into added and deleted."""
    plus, minus = file.added_lines, file.deleted_lines
    if not most or not plus + minus:
        return ""
    parts = [("ins", plus), ("del", minus)]
    shown = "".join(
        f'<{tag} style="width:{100 * lines / most:.1f}%"></{tag}>' for tag, lines in parts if lines
    )
    return f'<span class="bar">{shown}</span>'


def _section(
    file: FileChange, changes: FolderChanges, anchors: dict[str, str], context_lines: int
) -> str:
    # An equal file is there to be read if wanted; what differs comes first.
    is_open = "" if file.status == "unchanged" else " open"
    return (
        f'<details class="file" id="{anchors[file.path]}"{is_open}><summary>'
        f'<span class="badge {file.status}">{file.status}</span>'
        f"<h2>{escaped(file.path)}{_moved_to(file)}</h2>{_line_counts(file)}</summary>\n"
        f"{_body(file, changes, anchors, context_lines)}</details>"
    )


def _body(
    file: FileChange, changes: FolderChanges, anchors: dict[str, str], context_lines: int
) -> str:
    if file.is_binary:
        return _note(f"Binary: {_size(file.left)} &rarr; {_size(file.right)}.")
    left, right = file.left, file.right
    note = ""
    if file.rename is not None and right is None:
        # Its lines are shown once, where the file is now.
        target = file.rename.right
        return _note(
            f'Is <a href="#{anchors[target]}">{escaped(target)}</a> now, where its lines are '
            f"compared. Counted here as removed, all {file.deleted_lines:,} lines."
        )
    if file.rename is not None:
        left = next(old.left for old in changes.files if old.path == file.rename.left)
        note = _note(
            f"Was {escaped(file.rename.left)} ({file.rename.likeness:.0%} alike), with which it is "
            f"compared here. Counted as added, all {file.added_lines:,} lines."
        )
    old_lines = left.lines if left else ()
    new_lines = right.lines if right else ()
    if not old_lines and not new_lines:
        return note + _note("Empty.")
    rows = rows_html(file.path, old_lines, new_lines, context_lines)
    sides = f'<div class="code{_one_sided(old_lines, new_lines)}">{rows}</div>'
    return note + sides


def _one_sided(old_lines: tuple[str, ...], new_lines: tuple[str, ...]) -> str:
    """A class that gives the whole width to a file that has only one side."""
    return "" if old_lines and new_lines else " one-sided"


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>\n'


def _size(content: Content | None) -> str:
    return "not there" if content is None else f"{len(content.data):,} bytes"
