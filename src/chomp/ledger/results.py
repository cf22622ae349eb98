"""A comparison as a file of the repository: written, read back, and checked against itself.

The ledger is made from these files alone, so they hold all that it shows, and all that the verdict
was made of. They name runs by their folders' last names, and hold no secret and no folder of a
user's machine. Statistics and verdict follow from the values in the file: a file in which they do
not was edited, merged badly or made by another rule, and is refused. Files of the same seeds are
counted: each look is another chance to be wrong.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chomp.config import Config, config_from_mapping, config_to_mapping, fingerprint
from chomp.errors import ChompError, ConfigError
from chomp.ledger.comparison import Comparison
from chomp.ledger.curves import Budget, are_apart
from chomp.ledger.runs import Side
from chomp.ledger.statistics import PairedStatistics, paired_statistics
from chomp.ledger.verdict import Word, word_of
from chomp.storage import json_text, make_folder, name_of, read_json, write_text_atomic
from chomp.storage.secrets import redacted
from chomp.tracking import metrics

RESULTS = "docs/reports/results"
FORMAT = 1
# Folders from a root, a home, above here or at an address; not `eval/loss`, nor `./x`.
_FOLDERS = re.compile(
    r"(?<![\w./~:])(?:(?:\.\./)+|~\w*/|/|[A-Za-z][\w+.-]*://)(?:[^\s'\",;=\[\]{}()/]+/)+"
)
_SAME = 1e-9  # other versions of scipy end in other digits


@dataclass(frozen=True, kw_only=True)
class SideFacts(Config):
    """One side: the template, how it was set, and how large it is."""

    variant: str
    overrides: tuple[str, ...] = ()  # of this side alone
    settings_hash: str
    template_hash: str | None = None
    parameter_count: int | None = None
    flops_per_token: float | None = None


@dataclass(frozen=True, kw_only=True)
class SeedFacts(Config):
    """One pair of runs."""

    seed: int
    data_seed: int
    base_run: str
    variant_run: str


@dataclass(frozen=True, kw_only=True)
class BudgetFacts(Config):
    """Both sides at one budget."""

    budget: Budget
    spent: tuple[float, ...] = ()  # by pair
    base: tuple[float | None, ...] = ()  # by pair; null: not finite
    variant: tuple[float | None, ...] = ()
    # By pair: the shares of their schedules that base and variant had done; early files have none.
    progress: tuple[tuple[float, float], ...] = ()
    statistics: PairedStatistics | None = None  # of the finite pairs
    notes: tuple[str, ...] = ()

    @property
    def finite_pairs(self) -> list[tuple[float, float]]:
        """The values of the pairs in which both sides are finite."""
        return [
            (base, variant)
            for base, variant in zip(self.base, self.variant, strict=True)
            if base is not None and variant is not None and math.isfinite(base + variant)
        ]


@dataclass(frozen=True, kw_only=True)
class ChangeFacts(Config):
    """A config field that differs, both values as text."""

    field: str
    base: str
    variant: str


@dataclass(frozen=True, kw_only=True)
class Result(Config):
    """A saved comparison."""

    format: int = FORMAT
    made: str  # in UTC, as 2026-11-16 10:28:03; early ones have the day alone
    commit: str | None = None  # that the runs ran; several by commas; null: a run recorded none
    command: str
    note: str = ""
    metric: str
    best: str
    at: Budget  # that decided
    confidence: float
    smallest_percent: float
    device: str
    versions: dict[str, str] = field(default_factory=dict)
    seeds: tuple[SeedFacts, ...]
    base: SideFacts
    variant: SideFacts
    lines: tuple[int, int] | None = None  # of Python, added to the base's template and deleted
    changes: tuple[ChangeFacts, ...] = ()
    budgets: tuple[BudgetFacts, ...]
    word: Word
    verdict: str
    notes: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()  # runs that ended because they were not finite, in words
    looks: int = 0  # earlier saved ones at these runs, each a chance to be wrong

    @property
    def day(self) -> str:
        """When it was made, without the hour."""
        return self.made[:10]

    @property
    def runs(self) -> set[tuple[str, str]]:
        """The pairs of runs by their names."""
        return {(seed.base_run, seed.variant_run) for seed in self.seeds}

    def at_budget(self, budget: Budget) -> BudgetFacts | None:
        """The values at one budget; None if the file has none."""
        return next((found for found in self.budgets if found.budget == budget), None)


def result_of(
    comparison: Comparison,
    *,
    made: str,
    command: str,
    note: str = "",
    base_overrides: Sequence[str] = (),
    variant_overrides: Sequence[str] = (),
    lines: tuple[int, int] | None = None,
) -> Result:
    """The comparison as a file holds it, with what it cannot know of itself."""
    question = comparison.question
    runs = [run for pair in comparison.pairs for run in pair.runs]
    # The commits of all runs. What is checked out by now is another matter, so never that.
    commits = [run.commit for run in runs]
    versions: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.environment.items():
            versions.setdefault(name, set()).add(str(value))
    return Result(
        made=made,
        commit=", ".join(sorted({str(c) for c in commits}))
        if runs and None not in commits
        else None,
        command=shareable(command),
        note=shareable(note),
        metric=question.metric,
        best=question.best,
        at=question.at,
        confidence=question.confidence,
        smallest_percent=question.smallest_percent,
        device=", ".join(
            sorted({str(run.record.summary.get(metrics.DEVICE_KIND)) for run in runs})
        ),
        versions={name: ", ".join(sorted(values)) for name, values in sorted(versions.items())},
        seeds=tuple(
            SeedFacts(
                seed=pair.seeds[0],
                data_seed=pair.seeds[1],
                base_run=pair.base.name,
                variant_run=pair.variant.name,
            )
            for pair in comparison.pairs
        ),
        base=_side_facts(comparison.base, base_overrides),
        variant=_side_facts(comparison.variant, variant_overrides),
        lines=lines,
        changes=tuple(
            ChangeFacts(field=path, base=shareable(str(before)), variant=shareable(str(after)))
            for path, before, after in comparison.changes
        ),
        budgets=tuple(
            BudgetFacts(
                budget=found.budget,
                spent=found.spent,
                base=tuple(value if math.isfinite(value) else None for value in found.base),
                variant=tuple(value if math.isfinite(value) else None for value in found.variant),
                progress=found.progress,
                statistics=found.statistics,
                notes=found.notes,
            )
            for found in comparison.budgets
        ),
        word=comparison.verdict.word,
        verdict=shareable(comparison.verdict.text),
        notes=tuple(map(shareable, (*comparison.notes, *comparison.looks))),
        diverged=tuple(map(shareable, comparison.diverged)),
        looks=len(comparison.looks),
    )


def _side_facts(side: Side, overrides: Sequence[str]) -> SideFacts:
    run = side.runs[0]
    parameters = run.record.summary.get(metrics.PARAMETER_COUNT)
    flops = run.record.summary.get(metrics.FLOPS_PER_TOKEN_ANALYTIC)
    return SideFacts(
        variant=side_name(side.variant),
        overrides=tuple(map(shareable, overrides)),
        settings_hash=run.settings_hash,
        template_hash=run.template_hash,
        parameter_count=int(parameters) if isinstance(parameters, int | float) else None,
        flops_per_token=float(flops) if isinstance(flops, int | float) else None,
    )


def shareable(text: str) -> str:
    """The text without secrets, every folder cut to its last name."""
    return _FOLDERS.sub("…/", redacted(text))


def side_name(text: str) -> str:
    """What one side is called: a name, or the last one of a path or an address."""
    return name_of(redacted(text)) if "/" in text else redacted(text)


def result_text(result: Result) -> str:
    """The file's content."""
    return json_text(config_to_mapping(result), name="a result", indent=2) + "\n"


def save_result(root: Path, result: Result) -> Path:
    """Write the result into the checkout, and return its path; the same comparison replaces it.

    Its name is made of both sides, and a hash of the question, the runs and their settings: runs
    outside of the executor have the user's names, so runs of another experiment may share them.
    """
    question = [result.metric, result.at, result.best, result.confidence, result.smallest_percent]
    settings = [side.settings_hash for side in (result.base, result.variant)]
    digest = fingerprint([question, [config_to_mapping(seed) for seed in result.seeds], settings])
    # A variant's name is the user's, and may hold anything; a file's must not lead elsewhere.
    sides = [re.sub(r"[^\w.-]+", "-", side.variant) for side in (result.base, result.variant)]
    path = root / RESULTS / f"{'--'.join(sides)}--{digest[:8]}.json"
    make_folder(path.parent)
    write_text_atomic(path, result_text(result))
    return path


def earlier_looks(results: Sequence[Result], comparison: Comparison) -> list[str]:
    """A line for each saved result of some or all of these runs.

    The same question of the same runs is not a second look, and neither is what came after it.
    """
    runs = {(pair.base.name, pair.variant.name) for pair in comparison.pairs}
    question = comparison.question
    asked = (question.metric, question.at, question.best, question.smallest_percent)
    # By their settings too: runs of an edited template have the folders of the earlier ones.
    settings = (comparison.base.runs[0].settings_hash, comparison.variant.runs[0].settings_hash)

    def is_same_question(result: Result) -> bool:
        return (result.metric, result.at, result.best, result.smallest_percent) == asked

    kept = [
        each
        for each in results
        if each.runs
        and each.runs <= runs
        and (each.base.settings_hash, each.variant.settings_hash) == settings
    ]
    same = [each for each in kept if each.runs == runs and is_same_question(each)]
    lines = []
    for each in kept:
        if each in same or (same and each.made >= same[0].made):
            continue
        seeds = len(each.seeds)
        which = f"with {seeds} of these {len(runs)}" if seeds < len(runs) else f"with these {seeds}"
        looked = f"looked at before {which} seeds"
        if is_same_question(each):
            lines.append(
                f"{looked}: after a second look one change in sixteen that does nothing is called "
                "better or worse, not one in thirty; --first-seed takes new seeds alone"
            )
        else:
            lines.append(
                f"{looked}, {each.metric} at equal {each.at}: {each.word}; to choose the question "
                "after an answer is a second chance, and --first-seed takes new seeds alone"
            )
    return lines


def read_results(root: Path) -> list[Result]:
    """The results of a checkout, the newest first; `ChompError` for a file that is not one."""
    results = [_read_result(path) for path in sorted((root / RESULTS).glob("*.json"))]
    return sorted(results, key=lambda result: result.made, reverse=True)


def readable_results(root: Path) -> tuple[list[Result], list[str]]:
    """The results that can be read, the newest first, and a note on each file that cannot."""
    results, problems = [], []
    for path in sorted((root / RESULTS).glob("*.json")):
        try:
            results.append(_read_result(path))
        except ChompError:
            problems.append(f"{RESULTS}/{path.name} cannot be read: what it says is not known")
    return sorted(results, key=lambda result: result.made, reverse=True), problems


def _read_result(path: Path) -> Result:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _refused(f"{path}, which is no result of format {FORMAT}")
    result = config_from_mapping(Result, content, source=str(path))
    wrong = list(_contradictions(result))
    if wrong:
        raise _refused(f"{path}, which contradicts itself: {'; '.join(wrong)}")
    return result


def _refused(given: str) -> ConfigError:
    return ConfigError(
        given,
        allowed="a file that chomp compare --save wrote",
        fix="create it again, or remove the file",
    )


def _contradictions(result: Result) -> Iterator[str]:
    """In what a result does not follow from its own values."""
    pairs = [(seed.seed, seed.data_seed) for seed in result.seeds]
    if len(set(pairs)) < len(pairs):
        yield "a seed is there twice"
    if not 0.5 <= result.confidence < 1:
        yield f"its confidence is {result.confidence}"
        return
    budgets = [found.budget for found in result.budgets]
    deciding = result.at_budget(result.at)
    if len(set(budgets)) < len(budgets) or deciding is None:
        yield f"its budgets are {', '.join(budgets)}, of which {result.at} is to decide"
        return
    wrong = [text for found in result.budgets for text in _contradictions_at(found, result)]
    if wrong:
        yield from wrong
        return
    # By the rule of `comparison`.
    word: Word = "cannot tell"
    is_whole = len(deciding.finite_pairs) == len(result.seeds) and not result.diverged
    if deciding.statistics is not None and is_whole and not are_apart(deciding.progress):
        word = word_of(
            deciding.statistics, best=result.best, smallest_percent=result.smallest_percent
        )
    if result.word != word:
        yield f"its word is {result.word}, and its values make it {word}"
    elif not result.verdict.startswith(word):
        yield f"its word is {word}, and its verdict begins otherwise: {result.verdict[:40]}"


def _contradictions_at(found: BudgetFacts, result: Result) -> Iterator[str]:
    """What is wrong with the numbers of one budget."""
    counts = [len(found.spent), len(found.base), len(found.variant)]
    expected = len(result.seeds) if any(counts) else 0
    if any(count != expected for count in counts) or len(found.progress) not in (0, expected):
        listed = f"{counts[1]} values of the base, {counts[2]} of the variant"
        yield f"at equal {found.budget} {listed}, for {len(result.seeds)} seeds"
        return
    if not all(math.isfinite(each) and each > 0 for each in found.spent):
        yield f"what was spent in {found.budget} is {list(found.spent)}"
    pairs = found.finite_pairs
    wrong = ["statistics"] if bool(pairs) != (found.statistics is not None) else []
    if pairs and found.statistics is not None:
        statistics = paired_statistics(*zip(*pairs, strict=True), confidence=result.confidence)
        expect, kept = config_to_mapping(statistics), config_to_mapping(found.statistics)
        wrong = [name for name in expect if not _is_same(kept[name], expect[name])]
    if wrong:
        yield f"at equal {found.budget} its values do not give its {', '.join(wrong)}"


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=_SAME)
    return left is None and right is None
