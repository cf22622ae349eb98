"""What `chomp compare` does: find or make the runs, compare them, tell, and keep the result."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chomp.cli.terminal import say

if TYPE_CHECKING:  # for annotations alone
    from pathlib import Path

    from chomp.ledger.comparison import Comparison
    from chomp.ledger.found_runs import Side
    from chomp.ledger.result_file import Circumstances


@dataclass(frozen=True, kw_only=True)
class SeedOptions:
    """Which pairs are to be run, and how."""

    seeds: tuple[int, ...]
    both: tuple[str, ...] = ()  # overrides of both sides
    base: tuple[str, ...] = ()
    variant: tuple[str, ...] = ()
    on: str | None = None
    max_concurrent: int | None = None
    is_plan: bool = False
    is_forced: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What the command line asked for."""

    base: str
    variant: str
    metric: str
    at: str
    best: str | None  # None: by the metric's name
    smallest_percent: float
    is_other_data: bool = False
    prefix: str | None = None
    json: str | None = None
    is_saved: bool = False
    note: str = ""
    seeds: SeedOptions | None = None  # None: compare what is there


def compared(asked: CompareOptions) -> int:
    """Compare, and say what came out; the exit code, which a failed run of a pair makes."""
    from chomp.cli.compare_table import tell_comparison
    from chomp.launch.launching import outputs_folder
    from chomp.ledger.comparison import Question, compare
    from chomp.ledger.curves import BUDGETS
    from chomp.ledger.verdict import best_of

    [at] = [budget for budget in BUDGETS if budget == asked.at]
    if asked.is_saved:
        _checkout()  # raised now, and not after hours of runs
    question = Question(
        metric=asked.metric,
        at=at,
        best=best_of(asked.metric, asked.best),
        smallest_percent=asked.smallest_percent,
        is_other_data=asked.is_other_data,
    )
    code = 0
    if asked.seeds is None:
        from chomp.ledger.found_runs import found_side

        outputs = outputs_folder(asked.prefix)
        root = _checkout_if_any()
        sides = [
            found_side(given, outputs=outputs, checkout=root)
            for given in (asked.base, asked.variant)
        ]
    else:
        found = _run_seeds(asked, asked.seeds)
        if found is None:
            return 0
        sides, code = found
    comparison = _with_looks(compare(sides[0], sides[1], question))
    tell_comparison(comparison)
    _keep(asked, comparison)
    return code


def _with_looks(comparison: Comparison) -> Comparison:
    """The comparison with earlier looks at its seeds, as far as a checkout keeps them."""
    from chomp.ledger.earlier_looks import earlier_looks
    from chomp.ledger.kept_results import readable_results

    root = _checkout_if_any()
    if root is None:
        return comparison
    results, problems = readable_results(root)
    looks = tuple(earlier_looks(results, comparison))
    return replace(comparison, looks=looks, notes=(*comparison.notes, *problems))


def _run_seeds(asked: CompareOptions, wanted: SeedOptions) -> tuple[list[Side], int] | None:
    """Both sides after the missing runs were made; None after a plan."""
    from chomp.cli.given_config import GivenConfig
    from chomp.cli.paired_sweep import paired_runs
    from chomp.launch.launching import LaunchOptions, outputs_folder
    from chomp.ledger.found_runs import side_of

    options = LaunchOptions(
        prefix=outputs_folder(asked.prefix),
        is_plan=wanted.is_plan,
        on=wanted.on,
        max_concurrent=wanted.max_concurrent,
    )
    given = [
        GivenConfig(path=path, overrides=(*wanted.both, *own), prefix=asked.prefix)
        for path, own in ((asked.base, wanted.base), (asked.variant, wanted.variant))
    ]
    runs = paired_runs(given[0], given[1], wanted.seeds, options, is_forced=wanted.is_forced)
    if wanted.is_plan:
        return None
    if runs.code:
        say("Not every run has ended well; what there is of both sides is compared.", "yellow")
    return [side_of(asked.base, runs.base), side_of(asked.variant, runs.variant)], runs.code


def _keep(asked: CompareOptions, comparison: Comparison) -> None:
    """Write the result where it is wanted."""
    from chomp.ledger.result_file import result_of, result_text, save_result
    from chomp.storage import write_text_atomic

    if asked.json is None and not asked.is_saved:
        return
    root = _checkout() if asked.is_saved else None
    result = result_of(comparison, _circumstances(asked, comparison))
    if asked.json is not None:
        write_text_atomic(asked.json, result_text(result))
        say(f"Written: {asked.json}")
    if root is not None:
        say(f"Saved: {save_result(root, result).relative_to(root)}")
        say("Next: chomp variant ledger, and commit both")


def _checkout() -> Path:
    from pathlib import Path

    from chomp.variants.checkout import checkout_root

    return checkout_root(Path.cwd())


def _checkout_if_any() -> Path | None:
    """The checkout, which has templates and results; runs may be compared without one."""
    from chomp.errors import ConfigError

    try:
        return _checkout()
    except ConfigError:
        return None


def _circumstances(asked: CompareOptions, comparison: Comparison) -> Circumstances:
    from datetime import UTC, datetime

    from chomp.ledger.result_file import Circumstances

    wanted = asked.seeds or SeedOptions(seeds=())
    return Circumstances(
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
        command=shlex.join(_command(asked)),
        note=asked.note,
        base_overrides=wanted.base,
        variant_overrides=wanted.variant,
        lines=_lines(comparison),
    )


def _lines(comparison: Comparison) -> tuple[int, int] | None:
    """Lines that it takes to turn the base's template into the variant's, as the runs kept them."""
    from pathlib import Path

    from chomp.tracking.run_files import TEMPLATE
    from chomp.variants.compared_variants import lines_beyond_renaming
    from chomp.variants.file_changes import folder_changes
    from chomp.variants.renamed_source import Renaming

    sides = (comparison.base, comparison.variant)
    folders = [Path(side.runs[0].folder, TEMPLATE) for side in sides]
    if not all(folder.is_dir() for folder in folders):
        return None
    changes = folder_changes(*folders, extensions=(".py",))
    return lines_beyond_renaming(changes, Renaming(*(side.variant for side in sides)))


def _command(asked: CompareOptions) -> Iterator[str]:
    """The command again, without what is of this machine or makes no difference to the result."""
    from chomp.ledger.shareable import side_name

    yield from ("chomp", "compare")
    for path in (asked.base, asked.variant):
        yield side_name(path)
    if asked.seeds is not None:
        yield from ("--seeds", str(len(asked.seeds.seeds)))
        if asked.seeds.seeds[0]:
            yield from ("--first-seed", str(asked.seeds.seeds[0]))
        for option, values in (
            ("-o", asked.seeds.both),
            ("--set-base", asked.seeds.base),
            ("--set-variant", asked.seeds.variant),
        ):
            for value in values:
                yield from (option, value)
    for option, value, usual in (
        ("--metric", asked.metric, "eval/loss"),
        ("--at", asked.at, "tokens"),
        ("--best", asked.best or "lowest", "lowest"),
        ("--smallest", f"{asked.smallest_percent:g}", "0.1"),
    ):
        if value != usual:
            yield from (option, value)
    if asked.is_other_data:
        yield "--other-data"
