"""A comparison in the terminal: its seeds, the three budgets with their intervals, the verdict."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from chomp.cli.terminal import one_line, print_table, say

if TYPE_CHECKING:  # for annotations alone
    from rich.table import Table

    from chomp.ledger.comparison import AtBudget, Comparison

_COLOURS = {"better": "green", "worse": "red", "no difference": "cyan", "cannot tell": "yellow"}
_CHANGES_SHOWN = 12


def tell_comparison(comparison: Comparison) -> None:
    """Print all of it; the verdict comes last, where a reader looks."""
    question = comparison.question
    sides = f"{comparison.base.given} → {comparison.variant.given}"
    say(f"{sides}: {question.metric}, {question.best} is best")
    _tell_changes(comparison)
    if comparison.pairs:
        print_table(_seed_table(comparison))
    print_table(_budget_table(comparison))
    say("The verdict is that of the first line; the others are shown and decide nothing.")
    # Of a budget that does not decide, only why it is missing or skewed is of interest.
    notes = [*comparison.notes, *comparison.looks]
    notes += [*(note for found in comparison.budgets for note in found.notes)]
    for note in dict.fromkeys(notes):
        say(f"note: {note}", "yellow")
    say(comparison.verdict.text, f"bold {_COLOURS[comparison.verdict.word]}")


def _tell_changes(comparison: Comparison) -> None:
    changes = comparison.changes
    for path, before, after in changes[:_CHANGES_SHOWN]:
        say(f"  {path}: {one_line(str(before))} → {one_line(str(after))}")
    if len(changes) > _CHANGES_SHOWN:
        say(f"  and {len(changes) - _CHANGES_SHOWN} more fields: chomp config diff shows them")


def _seed_table(comparison: Comparison) -> Table:
    from rich.table import Table

    deciding = comparison.deciding
    title = f"at {deciding.spent_text}"
    table = Table("seed", title=title if deciding.spent else "no value at the deciding budget")
    for heading in ("base", "variant", "difference"):
        table.add_column(heading, justify="right")
    table.add_column("runs")
    for index, pair in enumerate(comparison.pairs):
        values = (
            (deciding.base[index], deciding.variant[index])
            if deciding.base
            else (math.nan, math.nan)
        )
        table.add_row(
            pair.label,
            *map(_value, values),
            f"{values[1] - values[0]:+.4f}" if all(map(math.isfinite, values)) else "-",
            f"{pair.base.folder} {pair.variant.folder}",
        )
    return table


def _budget_table(comparison: Comparison) -> Table:
    from rich.table import Table

    from chomp.ledger.interval_drawing import interval_bar
    from chomp.ledger.verdict import amount_text, p_text, share_text

    # By what decides: another budget may be known so badly that all else would be a dot.
    scale = 1.2 * max(comparison.question.smallest_percent, *_ends(comparison.deciding)) or 1.0
    confidence = share_text(comparison.question.confidence)
    table = Table("at equal", "budget", title=f"variant against base, {confidence} intervals")
    for heading in ("difference", "from", "to", "p", "sign flips", "d"):
        table.add_column(heading, justify="right")
    table.add_column(f"-{scale:.2g} % … 0 … +{scale:.2g} %", no_wrap=True)
    for found in comparison.budgets:
        statistics = found.statistics
        if statistics is None:
            table.add_row(found.budget, "-", *["-"] * 6, "")
            continue
        ends = [statistics.low, statistics.high]
        low, high = (None if end is None else statistics.percent(end) for end in ends)
        mean = statistics.percent(statistics.mean)
        table.add_row(
            found.budget,
            found.spent_text,
            amount_text(statistics, statistics.mean),
            *("-" if end is None else amount_text(statistics, end) for end in ends),
            p_text(statistics.p),
            p_text(statistics.sign_flip_p),
            "-" if statistics.effect is None else f"{statistics.effect:+.2f}",
            interval_bar(low, mean, high, scale),
        )
    return table


def _ends(found: AtBudget) -> list[float]:
    """How far from zero mean and interval lie, in percent."""
    statistics = found.statistics
    if statistics is None or not statistics.base_mean:
        return [1.0]
    ends = [statistics.mean, statistics.low, statistics.high]
    return [abs(statistics.percent(end)) for end in ends if end is not None]


def _value(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "not finite"
