"""`chomp compare`: find or make the runs of two sides, compare them, and keep the result."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from chomp.cli.output import print_table, say, shorten
from chomp.errors import ConfigError
from chomp.launch.run import LaunchOptions, outputs_folder
from chomp.ledger.comparison import AtBudget, Comparison, Question
from chomp.ledger.comparison import compare as compare_sides
from chomp.ledger.curves import BUDGETS
from chomp.ledger.pages import interval_bar
from chomp.ledger.result_file import (
    Circumstances,
    earlier_looks,
    readable_results,
    result_of,
    result_text,
    save_result,
    side_name,
)
from chomp.ledger.runs import found_side, side_of
from chomp.ledger.verdict import amount_text, best_of, p_text, share_text
from chomp.storage import write_text_atomic
from chomp.tracking.run_files import TEMPLATE
from chomp.variants.checkout import checkout_root
from chomp.variants.diff import folder_changes
from chomp.variants.lifecycle import Renaming, lines_beyond_renaming

_COLOURS = {"better": "green", "worse": "red", "no difference": "cyan", "cannot tell": "yellow"}
_CHANGES_SHOWN = 12


def compare(
    base: str,
    variant: str,
    *,
    metric: str,
    at: str,
    best: str | None,  # None: by the metric's name
    smallest_percent: float,
    is_other_data: bool,
    seeds: Sequence[int],  # none: compare what is there
    both: Sequence[str],  # overrides, as are the next two
    only_base: Sequence[str],
    only_variant: Sequence[str],
    on: str | None,
    max_concurrent: int | None,
    is_plan: bool,
    is_forced: bool,
    prefix: str | None,
    json: str | None,
    is_saved: bool,
    note: str,
) -> int:
    """Compare two sides and print the verdict; the exit code, which a failed run decides."""
    root = checkout_root(Path.cwd()) if is_saved else _checkout_if_any()  # raises before any run
    [budget] = [each for each in BUDGETS if each == at]
    question = Question(
        metric=metric,
        at=budget,
        best=best_of(metric, best),
        smallest_percent=smallest_percent,
        is_other_data=is_other_data,
    )
    outputs, code = outputs_folder(prefix), 0
    if seeds:
        from chomp.cli.compare_pairs import run_pairs  # noqa: PLC0415  # it imports JAX

        options = LaunchOptions(
            prefix=outputs, is_plan=is_plan, on=on, max_concurrent=max_concurrent
        )
        folders, code = run_pairs(
            [(base, [*both, *only_base]), (variant, [*both, *only_variant])],
            seeds,
            options,
            is_forced=is_forced,
        )
        if is_plan:
            return 0
        if code:
            say("Not every run has ended well; what there is of both sides is compared.", "yellow")
        sides = [side_of(path, runs) for path, runs in zip((base, variant), folders, strict=True)]
    else:
        sides = [found_side(each, outputs=outputs, checkout=root) for each in (base, variant)]
    comparison = compare_sides(sides[0], sides[1], question)
    if root is not None:
        # Earlier looks at the same seeds, as far as a checkout keeps them.
        results, problems = readable_results(root)
        looks = tuple(earlier_looks(results, comparison))
        comparison = replace(comparison, looks=looks, notes=(*comparison.notes, *problems))
    print_comparison(comparison)
    if json is None and not is_saved:
        return code
    command = ["chomp", "compare", side_name(base), side_name(variant)]
    if seeds:
        command += ["--seeds", str(len(seeds))]
        command += ["--first-seed", str(seeds[0])] if seeds[0] else []
        for option, values in (
            ("-o", both),
            ("--set-base", only_base),
            ("--set-variant", only_variant),
        ):
            command += [word for value in values for word in (option, value)]
    for option, value, usual in (
        ("--metric", metric, "eval/loss"),
        ("--at", at, "tokens"),
        ("--best", best or "lowest", "lowest"),
        ("--smallest", f"{smallest_percent:g}", "0.1"),
    ):
        command += [option, value] if value != usual else []
    command += ["--other-data"] if is_other_data else []
    result = result_of(
        comparison,
        Circumstances(
            made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
            # Without what is of this machine or makes no difference to the result.
            command=shlex.join(command),
            note=note,
            base_overrides=tuple(only_base),
            variant_overrides=tuple(only_variant),
            lines=_changed_lines(comparison),
        ),
    )
    if json is not None:
        write_text_atomic(json, result_text(result))
        say(f"Written: {json}")
    if is_saved and root is not None:
        say(f"Saved: {save_result(root, result).relative_to(root)}")
        say("Next: chomp variant ledger, and commit both")
    return code


def _checkout_if_any() -> Path | None:
    """The checkout, which has templates and results; runs may be compared without one."""
    try:
        return checkout_root(Path.cwd())
    except ConfigError:
        return None


def _changed_lines(comparison: Comparison) -> tuple[int, int] | None:
    """Lines that it takes to turn the base's template into the variant's, as the runs kept them."""
    sides = (comparison.base, comparison.variant)
    folders = [Path(side.runs[0].folder, TEMPLATE) for side in sides]
    if not all(folder.is_dir() for folder in folders):
        return None
    changes = folder_changes(*folders, extensions=(".py",))
    return lines_beyond_renaming(changes, Renaming(*(side.variant for side in sides)))


# --- the comparison in the terminal -------------------------------------------------------------


def print_comparison(comparison: Comparison) -> None:
    """Print its changes, seeds, budgets and notes; the verdict comes last, where a reader looks."""
    question = comparison.question
    sides = f"{comparison.base.given} → {comparison.variant.given}"
    say(f"{sides}: {question.metric}, {question.best} is best")
    changes = comparison.changes
    for path, before, after in changes[:_CHANGES_SHOWN]:
        say(f"  {path}: {shorten(str(before))} → {shorten(str(after))}")
    if len(changes) > _CHANGES_SHOWN:
        say(f"  and {len(changes) - _CHANGES_SHOWN} more fields: chomp config diff shows them")
    if comparison.pairs:
        print_table(_seed_table(comparison))
    print_table(_budget_table(comparison))
    say("The verdict is that of the first line; the others are shown and decide nothing.")
    # Of a budget that does not decide, only why it is missing or skewed is of interest.
    notes = [*comparison.notes, *comparison.looks]
    notes += [note for found in comparison.budgets for note in found.notes]
    for note in dict.fromkeys(notes):
        say(f"note: {note}", "yellow")
    say(comparison.verdict.text, f"bold {_COLOURS[comparison.verdict.word]}")


def _seed_table(comparison: Comparison) -> Table:
    deciding = comparison.deciding
    title = f"at {deciding.spent_text}" if deciding.spent else "no value at the deciding budget"
    table = Table("seed", title=title)
    for heading in ("base", "variant", "difference"):
        table.add_column(heading, justify="right")
    table.add_column("runs")
    for index, pair in enumerate(comparison.pairs):
        base, variant = math.nan, math.nan
        if deciding.base:
            base, variant = deciding.base[index], deciding.variant[index]
        is_known = math.isfinite(base) and math.isfinite(variant)
        table.add_row(
            pair.label,
            *(f"{each:.4f}" if math.isfinite(each) else "not finite" for each in (base, variant)),
            f"{variant - base:+.4f}" if is_known else "-",
            f"{pair.base.folder} {pair.variant.folder}",
        )
    return table


def _budget_table(comparison: Comparison) -> Table:
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
