"""The ledger: every variant of the archive with what was measured, as Markdown and as HTML.

Made from the archive and the result files alone, so the same checkout always gives the same pages,
on any machine. One row says what both pages show. The HTML page needs nothing else, not even a
network: its security policy lets the one script run that is in the page, and nothing be loaded. An
interval is drawn against zero, as a bar of characters and as an SVG picture; a mean that is not
finite has no place, and the axis is drawn alone.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median

from chomp.ledger.comparison import spent_text
from chomp.ledger.curves import BUDGETS, UNITS, Budget, are_apart, mean_progress
from chomp.ledger.results import RESULTS, BudgetFacts, Result, SideFacts, read_results
from chomp.ledger.statistics import PairedStatistics
from chomp.ledger.verdict import amount_text, p_text
from chomp.storage import read_text, write_text_atomic
from chomp.variants.archive import read_archive
from chomp.variants.checkout import BASE
from chomp.variants.diff_page import code_text, escaped, page_style, security_policy

MARKDOWN = "docs/reports/ledger.md"
HTML = "docs/reports/ledger.html"
NOT_MEASURED = "not measured"
NOT_LISTED = "not in the archive"
GENERATOR = "chomp variant ledger"

_FIELDS_SHOWN = 6  # in a cell
_MARKDOWN_FIELDS = 12  # in a section of the Markdown page
_BAR_WIDTH = 31  # characters; odd, so that zero has one in the middle
_PICTURE_WIDTH, _PICTURE_HEIGHT = 160, 18  # in its own units
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


# --- Rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LedgerRow:
    """A variant, and one of its results if it has any: what both pages show of it."""

    variant: str
    status: str  # by the archive
    purpose: str  # Markdown, as in the archive
    result: Result | None

    @property
    def title(self) -> str:
        """The variant, and the fields that were set for it alone."""
        if self.result is None:
            return self.variant
        return ", ".join([self.variant, *_set_fields(self.result, self.result.variant)])

    @property
    def against(self) -> str:
        """The base, likewise."""
        if self.result is None:
            return "-"
        return ", ".join([self.result.base.variant, *_set_fields(self.result, self.result.base)])

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        return NOT_MEASURED if self.result is None else self.result.word

    @property
    def caveat(self) -> str:
        """What limits the verdict: unequal schedules, a look that was not the first."""
        if self.result is None:
            return ""
        caveats = []
        deciding = self.result.at_budget(self.result.at)
        if deciding is not None and are_apart(deciding.progress):
            base, variant = (f"{100 * share:.0f} %" for share in mean_progress(deciding.progress))
            caveats.append(f"base at {base} of its schedule, variant at {variant}")
        if self.result.looks:
            caveats.append(f"look {self.result.looks + 1} at these runs")
        return "; ".join(caveats)

    @property
    def lines(self) -> str:
        """Lines of Python that the variant's template adds to the base's and deletes."""
        lines = None if self.result is None else self.result.lines
        return "-" if lines is None else f"+{lines[0]:,} -{lines[1]:,}"

    @property
    def parameters(self) -> str:
        """The variant's parameters, and the ratio to the base's."""
        own = None if self.result is None else self.result.variant.parameter_count
        if self.result is None or own is None:
            return "-"
        base = self.result.base.parameter_count
        return f"{own:,}" + (f" ({own / base:.2f} x)" if base else "")

    def statistics(self, budget: Budget) -> PairedStatistics | None:
        """The statistics at a budget; None if there are none."""
        found = None if self.result is None else self.result.at_budget(budget)
        return None if found is None else found.statistics

    def difference(self, budget: Budget) -> str:
        """The mean difference in percent with its interval."""
        statistics = self.statistics(budget)
        if statistics is None:
            return "-"
        mean = amount_text(statistics, statistics.mean)
        if statistics.low is None or statistics.high is None:
            return f"{mean} (one seed)"
        ends = (amount_text(statistics, end) for end in (statistics.low, statistics.high))
        low, high = (end.removesuffix(" %") for end in ends)
        return f"{mean} ({low} to {high})"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What its section says in words, by label; some without one."""
        result = self.result
        if result is None:
            return []
        trained = result.at_budget(BUDGETS[0])
        own = result.variant.parameter_count
        cores = result.versions.get("cores")
        size = [
            f"{own:,} parameters" if own else "",
            spent_text(BUDGETS[0], trained.spent) if trained and trained.spent else "",
            result.device + (f" ({cores} cores)" if result.device == "cpu" and cores else ""),
        ]
        notes = [*result.notes, *(note for found in result.budgets for note in found.notes)]
        return [
            ("Runs", ", ".join(filter(None, size))),
            *([("Note", result.note)] if result.note else []),
            *(("", note) for note in dict.fromkeys(notes)),
        ]

    @property
    def code_facts(self) -> list[tuple[str, list[str]]]:
        """What its section says in code, by label: templates by their hash, command, settings."""
        result = self.result
        if result is None:
            return []
        hashes = [
            f"{side.variant} {side.template_hash[:12]}"
            for side in (result.base, result.variant)
            if side.template_hash
        ]
        changes = [f"{each.field}: {each.base} → {each.variant}" for each in result.changes]
        return [
            ("Templates", [", ".join(dict.fromkeys(hashes)) or "unknown"]),
            ("Command", [result.command]),
            *([("Settings that differ", changes)] if changes else []),
        ]


def ledger_rows(root: Path) -> list[LedgerRow]:
    """The rows of a checkout: variants in the archive's order, results of each newest first."""
    results, archive = read_results(root), read_archive(root)
    # What is measured under a name that no entry has comes last.
    names = dict.fromkeys([*archive, *(result.variant.variant for result in results)])
    rows = []
    for name in names:
        entry = archive.get(name)
        status = entry.status if entry else NOT_LISTED
        purpose = (entry.purpose if entry else None) or ""
        own = [result for result in results if result.variant.variant == name]
        rows += [
            LedgerRow(name, status, _settings_changed(result) or purpose, result) for result in own
        ]
        # Base is what others are measured against; it has rows only for its settings.
        if not own and name != BASE:
            rows.append(LedgerRow(name, status, purpose, None))
    return rows


def _settings_changed(result: Result) -> str:
    """What changed if a template was compared with itself; empty for two templates."""
    if result.base.variant != result.variant.variant:
        return ""
    shown = result.changes[:_FIELDS_SHOWN]
    parts = [code_text(f"{each.field}: {each.base} → {each.variant}") for each in shown]
    if len(result.changes) > len(shown):
        parts.append(f"{len(result.changes) - len(shown)} more")
    if result.base.template_hash != result.variant.template_hash:
        parts.insert(0, "the template's own source")
    return ", ".join(parts) or "nothing that the runs recorded"


def _set_fields(result: Result, side: SideFacts) -> Sequence[str]:
    """What sets a side apart: its overrides, or what differs if both are one template."""
    has_overrides = result.base.overrides or result.variant.overrides
    if has_overrides or result.base.variant != result.variant.variant:
        return side.overrides
    is_base = side is result.base
    shown = result.changes[:_FIELDS_SHOWN]
    return [f"{each.field}={each.base if is_base else each.variant}" for each in shown]


def _introduction(rows: Sequence[LedgerRow]) -> list[str]:
    """What a reader has to know to read the table, a paragraph each."""
    measured = sum(row.result is not None for row in rows)
    return [
        "Every variant of the archive, and whether it is better than what it was compared with. "
        "Each difference is the mean over seeds of variant minus base, in percent of the base, "
        "with its interval; below 0 is better, for a loss. The verdict is that of the budget in "
        "bold, which was named before looking, and of no other. A verdict from a later look at "
        "runs that were looked at already says so, and is worth less.",
        "Differences are between runs with the same seed, the same data and the same order. Of "
        "changes that do nothing, one in thirty is called better or worse all the same: "
        f"{measured} {'row' if measured == 1 else 'rows'} here, so look at sizes, and repeat with "
        "new seeds what matters. A small run says little about a large one.",
    ]


def _value_rows(found: BudgetFacts) -> list[tuple[str, list[str]]]:
    """The values by seed at one budget."""
    return [
        (name, ["not finite" if value is None else f"{value:.4f}" for value in values])
        for name, values in (("base", found.base), ("variant", found.variant))
    ]


def _tests_text(statistics: PairedStatistics) -> str:
    effect = "-" if statistics.effect is None else f"{statistics.effect:+.2f}"
    p, flips = p_text(statistics.p), p_text(statistics.sign_flip_p)
    return f"t test p {p}, sign flips p {flips}, d {effect}"


# --- Intervals ------------------------------------------------------------------------------------


def interval_bar(low: float | None, mean: float, high: float | None, scale: float) -> str:
    """The interval as characters on an axis from -scale to scale; without one, the mean alone.

    An end beyond the axis is an arrow.
    """
    middle = _BAR_WIDTH // 2

    def place(value: float) -> int:
        return min(max(round(middle + value / scale * middle), 0), _BAR_WIDTH - 1)

    drawn = [" "] * _BAR_WIDTH
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


def _common_scale(rows: Sequence[LedgerRow]) -> float:
    """How far in percent the axis of the pictures goes to either side, the same for all rows."""
    reaches = []
    for row in rows:
        statistics = None if row.result is None else row.statistics(row.result.at)
        if statistics is not None:
            ends = [statistics.mean, statistics.low, statistics.high]
            reach = max(abs(statistics.percent(end)) for end in ends if end is not None)
            reaches += [reach] if math.isfinite(reach) else []
    if not reaches:
        return 1.0
    return 1.1 * min(max(reaches), max(_WIDEST * median(reaches), 0.1)) or 1.0


# --- Markdown -------------------------------------------------------------------------------------


def _markdown_page(rows: Sequence[LedgerRow]) -> str:
    headings = [
        *("variant", "verdict", "against", "seeds"),
        *(f"at equal {'time' if budget == 'time' else UNITS[budget]}" for budget in BUDGETS),
        *("metric", "parameters", "lines", "made"),
    ]
    lines = [
        "# The ledger of variants",
        "",
        "Made by `chomp variant ledger` from the files in `docs/reports/results`; do not edit by "
        "hand. The archive: [grug-archive.md](grug-archive.md). How to measure: "
        "[compare](../recipes/compare.md).",
        "",
    ]
    for paragraph in _introduction(rows):
        lines += [paragraph, ""]
    lines += [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for row in rows:
        result = row.result
        differences = [(budget, row.difference(budget)) for budget in BUDGETS]
        cells = [
            _plain(row.title),
            f"{row.word} ({row.caveat})" if row.caveat else row.word,
            _plain(row.against),
            str(len(result.seeds)) if result else "-",
            *(f"**{text}**" if result and result.at == at else text for at, text in differences),
            code_text(result.metric) if result else "-",
            row.parameters,
            row.lines,
            _markdown_origin(result) if result else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for row in rows:
        if row.result is not None:
            lines += ["", *_markdown_section(row, row.result)]
    return "\n".join(lines) + "\n"


def _markdown_section(row: LedgerRow, result: Result) -> list[str]:
    lines = [
        f"## {_plain(row.title)} against {_plain(row.against)}",
        "",
        _plain(result.verdict[:1].upper() + result.verdict[1:]),
        "",
    ]
    if row.purpose:
        lines.append(f"- What changed: {row.purpose}")
    lines.append(f"- Made: {_markdown_origin(result)}")
    for label, codes in row.code_facts:
        shown = ", ".join(map(code_text, codes[:_MARKDOWN_FIELDS]))
        more = len(codes) - _MARKDOWN_FIELDS
        lines.append(f"- {label}: {shown}" + (f" and {more} more" if more > 0 else ""))
    lines += [
        f"- {label}: {_plain(text)}" if label else f"- {_plain(text)}" for label, text in row.facts
    ]
    for found in result.budgets:
        if found.statistics is not None:
            seeds = [str(pair.seed) for pair in result.seeds]
            lines += [
                "",
                f"| at {spent_text(found.budget, found.spent)}: seed | {' | '.join(seeds)} |",
                f"|{'---|' * (1 + len(seeds))}",
                *(f"| {name} | {' | '.join(values)} |" for name, values in _value_rows(found)),
                "",
                f"{_tests_text(found.statistics)}.",
            ]
    return lines


def _markdown_origin(result: Result) -> str:
    return f"{result.day} at `{result.commit}`" if result.commit else result.day


def _plain(text: str) -> str:
    """Text for a table's cell or a line: nothing in it is Markdown."""
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


# --- HTML -----------------------------------------------------------------------------------------


def _html_page(rows: Sequence[LedgerRow]) -> str:
    script = _source("ledger_page.js")
    scale = _common_scale(rows)
    headings = [
        *("variant", "verdict", "against", "seeds", "equal tokens", "equal FLOPs", "equal time"),
        *("metric", "parameters", "lines", "made"),
    ]
    return _PAGE.format(
        policy=security_policy(script),
        generator=GENERATOR,
        style=page_style(_source("ledger_page.css")),
        words="\n".join(f"<p>{escaped(text)}</p>" for text in _introduction(rows)),
        scale=f"{scale:.2g}",
        headings="".join(
            f'<th scope="col"><button type="button">{text}</button></th>' for text in headings
        ),
        rows="\n".join(_html_row(row, index, scale) for index, row in enumerate(rows)),
        sections="\n".join(
            _html_section(row, row.result, index) for index, row in enumerate(rows) if row.result
        ),
        script=script,
    )


def _source(name: str) -> str:
    return files("chomp.ledger").joinpath(name).read_text(encoding="utf-8")


def _html_row(row: LedgerRow, index: int, scale: float) -> str:
    result = row.result
    title = escaped(row.title)
    name = f'<a href="#result-{index}">{title}</a>' if result else title
    badge = f'<span class="badge {row.word.replace(" ", "-")}">{row.word}</span>'
    caveat = f"<small>{escaped(row.caveat)}</small>" if row.caveat else ""
    cells: list[tuple[float | str, str]] = [  # what to sort by, and what to show
        (row.title, f"{name}<small>{escaped(row.status)}</small>"),
        (row.word, badge + caveat),
        (row.against, escaped(row.against)),
        (len(result.seeds), str(len(result.seeds))) if result else ("", "-"),
    ]
    for budget in BUDGETS:
        statistics, text = row.statistics(budget), escaped(row.difference(budget))
        if statistics is None:
            cells.append(("", text))
            continue
        ends = (statistics.low, statistics.mean, statistics.high)
        low, mean, high = (None if end is None else statistics.percent(end) for end in ends)
        assert mean is not None, "every difference has a mean"
        picture = interval_picture(low, mean, high, scale, label=text)
        shown = f"<b>{text}</b>" if result and result.at == budget else text
        key = mean if math.isfinite(mean) else ""
        cells.append((key, f'<span class="interval">{picture}<span>{shown}</span></span>'))
    size = result.variant.parameter_count if result else None
    lines = result.lines if result else None
    made = f"{result.day} {result.commit or ''}".strip() if result else "-"
    cells += [
        (result.metric, escaped(result.metric)) if result else ("", "-"),
        (size or "", row.parameters),
        (sum(lines) if lines else "", row.lines),
        (result.made if result else "", escaped(made)),
    ]
    inner = "".join(f'<td data-sort="{escaped(str(key))}">{text}</td>' for key, text in cells)
    return f"<tr>{inner}</tr>"


def _html_section(row: LedgerRow, result: Result, index: int) -> str:
    facts = []
    if row.purpose:
        purpose = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(row.purpose))
        facts.append(f"What changed: {purpose}")
    for label, codes in row.code_facts:
        facts.append(f"{label}: " + ", ".join(f"<code>{escaped(code)}</code>" for code in codes))
    facts += [escaped(f"{label}: {text}" if label else text) for label, text in row.facts]
    tables = []
    for found in result.budgets:
        if found.statistics is not None:
            seeds = "".join(f'<th scope="col">seed {pair.seed}</th>' for pair in result.seeds)
            body = "".join(
                f'<tr><th scope="row">{name}</th>'
                + "".join(f"<td>{value}</td>" for value in values)
                + "</tr>"
                for name, values in _value_rows(found)
            )
            caption = f"{spent_text(found.budget, found.spent)}: {_tests_text(found.statistics)}"
            tables.append(
                f"<table><caption>{escaped(caption)}</caption><thead><tr><td></td>{seeds}</tr>"
                f"</thead><tbody>{body}</tbody></table>"
            )
    listed = "".join(f"<li>{fact}</li>" for fact in facts)
    return (
        f'<section id="result-{index}"><h2>{escaped(row.title)} <i>against</i> '
        f"{escaped(row.against)}</h2><p>{escaped(result.verdict)}</p><ul>{listed}</ul>"
        f"{''.join(tables)}</section>"
    )


# --- Files ----------------------------------------------------------------------------------------


def has_ledger(root: Path) -> bool:
    """Whether a checkout keeps a ledger: it has one of its pages, or a result."""
    pages = [root / MARKDOWN, root / HTML]
    return any(path.is_file() for path in (*pages, *(root / RESULTS).glob("*.json")))


def ledger_pages(root: Path) -> dict[str, str]:
    """What the pages of a checkout should say, by their paths in it."""
    rows = ledger_rows(root)
    return {MARKDOWN: _markdown_page(rows), HTML: _html_page(rows)}


def write_ledger(root: Path) -> list[str]:
    """Write the pages that are out of date, and return their paths."""
    stale = stale_pages(root)
    pages = ledger_pages(root)
    for name in stale:
        write_text_atomic(root / name, pages[name])
    return stale


def stale_pages(root: Path) -> list[str]:
    """The pages that differ from what the results and the archive make them, or are missing."""
    return [
        name
        for name, text in ledger_pages(root).items()
        if not (root / name).is_file() or read_text(root / name) != text
    ]
