"""`chomp compare`: find or make the runs of two sides, compare them, and keep the result."""

import math
import re
import shlex
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from chomp.cli.commands import Compare
from chomp.cli.load_config import GivenConfig, load_launch
from chomp.cli.output import print_rows, print_table, say, shorten
from chomp.cli.templates import LAUNCH_FILE, known_template
from chomp.errors import ConfigError, require
from chomp.executor import ExecutorStep, plan_steps
from chomp.executor.identity import identities_at
from chomp.executor.status import read_info
from chomp.launch.run import LaunchOptions, launch_plan, outputs_folder
from chomp.launch.sweep import sweep_of
from chomp.ledger.comparison import Comparison, Question
from chomp.ledger.comparison import compare as compare_sides
from chomp.ledger.pages import interval_bar
from chomp.ledger.results import (
    earlier_looks,
    readable_results,
    result_of,
    result_text,
    save_result,
    side_name,
)
from chomp.ledger.runs import find_side, side_of
from chomp.ledger.verdict import amount_text, best_of, p_text, share_text
from chomp.storage import join, write_text_atomic
from chomp.storage.screen import outliving_the_screen
from chomp.tracking.run_files import TEMPLATE
from chomp.variants.checkout import checkout_root
from chomp.variants.diff import folder_changes
from chomp.variants.lifecycle import Renaming, lines_beyond_renaming

_COLOURS = {"better": "green", "worse": "red", "no difference": "cyan", "cannot tell": "yellow"}
_CHANGES_SHOWN = 12


def compare(asked: Compare) -> int:
    """Compare two sides and print the verdict; the exit code, which a failed run decides."""
    does_run = asked.seeds is not None and not asked.plan
    with outliving_the_screen() if does_run else nullcontext():
        return _compare(asked)


def _compare(asked: Compare) -> int:
    given = (asked.base, asked.variant)
    overrides = {
        "-o": asked.both or [],
        "--set-base": asked.only_base or [],
        "--set-variant": asked.only_variant or [],
    }
    both, only_base, only_variant = overrides.values()
    seeds = range(asked.first_seed, asked.first_seed + (asked.seeds or 0))
    root: Path | None = None  # templates and results; runs may be compared without a checkout
    with nullcontext() if asked.save else suppress(ConfigError):
        root = checkout_root(Path.cwd())
    question = Question(
        metric=asked.metric,
        at=asked.at,
        best=best_of(asked.metric, asked.best),
        smallest_percent=asked.smallest,
        is_other_data=asked.other_data,
    )
    outputs, code = outputs_folder(asked.prefix), 0
    if seeds:
        options = LaunchOptions(
            prefix=outputs,
            is_plan=asked.plan,
            on=asked.on,
            max_concurrent=asked.max_concurrent,
        )
        changed = zip(given, ([*both, *only_base], [*both, *only_variant]), strict=True)
        folders, code = run_pairs(list(changed), seeds, options, is_forced=asked.force)
        if asked.plan:
            return 0
        if code:
            say("Not every run has ended well; what there is of both sides is compared.", "yellow")
        sides = [side_of(path, runs) for path, runs in zip(given, folders, strict=True)]
    else:
        sides = [find_side(each, outputs=outputs, checkout=root) for each in given]
    comparison = compare_sides(sides[0], sides[1], question)
    if root is not None:
        # Earlier looks at the same seeds, as far as a checkout keeps them.
        results, problems = readable_results(root)
        looks = tuple(earlier_looks(results, comparison))
        comparison = replace(comparison, looks=looks, notes=(*comparison.notes, *problems))
    print_comparison(comparison)
    if asked.json is None and not asked.save:
        return code
    # Without what is of this machine or makes no difference to the result.
    command = ["chomp", "compare", *map(side_name, given)]
    if seeds:
        command += ["--seeds", str(len(seeds))]
        command += ["--first-seed", str(seeds[0])] if seeds[0] else []
        command += [
            word for name, texts in overrides.items() for text in texts for word in (name, text)
        ]
    for option, value, usual in (
        ("--metric", asked.metric, "eval/loss"),
        ("--at", asked.at, "tokens"),
        ("--best", asked.best or "lowest", "lowest"),
        ("--smallest", f"{asked.smallest:g}", "0.1"),
    ):
        command += [option, value] if value != usual else []
    command += ["--other-data"] if asked.other_data else []
    result = result_of(
        comparison,
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
        command=shlex.join(command),
        note=asked.note,
        base_overrides=tuple(only_base),
        variant_overrides=tuple(only_variant),
        lines=_changed_lines(comparison),
    )
    if asked.json is not None:
        write_text_atomic(asked.json, result_text(result))
        say(f"Written: {asked.json}")
    if asked.save and root is not None:
        say(f"Saved: {save_result(root, result).relative_to(root)}")
        say("Next: chomp variant ledger, and commit both")
    return code


def _changed_lines(comparison: Comparison) -> tuple[int, int] | None:
    """Lines that it takes to turn the base's template into the variant's, as the runs kept them."""
    sides = (comparison.base, comparison.variant)
    folders = [Path(side.runs[0].folder, TEMPLATE) for side in sides]
    if not all(folder.is_dir() for folder in folders):
        return None
    changes = folder_changes(*folders, extensions=(".py",))
    return lines_beyond_renaming(changes, Renaming(*(side.variant for side in sides)))


# --- making the runs ----------------------------------------------------------------------------


def run_pairs(
    sides: Sequence[tuple[str, Sequence[str]]],  # a variant or config, and overrides
    seeds: Sequence[int],
    options: LaunchOptions,
    *,
    is_forced: bool,
) -> tuple[list[list[str]], int]:
    """The run folders of base and variant by seed, and the exit code of making what is missing.

    What is there already is not run again, unless `is_forced`, or its template was edited since:
    runs are compared as those of the source that is there now. Base and variant take turns, so that
    a machine that gets slower or busier does so to both.
    """
    launches = []
    for path, overrides in sides:
        is_file = path.endswith((".py", ".yaml", ".yml"))
        file = path if is_file else str(known_template(path) / LAUNCH_FILE)
        given = GivenConfig(path=file, overrides=tuple(overrides), prefix=options.prefix)
        launches.append(load_launch(given))
    steps: list[ExecutorStep] = []
    runs: tuple[list[ExecutorStep], list[ExecutorStep]] = ([], [])
    for seed in seeds:
        for launch, own in zip(launches, runs, strict=True):
            # As a sweep of one point: it refuses what has no folder of its own.
            point = sweep_of(launch.steps_of, launch.config, [(f"train.seed={seed}",)])
            steps += point.steps
            own.append(point.steps[-1])
    identities = identities_at(options.prefix)
    folders = [
        [join(options.prefix, f"{run.name}-{identities.of(run).hash}") for run in own]
        for own in runs
    ]
    require(
        not set(folders[0]) & set(folders[1]),
        f"{sides[0][0]} and {sides[1][0]}, which are the same run at the same seed",
        allowed="two sides that differ",
        fix="name another variant, or change a field of one: --set-variant optim.lr=1e-3",
    )
    names = dict.fromkeys(run.name for own in runs for run in own)
    planned = plan_steps(
        steps,
        prefix=options.prefix,
        force=[f"^{re.escape(name)}$" for name in names] if is_forced else [],
        is_source_identity=True,
    )
    code = launch_plan(planned, options)
    if not options.is_plan:
        # A step that failed leaves an earlier run of what needs it where one of today's should be.
        sources = {item.path: item.sources for item in planned}
        infos = {path: read_info(path) for own in folders for path in own}
        stale = [path for path, info in infos.items() if info and info.sources != sources[path]]
        require(
            not stale,
            f"runs of a template that was edited since: {', '.join(stale)}",
            allowed="runs of the source that the template has now",
            fix="read above why they were not run again, and run the same command again",
        )
    return folders, code


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
    deciding = comparison.deciding
    rows = []
    for index, pair in enumerate(comparison.pairs):
        values = [math.nan, math.nan]
        if deciding.base:
            values = [deciding.base[index], deciding.variant[index]]
        texts = [f"{each:.4f}" if math.isfinite(each) else "not finite" for each in values]
        is_known = all(map(math.isfinite, values))
        rows.append(
            {
                "seed": pair.label,
                "base": texts[0],
                "variant": texts[1],
                "difference": f"{values[1] - values[0]:+.4f}" if is_known else "-",
                "runs": f"{pair.base.folder} {pair.variant.folder}",
            }
        )
    if rows:
        title = f"at {deciding.spent_text}" if deciding.spent else "no value at the deciding budget"
        print_rows(rows, title=title, right=("base", "variant", "difference"))
    print_table(_budget_table(comparison))
    say("The verdict is that of the first line; the others are shown and decide nothing.")
    # Of a budget that does not decide, only why it is missing or skewed is of interest.
    notes = [*comparison.notes, *comparison.looks]
    notes += [note for found in comparison.budgets for note in found.notes]
    for note in dict.fromkeys(notes):
        say(f"note: {note}", "yellow")
    say(comparison.verdict.text, f"bold {_COLOURS[comparison.verdict.word]}")


def _budget_table(comparison: Comparison) -> Table:
    # By what decides: another budget may be known so badly that all else would be a dot.
    scale, deciding = 1.0, comparison.deciding.statistics
    if deciding is not None and deciding.base_mean:
        # How far from zero mean and interval lie, in percent.
        ends = [end for end in (deciding.mean, deciding.low, deciding.high) if end is not None]
        scale = max(abs(deciding.percent(end)) for end in ends)
    scale = 1.2 * max(comparison.question.smallest_percent, scale) or 1.0
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
        interval = [statistics.low, statistics.high]
        low, high = (None if end is None else statistics.percent(end) for end in interval)
        table.add_row(
            found.budget,
            found.spent_text,
            amount_text(statistics, statistics.mean),
            *("-" if end is None else amount_text(statistics, end) for end in interval),
            p_text(statistics.p),
            p_text(statistics.sign_flip_p),
            "-" if statistics.effect is None else f"{statistics.effect:+.2f}",
            interval_bar(low, statistics.percent(statistics.mean), high, scale),
        )
    return table
