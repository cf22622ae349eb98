"""The report of a comparison: `index.html` for people, `summary.md` and `summary.json` beside it.

The page needs nothing else, not even a network. Its style and script are inside of it, and its
security policy lets that one script run and nothing be loaded, so source made to break out of the
page could not act. Every line is in the page once for each side; both views, side by side and
unified, are made of these by the style sheet. Control characters, and those that reorder text,
are spelled out. At the end: the options that the two diff programs share, and how they exit.
"""

import argparse
import base64
import hashlib
import html
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, NoReturn

from chomp.errors import ChompError, ConfigError, require
from chomp.storage import json_text, make_folder, read_bytes, write_text_atomic
from chomp.variants.diff import EXTENSIONS, Content, FileChange, FolderChanges, Hunk

try:  # pygments comes with rich; the report of a pull request is made with Python and git alone
    from pygments import token as kinds
    from pygments.lexers import PythonLexer
except ImportError:
    PythonLexer = None

CONTEXT_LINES = 3
# Tells a page of ours from another one, which must not be overwritten.
GENERATOR = "chomp grug_dir_diff"
Span = tuple[int, int]
Colour = tuple[int, int, str]  # start and end in a line, and a class of the style sheet

_INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C
_MAX_CHARACTERS = 5000  # a longer line is data and gets no colours
_LONG_LINE = 2000  # a longer line is shown in a window of its own that scrolls
_MAX_TOKENS = 400  # a line with more is marked between its common ends; SequenceMatcher is cubic
_MAX_CELLS = 1600  # a block with more possible pairs of lines is a rewrite: paired in order
_ALIKE = 0.5  # lines that share fewer of their words are two lines, not one that was edited
_DEFINITION = re.compile(r"\s*(?:async\s+)?(?:def|class)\s+\w+")
# Controls except the tab, what joins or reorders text without being seen, and surrogates, which
# stand for bytes that are not UTF-8.
_UNSEEN = re.compile(
    "[\0-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff]"
)
_NAMES = {"\r": "CR", "\f": "FF", "\0": "NUL", "\x1b": "ESC", "\ufeff": "BOM"}
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

# --- Text -----------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """The text for HTML, with characters that cannot be seen spelled out."""

    def spell(match: re.Match[str]) -> str:
        code = ord(match.group())
        is_byte = 0xDC80 <= code <= 0xDCFF  # how a byte that is not UTF-8 was decoded
        name = f"\\x{code - 0xDC00:02x}" if is_byte else _NAMES.get(match.group(), f"U+{code:04X}")
        return f'<span class="unseen">{name}</span>'

    return _UNSEEN.sub(spell, html.escape(text))


def code_text(text: str) -> str:
    """The text as code in a Markdown table, without what would end the code, cell or row."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "`" + plain.replace("`", "'").replace("|", "\\|") + "`"


def page_style(own: str) -> str:
    """The style that all pages share, followed by that of one kind of page."""
    return f"{_source('page_style.css')}\n{own}"


def diff_style() -> str:
    """The whole style of a diff page, for pages that show a diff in one of their parts."""
    return page_style(_source("diff_page.css"))


def security_policy(*scripts: str) -> str:
    """A content security policy under which these scripts run, and nothing is loaded."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts]
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"


def totals_text(changes: FolderChanges) -> str:
    """Files by status and the lines that differ, on one line."""
    counts = ", ".join(f"{count:,} {status}" for status, count in changes.status_counts.items())
    return f"{counts}; +{changes.added_lines:,} -{changes.deleted_lines:,} lines"


def _source(name: str) -> str:
    return files("chomp.variants").joinpath(name).read_text(encoding="utf-8")


def _filter_text(changes: FolderChanges) -> str:
    return "all files" if changes.extensions is None else f"files {', '.join(changes.extensions)}"


# --- The lines of one file ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    lines: Sequence[str]
    colours: Sequence[Sequence[Colour]]

    def cell(self, kind: str, index: int | None, more: str = "", marks: Sequence[Span] = ()) -> str:
        if index is None:
            return f'<div class="{kind[0]} none"></div>'
        line = self.lines[index]
        long = " long" if len(line) > _LONG_LINE else ""
        text = _line_html(line, self.colours[index], marks)
        return f'<div class="{kind}{long}"{more} data-n="{index + 1}">{text}</div>'


def rows_html(
    path: str, left: Sequence[str], right: Sequence[str], hunks: Sequence[Hunk], context_lines: int
) -> str:
    """Two texts side by side; more than `context_lines` unchanged lines in a row are folded."""
    old, new = _Side(left, _colours(path, left)), _Side(right, _colours(path, right))
    parts: list[str] = []
    i = j = 0
    for number, hunk in enumerate([*hunks, Hunk(len(left), len(left), len(right), len(right))]):
        cells = [
            old.cell("l", i + k) + new.cell("r", j + k, f' data-o="{i + k + 1}"')
            for k in range(hunk.left_start - i)
        ]
        # At the beginning and the end of a file there is no change to give context to.
        first = context_lines if number else 0
        last = len(cells) - (context_lines if number < len(hunks) else 0)
        if last - first < 2:  # a fold of one line would take as much room as the line
            first = last = len(cells)
        parts += _block(cells[:first])
        if first < last:
            folded = "".join(_block(cells[first:last]))
            found = next(filter(None, map(_DEFINITION.match, right[j : j + last][::-1])), None)
            place = escaped(found.group().strip()) if found else ""
            parts.append(
                f'<details class="fold"><summary><span>{last - first:,} unchanged lines</span>'
                f"<code>{place}</code></summary>{folded}</details>"
            )
        parts += _block(cells[last:])
        changed = []
        for a, b, is_pair in _rows(hunk, left, right):
            marks: tuple[list[Span], list[Span]] = ([], [])
            if is_pair and a is not None and b is not None:
                marks = _word_changes(left[a].removesuffix("\n"), right[b].removesuffix("\n"))
            changed.append(old.cell("l del", a, marks=marks[0]))
            changed.append(new.cell("r add", b, marks=marks[1]))
        parts += _block(changed, " change")
        i, j = hunk.left_end, hunk.right_end
    return "\n".join(parts)


def _block(cells: Sequence[str], kind: str = "") -> list[str]:
    return [f'<div class="block{kind}">{"".join(cells)}</div>'] if cells else []


def _rows(
    hunk: Hunk, left: Sequence[str], right: Sequence[str]
) -> Iterator[tuple[int | None, int | None, bool]]:
    """The lines of a hunk side by side, an edited line (True) beside its old text."""
    i, i_end, j, j_end = hunk
    old = [frozenset(re.findall(r"\w+|[^\w\s]", line)) for line in left[i:i_end]]
    new = [frozenset(re.findall(r"\w+|[^\w\s]", line)) for line in right[j:j_end]]
    if len(old) * len(new) > _MAX_CELLS:
        in_order = zip(old, new, strict=False)
        pairs = [(k, k) for k, (a, b) in enumerate(in_order) if _likeness(a, b) >= _ALIKE]
    else:
        pairs = _alike_pairs(old, new, 0, 0)
    for next_i, next_j in [
        *((hunk.left_start + a, hunk.right_start + b) for a, b in pairs),
        (i_end, j_end),
    ]:
        # Lines between two pairs share rows too, which keeps both sides at one height.
        for a, b in zip_longest(range(i, next_i), range(j, next_j)):
            yield a, b, False
        if next_i < i_end and next_j < j_end:
            yield next_i, next_j, True
        i, j = next_i + 1, next_j + 1


def _alike_pairs(
    old: Sequence[frozenset[str]], new: Sequence[frozenset[str]], i: int, j: int
) -> list[tuple[int, int]]:
    """Pairs of alike lines in order: the best one first, then those above and below it.

    `i` and `j` are the numbers of the first lines.
    """
    cells = [(a, b) for a in range(len(old)) for b in range(len(new))]
    best = max(cells, key=lambda cell: _likeness(old[cell[0]], new[cell[1]]), default=None)
    if best is None or _likeness(old[best[0]], new[best[1]]) < _ALIKE:
        return []
    a, b = best
    above = _alike_pairs(old[:a], new[:b], i, j)
    below = _alike_pairs(old[a + 1 :], new[b + 1 :], i + a + 1, j + b + 1)
    return [*above, (i + a, j + b), *below]


def _likeness(a: frozenset[str], b: frozenset[str]) -> float:
    """The share of words that two lines have in common."""
    return 2 * len(a & b) / (len(a) + len(b)) if a and b else 0.0


def _word_changes(left: str, right: str) -> tuple[list[Span], list[Span]]:
    """The ranges of characters that only the left line has, and those that only the right has."""
    old, new = (re.findall(r"\w+|\s+|[^\w\s]", line) for line in (left, right))
    if max(len(old), len(new)) > _MAX_TOKENS:
        head = _equal_head(left, right)
        tail = _equal_head(left[head:][::-1], right[head:][::-1])
        ends = len(left) - tail, len(right) - tail
        before, after = ([(head, end)] if end > head else [] for end in ends)
        return before, after
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [code for code in codes if code[0] != "equal"]
    return (
        _spans(old, [(start, end) for _, start, end, _, _ in changes]),
        _spans(new, [(start, end) for _, _, _, start, end in changes]),
    )


def _equal_head(left: str, right: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def _spans(tokens: Sequence[str], ranges: Sequence[Span]) -> list[Span]:
    """The characters of ranges of tokens; two with only spaces between them are one."""
    spans: list[Span] = []
    for start, end in ranges:
        begin, stop = len("".join(tokens[:start])), len("".join(tokens[:end]))
        if spans and not "".join(tokens)[spans[-1][1] : begin].strip():
            begin = spans.pop()[0]
        if begin < stop:
            spans.append((begin, stop))
    return spans


def _line_html(text: str, colours: Sequence[Colour], marks: Sequence[Span]) -> str:
    line = text.removesuffix("\n")
    classes, is_marked = [""] * len(line), [False] * len(line)
    for start, end, name in colours:
        classes[start:end] = [name] * (end - start)
    for start, end in marks:
        is_marked[start:end] = [True] * (end - start)
    parts = []
    for marked, places in groupby(range(len(line)), is_marked.__getitem__):
        parts.append("<mark>" if marked else "")
        for name, group in groupby(places, classes.__getitem__):
            piece = escaped("".join(line[place] for place in group))
            parts.append(f'<span class="{name}">{piece}</span>' if name else piece)
        parts.append("</mark>" if marked else "")
    if not text.endswith("\n"):
        parts.append('<span class="unseen">no newline at end of file</span>')
    return "".join(parts)


def _colours(path: str, lines: Sequence[str]) -> list[list[Colour]]:
    """For each line, its coloured ranges; none for files that are not Python."""
    found: list[list[Colour]] = [[] for _ in lines]
    is_python = path.endswith((".py", ".pyi")) and all(len(x) <= _MAX_CHARACTERS for x in lines)
    if PythonLexer is None or not is_python:
        return found
    number = column = 0
    for _, kind, text in PythonLexer().get_tokens_unprocessed("".join(lines)):
        for part in re.findall(r"[^\n]*\n|[^\n]+", text):
            name = _colour(kind)
            length = len(part.removesuffix("\n"))
            if name and length:
                found[number].append((column, column + length, name))
            column += length
            if part.endswith("\n"):
                number, column = number + 1, 0
    return found


def _colour(kind: Any) -> str:
    """The class of the style sheet for a kind of token; empty for plain text."""
    if kind in kinds.Name.Builtin and kind not in kinds.Name.Builtin.Pseudo:
        return "builtin"
    names = {
        kinds.Keyword: "keyword",
        kinds.Operator.Word: "keyword",
        kinds.String: "string",
        kinds.Comment: "comment",
        kinds.Number: "number",
        kinds.Name.Function: "definition",
        kinds.Name.Class: "definition",
        kinds.Name.Decorator: "decorator",
    }
    return next((name for parent, name in names.items() if kind in parent), "")


# --- The page -------------------------------------------------------------------------------------


def write_report(
    changes: FolderChanges,
    out: Path,
    *,
    context_lines: int = CONTEXT_LINES,
    show_unchanged: bool = False,
    made_at: datetime | None = None,
) -> Path:
    """Write the page and its summaries into `out`, and return the page's path.

    An earlier report there is replaced; another page is left alone. `made_at` is the time that the
    report shows, by default now.
    """
    require(
        context_lines >= 0,
        f"context_lines={context_lines}",
        allowed="0 or more lines around a change",
        fix="use 0 to show only changed lines",
    )
    page = out / "index.html"
    require(
        not page.exists() or f'content="{GENERATOR}"'.encode() in read_bytes(page)[:2000],
        f"{page} exists and is not a report of this program",
        allowed="a new folder, or one with an earlier report",
        fix="choose another folder, or remove that page",
    )
    if PythonLexer is None:
        _warn_once("pygments is not installed: source has no colours")
    now = (made_at or datetime.now(UTC)).astimezone(UTC)
    text = _page(changes, now, context_lines, show_unchanged)
    facts = json_text(_summary_json(changes, now), name="summary.json", indent=2)
    # The page comes last: if there is one, its summaries are of the same comparison.
    make_folder(out)
    write_text_atomic(out / "summary.md", _summary_markdown(changes, now))
    write_text_atomic(out / "summary.json", f"{facts}\n")
    write_text_atomic(page, text)
    return page


@cache
def _warn_once(text: str) -> None:
    logging.getLogger(__name__).warning(text)


def _page(
    changes: FolderChanges, made_at: datetime, context_lines: int, show_unchanged: bool
) -> str:
    shown = [file for file in changes.files if show_unchanged or file.status != "unchanged"]
    anchors: dict[str, str] = {}  # the path itself where HTML and an address allow it
    for file in shown:
        plain = "file-" + re.sub(r"[^\w./-]", "_", file.path, flags=re.ASCII)
        anchors[file.path] = f"{plain}~{len(anchors)}" if plain in anchors.values() else plain
    counters = [
        f'<li class="{status}"><b>{count:,}</b> {status}</li>'
        for status, count in changes.status_counts.items()
    ]
    plus, minus = f"+{changes.added_lines:,}", f"&minus;{changes.deleted_lines:,}"
    counters.append(f'<li class="lines"><b><ins>{plus}</ins> <del>{minus}</del></b> lines</li>')
    most = max([file.added_lines + file.deleted_lines for file in shown], default=0)
    rows = "\n".join(_table_row(file, anchors[file.path], most) for file in shown)
    table = f'<table class="files"><tbody>\n{rows}\n</tbody></table>'
    script = _source("diff_page.js")
    return _PAGE.format(
        policy=security_policy(script),
        generator=GENERATOR,
        left=escaped(changes.left_label),
        right=escaped(changes.right_label),
        filter=escaped(_filter_text(changes)),
        time=f"{made_at:%Y-%m-%d %H:%M} UTC",
        counters="\n".join(counters),
        table=table if shown else '<p class="equal">The folders are equal.</p>',
        sections="\n".join(_section(file, changes, anchors, context_lines) for file in shown),
        style=diff_style(),
        script=script,
    )


def _table_row(file: FileChange, anchor: str, most: int) -> str:
    """A row with a bar as long as the file's share of the largest change."""
    bars = [
        f'<{tag} style="width:{100 * lines / most:.1f}%"></{tag}>'
        for tag, lines in (("ins", file.added_lines), ("del", file.deleted_lines))
        if lines
    ]
    bar = f'<span class="bar">{"".join(bars)}</span>' if bars else ""
    return (
        f'<tr><td><span class="badge {file.status}">{file.status}</span></td>'
        f'<td><a href="#{anchor}">{escaped(file.path)}</a>{_moved_to(file)}</td>'
        f"<td>{_line_counts(file)}</td><td>{bar}</td></tr>"
    )


def _moved_to(file: FileChange) -> str:
    if file.rename is None:
        return ""
    is_old = file.right is None
    arrow, path = ("&rarr;", file.rename.right) if is_old else ("&larr;", file.rename.left)
    return f' <span class="moved">{arrow} {escaped(path)}</span>'


def _line_counts(file: FileChange) -> str:
    if file.is_binary:
        return '<span class="counts">binary</span>'
    plus = f"<ins>+{file.added_lines:,}</ins>" if file.added_lines else ""
    minus = f"<del>&minus;{file.deleted_lines:,}</del>" if file.deleted_lines else ""
    return f'<span class="counts">{plus} {minus}</span>'


def _section(
    file: FileChange, changes: FolderChanges, anchors: dict[str, str], context_lines: int
) -> str:
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
    left, note = file.left, ""
    if file.rename is not None and file.right is None:
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
    old_lines, new_lines = left.lines if left else (), file.right.lines if file.right else ()
    if not old_lines and not new_lines:
        return note + _note("Empty.")
    rows = rows_html(file.path, old_lines, new_lines, file.hunks, context_lines)
    # A file that has only one side gets the whole width.
    sides = "code" if old_lines and new_lines else "code one-sided"
    return f'{note}<div class="{sides}">{rows}</div>'


def _note(text: str) -> str:
    return f'<p class="note">{text}</p>\n'


def _size(content: Content | None) -> str:
    return "not there" if content is None else f"{len(content.data):,} bytes"


# --- The summaries --------------------------------------------------------------------------------


def _summary_markdown(changes: FolderChanges, made_at: datetime) -> str:
    rows = []
    for file in changes.files:
        if file.status == "unchanged":
            continue
        lines = "binary" if file.is_binary else f"+{file.added_lines:,} -{file.deleted_lines:,}"
        moved = ""
        if file.rename is not None:
            is_old = file.right is None
            other = file.rename.right if is_old else file.rename.left
            moved = f" ({'now' if is_old else 'was'} {code_text(other)})"
        rows.append(f"| {file.status} | {code_text(file.path)}{moved} | {lines} |")
    head = [
        f"# {code_text(changes.left_label)} → {code_text(changes.right_label)}",
        "",
        f"{totals_text(changes)} ({_filter_text(changes)}, {made_at:%Y-%m-%d %H:%M} UTC)",
        "",
    ]
    table = ["| status | file | lines |", "|---|---|---:|", *rows] if rows else ["No difference."]
    return "\n".join([*head, *table, ""])


def _summary_json(changes: FolderChanges, made_at: datetime) -> dict[str, Any]:
    listed = []
    for file in changes.files:
        facts: dict[str, Any] = {
            "path": file.path,
            "status": file.status,
            "added_lines": file.added_lines,  # 0 for a binary file
            "deleted_lines": file.deleted_lines,
            "is_binary": file.is_binary,
        }
        if file.rename is not None:
            old, new, likeness = file.rename
            facts |= {"renamed_to": new} if file.right is None else {"renamed_from": old}
            facts["likeness"] = round(likeness, 3)
        listed.append(facts)
    return {
        "left": changes.left_label,
        "right": changes.right_label,
        "extensions": None if changes.extensions is None else list(changes.extensions),
        "made_at": made_at.isoformat(timespec="seconds"),
        "status_counts": dict(changes.status_counts),
        "added_lines": changes.added_lines,
        "deleted_lines": changes.deleted_lines,
        "files": listed,
    }


# --- The programs ---------------------------------------------------------------------------------


class DiffParser(argparse.ArgumentParser):
    """A parser with the options of a comparison that raises `ConfigError` for a wrong command."""

    def __init__(self, *, prog: str, description: str) -> None:
        # An abbreviation that works today would fail once a second option begins like it.
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        which = self.add_mutually_exclusive_group()
        which.add_argument(
            "--extensions",
            type=_parse_extensions,
            default=EXTENSIONS,
            metavar="LIST",
            help=f"extensions to compare, separated by commas (default: {','.join(EXTENSIONS)})",
        )
        which.add_argument(
            "--all-files",
            dest="extensions",
            action="store_const",
            const=None,
            help="compare files of any kind",
        )
        self.add_argument(
            "--context-lines",
            type=int,
            default=CONTEXT_LINES,
            metavar="N",
            help="unchanged lines shown around a change (default: %(default)s)",
        )

    def error(self, text: str) -> NoReturn:
        """Raise `ConfigError` instead of exiting."""
        raise ConfigError(
            text, allowed="the arguments that --help lists", fix="correct the command"
        )


def _parse_extensions(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(name.strip(".") for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} holds an empty extension")
    return tuple(dict.fromkeys(name if name.startswith(".") else f".{name}" for name in names))


def exit_code(program: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> int:
    """Run a program and return its exit code; an error on purpose is printed as one line."""
    try:
        program(arguments)
    except ChompError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0
