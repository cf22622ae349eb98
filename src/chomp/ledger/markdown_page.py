"""The ledger as Markdown: the table, then each result with its values and its command."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from chomp.ledger.curves import BUDGETS
from chomp.ledger.result_file import BudgetFacts, Result
from chomp.ledger.table import (
    LedgerRow,
    budget_text,
    difference_text,
    introduction,
    lines_text,
    parameters_text,
    size_text,
    templates_text,
)
from chomp.ledger.verdict import p_text
from chomp.variants.archive import ARCHIVE
from chomp.variants.diff_report import code_text

_HEADINGS = (
    *("variant", "verdict", "against", "seeds"),
    *("at equal tokens", "at equal FLOPs", "at equal time"),
    *("metric", "parameters", "lines", "made"),
)
_FIELDS_SHOWN = 12


def markdown_page(rows: Sequence[LedgerRow]) -> str:
    """The whole page."""
    lines = ["# The ledger of variants", ""]
    lines += [
        "Made by `chomp variant ledger` from the files in `docs/reports/results`; do not edit by "
        f"hand. The archive: [{Path(ARCHIVE).name}]({Path(ARCHIVE).name}). How to measure: "
        "[compare](../recipes/compare.md).",
        "",
    ]
    for paragraph in introduction(rows):
        lines += [paragraph, ""]
    lines += [f"| {' | '.join(_HEADINGS)} |", f"|{'---|' * len(_HEADINGS)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    for row in rows:
        if row.result is not None:
            lines += ["", *_section(row, row.result)]
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
    yield "-" if result is None else _made(result)


def _section(row: LedgerRow, result: Result) -> Iterator[str]:
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
    yield f"- Runs: {size_text(result)}; {_made(result)}"
    yield f"- Templates: {code_text(templates_text(result))}"
    yield f"- Command: {code_text(result.command)}"
    if result.note:
        yield f"- Note: {_plain(result.note)}"
    notes = [*result.notes, *(note for found in result.budgets for note in found.notes)]
    for note in dict.fromkeys(notes):
        yield f"- {_plain(note)}"
    for found in result.budgets:
        if found.statistics is not None:
            yield from ("", *_values(result, found))


def _values(result: Result, found: BudgetFacts) -> Iterator[str]:
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


def _made(result: Result) -> str:
    return f"{result.day} at `{result.commit}`" if result.commit else result.day


def _plain(text: str) -> str:
    """Text for a table's cell or a line: nothing in it is Markdown."""
    for mark in "\\`*_<>|[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
