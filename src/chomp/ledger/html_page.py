"""The ledger as one HTML page that needs nothing else, not even a network.

As with the pages of differences, the security policy lets the one script run that is in the page,
and nothing be loaded.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from statistics import median

from chomp.ledger.curves import BUDGETS, Budget
from chomp.ledger.interval_drawing import interval_picture
from chomp.ledger.result_file import BudgetFacts, Result
from chomp.ledger.table import (
    LedgerRow,
    budget_text,
    difference_at,
    difference_text,
    introduction,
    lines_text,
    parameters_text,
    size_text,
    templates_text,
)
from chomp.ledger.verdict import p_text
from chomp.variants.diff_page import page_style
from chomp.variants.diff_rows import escaped

GENERATOR = "chomp variant ledger"
_CODE = re.compile(r"`([^`]+)`")  # in what the archive says, which is Markdown
_HEADINGS = (
    *("variant", "verdict", "against", "seeds", "equal tokens", "equal FLOPs", "equal time"),
    *("metric", "parameters", "lines", "made"),
)
# An interval this many times as wide as the usual one is cut: all others would be dots beside it.
_WIDEST = 4.0


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
