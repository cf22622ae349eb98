"""`chomp variant ledger`: the table of all variants, from the results in the repository."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from chomp.cli.config_arguments import Action
from chomp.cli.terminal import print_table, say

if TYPE_CHECKING:  # for annotations alone
    from pathlib import Path

    from chomp.ledger.table import LedgerRow

# The mark is typer's: it leaves the lines of the paragraph after it as they are.
EXAMPLES = """\b
Examples:
  chomp compare base moe --seeds 5 --save
  chomp variant ledger
  chomp variant ledger --check
"""


def ledger(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a page is out of date.")
    ] = False,
) -> Action:
    """What `chomp variant ledger` does."""
    return partial(_ledger, check)


def _ledger(is_check: bool) -> int:
    from pathlib import Path

    from chomp.errors import ConfigError, message
    from chomp.ledger.kept_pages import HTML, MARKDOWN, stale_pages, write_ledger
    from chomp.ledger.table import ledger_rows
    from chomp.variants.checkout import checkout_root

    root = checkout_root(Path.cwd())
    if is_check:
        stale = stale_pages(root)
        if stale:
            raise ConfigError(
                message(
                    given=f"{' and '.join(stale)} not as docs/reports/results makes it",
                    allowed="pages made from the results and the archive",
                    fix="run chomp variant ledger, and commit what it writes",
                )
            )
        say(f"{MARKDOWN} and {HTML} are up to date.")
        return 0
    rows = ledger_rows(root)
    _print_rows(rows)
    for name in _changed_since(root, rows):
        say(f"{name} has changed since it was measured.", "yellow")
    written = write_ledger(root)
    say(f"Written: {', '.join(written)}" if written else f"{MARKDOWN} and {HTML} are up to date.")
    return 0


def _print_rows(rows: "list[LedgerRow]") -> None:
    from rich.table import Table

    from chomp.ledger.curves import BUDGETS
    from chomp.ledger.table import difference_text, lines_text, parameters_text

    table = Table("variant", "against", "lines", "parameters", "seeds")
    for budget in BUDGETS:
        table.add_column(f"at equal {budget}")
    table.add_column("verdict")
    table.add_column("made")
    for row in rows:
        result = row.result
        table.add_row(
            row.title,
            row.against,
            lines_text(row),
            parameters_text(row),
            str(len(result.seeds)) if result else "-",
            *(difference_text(row, budget) for budget in BUDGETS),
            f"{row.word} ({row.caveat})" if row.caveat else row.word,
            result.day if result else "-",
        )
    print_table(table)


def _changed_since(root: "Path", rows: "list[LedgerRow]") -> list[str]:
    """Variants whose newest result is of another source than the folder has now."""
    from chomp.config import fingerprint
    from chomp.executor.step import source_hashes
    from chomp.variants.checkout import variant_path

    newest: dict[str, str | None] = {}
    for row in rows:
        for side in (row.result.base, row.result.variant) if row.result else ():
            newest.setdefault(side.variant, side.template_hash)
    return [
        variant_path(name)
        for name, measured in newest.items()
        if (root / variant_path(name)).is_dir()
        and fingerprint(source_hashes(root / variant_path(name))) != measured
    ]
