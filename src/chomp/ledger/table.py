"""The ledger as rows: every variant of the archive, with what came of it or that nobody measured.

Made from the archive and the result files alone, so the same checkout always gives the same pages,
on any machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chomp.ledger.comparison import spent_text
from chomp.ledger.curves import BUDGETS, Budget, are_apart, mean_progress
from chomp.ledger.result_file import BudgetFacts, ChangeFacts, Result, SideFacts, read_results
from chomp.ledger.statistics import PairedStatistics
from chomp.ledger.verdict import amount_text
from chomp.variants.archive import read_archive
from chomp.variants.checkout import BASE
from chomp.variants.diff_page import code_text

NOT_MEASURED = "not measured"
NOT_LISTED = "not in the archive"
_FIELDS_SHOWN = 6


@dataclass(frozen=True)
class LedgerRow:
    """One line of the table: a variant, and one of its results if it has any."""

    variant: str
    status: str  # by the archive
    purpose: str  # Markdown, as the archive is
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
        """What goes with the verdict: schedules that were not equal, a look that was not the first.

        Empty for most.
        """
        if self.result is None:
            return ""
        looks = self.result.looks
        told = [_schedules_text(self.result), f"look {looks + 1} at these runs" if looks else ""]
        return "; ".join(filter(None, told))


def ledger_rows(root: Path) -> list[LedgerRow]:
    """The rows of a checkout: variants in the archive's order, results of each newest first."""
    results = read_results(root)
    entries = read_archive(root)
    # What is measured under a name that no entry has comes after those that have one.
    known = dict.fromkeys([*entries, *(result.variant.variant for result in results)])
    rows = []
    for name in known:
        entry = entries.get(name)
        status = entry.status if entry else NOT_LISTED
        purpose = (entry.purpose if entry else None) or ""
        own = [result for result in results if result.variant.variant == name]
        rows += [
            LedgerRow(name, status, _settings_changed(result) or purpose, result) for result in own
        ]
        # Base is what others are measured against; it has rows where its settings were.
        if not own and name != BASE:
            rows.append(LedgerRow(name, status, purpose, None))
    return rows


def lines_text(row: LedgerRow) -> str:
    """Lines of Python that the variant's template adds to the base's and deletes."""
    lines = None if row.result is None else row.result.lines
    return "-" if lines is None else f"+{lines[0]:,} -{lines[1]:,}"


def parameters_text(row: LedgerRow) -> str:
    """The variant's parameters, and how many times the base's they are."""
    result = row.result
    own = None if result is None else result.variant.parameter_count
    if result is None or own is None:
        return "-"
    base = result.base.parameter_count
    return f"{own:,}" + (f" ({own / base:.2f} x)" if base else "")


def difference_at(row: LedgerRow, budget: Budget) -> PairedStatistics | None:
    """The statistics at a budget; None where there are none."""
    found = _at(row, budget)
    return None if found is None else found.statistics


def difference_text(row: LedgerRow, budget: Budget) -> str:
    """The mean difference in percent with its interval."""
    statistics = difference_at(row, budget)
    if statistics is None:
        return "-"
    mean = amount_text(statistics, statistics.mean)
    if statistics.low is None or statistics.high is None:
        return f"{mean} (one seed)"
    ends = (amount_text(statistics, end) for end in (statistics.low, statistics.high))
    low, high = (end.removesuffix(" %") for end in ends)  # once is enough
    return f"{mean} ({low} to {high})"


def budget_text(found: BudgetFacts) -> str:
    """What was spent at a budget, with its unit."""
    return spent_text(found.budget, found.spent)


def size_text(result: Result) -> str:
    """How large the runs were: parameters and what they were trained for."""
    found = [each for each in result.budgets if each.budget == BUDGETS[0] and each.spent]
    trained = f"{budget_text(found[0])}, " if found else ""
    own = result.variant.parameter_count
    size = f"{own:,} parameters, " if own else ""
    cores = result.versions.get("cores")
    cores_text = f" ({cores} cores)" if result.device == "cpu" and cores else ""
    return f"{size}{trained}{result.device}{cores_text}"


def templates_text(result: Result) -> str:
    """Which source was measured: the beginning of each template's hash."""
    sides = (result.base, result.variant)
    named = [f"{side.variant} {side.template_hash[:12]}" for side in sides if side.template_hash]
    return ", ".join(dict.fromkeys(named)) or "unknown"


def introduction(rows: Sequence[LedgerRow]) -> list[str]:
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


def _settings_changed(result: Result) -> str:
    """What changed where a template was compared with itself; empty where another one was.

    What the archive says of the template is no change then.
    """
    if result.base.variant != result.variant.variant:
        return ""
    fields = [code_text(_change_text(each)) for each in result.changes[:_FIELDS_SHOWN]]
    more = len(result.changes) - len(fields)
    told = [*fields, *([f"{more} more"] if more else [])]
    if result.base.template_hash != result.variant.template_hash:
        told.insert(0, "the template's own source")
    return ", ".join(told) or "nothing that the runs recorded"


def _change_text(change: ChangeFacts) -> str:
    return f"{change.field}: {change.base} → {change.variant}"


def _set_fields(result: Result, side: SideFacts) -> Sequence[str]:
    """What sets a side apart: its overrides, or what differs where both are one template."""
    is_told = result.base.overrides or result.variant.overrides
    if is_told or result.base.variant != result.variant.variant:
        return side.overrides
    is_base = side is result.base
    shown = result.changes[:_FIELDS_SHOWN]
    return [f"{each.field}={each.base if is_base else each.variant}" for each in shown]


def _schedules_text(result: Result) -> str:
    """How far each side was where it was compared, where that is no fair place."""
    deciding = result.at_budget(result.at)
    if deciding is None or not are_apart(deciding.progress):
        return ""
    base, variant = (f"{100 * share:.0f} %" for share in mean_progress(deciding.progress))
    return f"base at {base} of its schedule, variant at {variant}"


def _at(row: LedgerRow, budget: Budget) -> BudgetFacts | None:
    return None if row.result is None else row.result.at_budget(budget)
