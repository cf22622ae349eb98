"""The two pages of the ledger, Markdown and HTML: made, written, and checked for being up to date.

The HTML page needs nothing else, not even a network: its security policy lets the one script run
that is in the page, and nothing be loaded. An interval is drawn against zero, as a bar of
characters and as an SVG picture; a mean that is not finite has no place, and the axis is drawn
alone.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import median

from chomp.ledger.curves import BUDGETS, Budget
from chomp.ledger.result_file import RESULTS, BudgetFacts, Result
from chomp.ledger.table import (
    LedgerRow,
    budget_text,
    difference_at,
    difference_text,
    introduction,
    ledger_rows,
    lines_text,
    parameters_text,
    size_text,
    templates_text,
)
from chomp.ledger.verdict import p_text
from chomp.storage import read_text, write_text_atomic
from chomp.variants.diff_page import code_text, escaped, page_style

_WIDTH = 31  # characters; odd, so that zero has one in the middle
# Of the picture, in its own units.
_PICTURE_WIDTH, _PICTURE_HEIGHT = 160, 18
_MARKDOWN_HEADINGS = (
    *("variant", "verdict", "against", "seeds"),
    *("at equal tokens", "at equal FLOPs", "at equal time"),
    *("metric", "parameters", "lines", "made"),
)
_FIELDS_SHOWN = 12
GENERATOR = "chomp variant ledger"
_CODE = re.compile(r"`([^`]+)`")  # in what the archive says, which is Markdown
_HEADINGS = (
    *("variant", "verdict", "against", "seeds", "equal tokens", "equal FLOPs", "equal time"),
    *("metric", "parameters", "lines", "made"),
)
# An interval this many times as wide as the usual one is cut: all others would be dots beside it.
_WIDEST = 4.0
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{generator}">
<title>The ledger of variants</title>
<style>
{style}</style>
</head>
<body>
<header>
<button type="button" id="theme" title="light or dark (t)">Dark</button>
<h1>The ledger of variants</h1>
{words}
<p>Pictures reach from &minus;{scale} % to +{scale} %; what decided is in bold. A heading sorts.</p>
</header>
<main>
<div class="wide">
<table id="ledger">
<thead><tr>{headings}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{sections}
</main>
<script>{script}</script>
</body>
</html>
"""
MARKDOWN = "docs/reports/ledger.md"
HTML = "docs/reports/ledger.html"


def interval_bar(low: float | None, mean: float, high: float | None, scale: float) -> str:
    """The interval as characters on an axis from -scale to scale; without one, the mean alone.

    What goes on beyond the axis ends in an arrow.
    """
    middle = _WIDTH // 2

    def place(value: float) -> int:
        return min(max(round(middle + value / scale * middle), 0), _WIDTH - 1)

    drawn = [" "] * _WIDTH
    if not math.isfinite(mean):
        drawn[middle] = "│"
        return "".join(drawn)
    if low is not None and high is not None:
        drawn[place(low) : place(high) + 1] = "─" * (place(high) + 1 - place(low))
        drawn[place(low)] = "◄" if low < -scale else "├"
        drawn[place(high)] = "►" if high > scale else "┤"
    drawn[middle] = "┼" if drawn[middle] == "─" else "│" if drawn[middle] == " " else drawn[middle]
    drawn[place(mean)] = "●"
    return "".join(drawn)


def interval_picture(
    low: float | None, mean: float, high: float | None, scale: float, *, label: str
) -> str:
    """The same as SVG, in the colours of the page's classes; `label` is read aloud."""
    centre, reach = _PICTURE_WIDTH / 2, _PICTURE_WIDTH / 2 - 6
    middle = _PICTURE_HEIGHT / 2

    def x(value: float) -> float:
        return centre + max(-1.0, min(1.0, value / scale)) * reach

    def end(value: float, inwards: int) -> str:
        # A stroke, or an arrow's head where it goes on beyond the axis.
        tip = 4 * inwards if abs(value) > scale else 0
        at = x(value)
        return f"M{at + tip:.1f} {middle - 4:g}L{at:.1f} {middle:g}L{at + tip:.1f} {middle + 4:g}"

    line = circle = ""
    if math.isfinite(mean):
        circle = f'<circle cx="{x(mean):.1f}" cy="{middle:g}" r="3.5"/>'
    if circle and low is not None and high is not None:
        rule = f"M{x(low):.1f} {middle:g}H{x(high):.1f}"
        line = f'<path class="range" d="{rule}{end(low, 1)}{end(high, -1)}"/>'
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {_PICTURE_WIDTH} {_PICTURE_HEIGHT}" '
        f'width="{_PICTURE_WIDTH}" height="{_PICTURE_HEIGHT}">'
        f'<path class="zero" d="M{centre:g} 0V{_PICTURE_HEIGHT}"/>{line}'
        f"{circle}</svg>"
    )


def markdown_page(rows: Sequence[LedgerRow]) -> str:
    """The whole page."""
    lines = ["# The ledger of variants", ""]
    lines += [
        "Made by `chomp variant ledger` from the files in `docs/reports/results`; do not edit by "
        "hand. The archive: [grug-archive.md](grug-archive.md). How to measure: "
        "[compare](../recipes/compare.md).",
        "",
    ]
    for paragraph in introduction(rows):
        lines += [paragraph, ""]
    lines += [f"| {' | '.join(_MARKDOWN_HEADINGS)} |", f"|{'---|' * len(_MARKDOWN_HEADINGS)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    for row in rows:
        if row.result is not None:
            lines += ["", *_markdown_section(row, row.result)]
    return "\n".join(lines) + "\n"


def _cells(row: LedgerRow) -> Iterator[str]:
    result = row.result
    yield _plain(row.title)
    yield f"{row.word} ({row.caveat})" if row.caveat else row.word
    yield _plain(row.against)
    yield "-" if result is None else str(len(result.seeds))
    for budget in BUDGETS:
        text = difference_text(row, budget)
        yield f"**{text}**" if result is not None and result.at == budget else text
    yield "-" if result is None else code_text(result.metric)
    yield parameters_text(row)
    yield lines_text(row)
    yield "-" if result is None else _markdown_origin(result)


def _markdown_section(row: LedgerRow, result: Result) -> Iterator[str]:
    yield f"## {_plain(row.title)} against {_plain(row.against)}"
    yield ""
    yield f"{_plain(result.verdict[:1].upper() + result.verdict[1:])}"
    yield ""
    if row.purpose:
        yield f"- What changed: {row.purpose}"
    if result.changes:
        fields = [f"{code_text(each.field)}" for each in result.changes[:_FIELDS_SHOWN]]
        more = len(result.changes) - len(fields)
        yield f"- Settings that differ: {', '.join(fields)}{f' and {more} more' if more else ''}"
    yield f"- Runs: {size_text(result)}; {_markdown_origin(result)}"
    yield f"- Templates: {code_text(templates_text(result))}"
    yield f"- Command: {code_text(result.command)}"
    if result.note:
        yield f"- Note: {_plain(result.note)}"
    notes = [*result.notes, *(note for found in result.budgets for note in found.notes)]
    for note in dict.fromkeys(notes):
        yield f"- {_plain(note)}"
    for found in result.budgets:
        if found.statistics is not None:
            yield from ("", *_markdown_values(result, found))


def _markdown_values(result: Result, found: BudgetFacts) -> Iterator[str]:
    """The values by seed at one budget, and the tests."""
    statistics = found.statistics
    assert statistics is not None, "asked for those that have some"
    seeds = " | ".join(str(pair.seed) for pair in result.seeds)
    yield f"| at {budget_text(found)}: seed | {seeds} |"
    yield f"|{'---|' * (1 + len(result.seeds))}"
    for name, values in (("base", found.base), ("variant", found.variant)):
        shown = ("not finite" if value is None else f"{value:.4f}" for value in values)
        yield f"| {name} | {' | '.join(shown)} |"
    effect = "-" if statistics.effect is None else f"{statistics.effect:+.2f}"
    yield ""
    yield (
        f"t test p {p_text(statistics.p)}, sign flips p {p_text(statistics.sign_flip_p)}, "
        f"d {effect}."
    )


def _markdown_origin(result: Result) -> str:
    return f"{result.day} at `{result.commit}`" if result.commit else result.day


def _plain(text: str) -> str:
    """Text for a table's cell or a line: nothing in it is Markdown."""
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def html_page(rows: Sequence[LedgerRow]) -> str:
    """The whole page."""
    script = _source("ledger_page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scale = common_scale(rows)
    return _PAGE.format(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        generator=GENERATOR,
        style=page_style(_source("ledger_page.css")),
        words="\n".join(f"<p>{escaped(text)}</p>" for text in introduction(rows)),
        scale=f"{scale:.2g}",
        headings="".join(_heading(text) for text in _HEADINGS),
        rows="\n".join(_row(row, index, scale) for index, row in enumerate(rows)),
        sections="\n".join(
            _section(row, row.result, index) for index, row in enumerate(rows) if row.result
        ),
        script=script,
    )


def common_scale(rows: Sequence[LedgerRow]) -> float:
    """How far in percent the pictures' axis goes to either side, the same for all rows."""
    reaches = []
    for row in rows:
        statistics = None if row.result is None else difference_at(row, row.result.at)
        if statistics is not None:
            ends = [statistics.mean, statistics.low, statistics.high]
            reach = max(abs(statistics.percent(end)) for end in ends if end is not None)
            reaches += [reach] if math.isfinite(reach) else []
    if not reaches:
        return 1.0
    return 1.1 * min(max(reaches), max(_WIDEST * median(reaches), 0.1)) or 1.0


def _source(name: str) -> str:
    return files("chomp.ledger").joinpath(name).read_text(encoding="utf-8")


def _heading(text: str) -> str:
    return f'<th scope="col"><button type="button">{text}</button></th>'


def _row(row: LedgerRow, index: int, scale: float) -> str:
    result = row.result
    title = escaped(row.title)
    name = f'<a href="#result-{index}">{title}</a>' if result else title
    size = 0 if result is None else result.variant.parameter_count or 0
    lines = None if result is None else result.lines
    seeds = 0 if result is None else len(result.seeds)
    cells = [
        (row.title, f"{name}<small>{escaped(row.status)}</small>"),
        (
            row.word,
            f'<span class="badge {row.word.replace(" ", "-")}">{row.word}</span>'
            + (f"<small>{escaped(row.caveat)}</small>" if row.caveat else ""),
        ),
        (row.against, escaped(row.against)),
        (seeds or "", str(seeds) if seeds else "-"),
        *(_difference(row, budget, scale) for budget in BUDGETS),
        (result.metric if result else "", escaped(result.metric) if result else "-"),
        (size or "", parameters_text(row)),
        (sum(lines) if lines else "", lines_text(row)),
        (result.made if result else "", _made(result) if result else "-"),
    ]
    inner = "".join(f'<td data-sort="{escaped(str(key))}">{html}</td>' for key, html in cells)
    return f"<tr>{inner}</tr>"


def _difference(row: LedgerRow, budget: Budget, scale: float) -> tuple[float | str, str]:
    """The key to sort by, and the picture with its words."""
    statistics = difference_at(row, budget)
    text = difference_text(row, budget)
    if statistics is None:
        return "", "-"
    mean = statistics.percent(statistics.mean)
    ends = (statistics.low, statistics.high)
    low, high = (None if end is None else statistics.percent(end) for end in ends)
    picture = interval_picture(low, mean, high, scale, label=escaped(text))
    is_deciding = row.result is not None and row.result.at == budget
    shown = f"<b>{escaped(text)}</b>" if is_deciding else escaped(text)
    return mean if math.isfinite(
        mean
    ) else "", f'<span class="interval">{picture}<span>{shown}</span></span>'


def _section(row: LedgerRow, result: Result, index: int) -> str:
    facts = "".join(f"<li>{fact}</li>" for fact in _facts(row, result))
    tables = "".join(_values(result, found) for found in result.budgets if found.statistics)
    return (
        f'<section id="result-{index}"><h2>{escaped(row.title)} <i>against</i> '
        f"{escaped(row.against)}</h2><p>{escaped(result.verdict)}</p><ul>{facts}</ul>"
        f"{tables}</section>"
    )


def _facts(row: LedgerRow, result: Result) -> Iterator[str]:
    if row.purpose:
        yield "What changed: " + _CODE.sub(r"<code>\1</code>", escaped(row.purpose))
    yield f"Runs: {escaped(size_text(result))}"
    yield f"Templates: <code>{escaped(templates_text(result))}</code>"
    yield f"Command: <code>{escaped(result.command)}</code>"
    if result.note:
        yield f"Note: {escaped(result.note)}"
    for note in dict.fromkeys(
        [*result.notes, *(note for found in result.budgets for note in found.notes)]
    ):
        yield escaped(note)
    for each in result.changes:
        yield f"<code>{escaped(each.field)}: {escaped(each.base)} → {escaped(each.variant)}</code>"


def _values(result: Result, found: BudgetFacts) -> str:
    statistics = found.statistics
    assert statistics is not None, "asked for those that have some"
    seeds = "".join(f'<th scope="col">seed {pair.seed}</th>' for pair in result.seeds)
    lines = ""
    for name, values in (("base", found.base), ("variant", found.variant)):
        shown = ("not finite" if value is None else f"{value:.4f}" for value in values)
        cells = "".join(f"<td>{value}</td>" for value in shown)
        lines += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    tests = f"p {p_text(statistics.p)}, by sign flips {p_text(statistics.sign_flip_p)}"
    return (
        f"<table><caption>{escaped(budget_text(found))}: {escaped(tests)}</caption>"
        f"<thead><tr><td></td>{seeds}</tr></thead><tbody>{lines}</tbody></table>"
    )


def _made(result: Result) -> str:
    return escaped(f"{result.day} {result.commit or ''}".strip())


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
