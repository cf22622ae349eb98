"""A comparison as a file of the repository: what was compared, what came out, and what made it.

The ledger is made from these files alone, so they hold all that it shows, and all that the verdict
was made of (`kept_results` reads them). They name runs by their folders' last names: where these
lie on somebody's machine is nobody else's business.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chomp.config import Config, config_to_mapping, fingerprint
from chomp.ledger.comparison import AtBudget, Comparison
from chomp.ledger.curves import Budget
from chomp.ledger.found_runs import Side
from chomp.ledger.shareable import shareable, side_name
from chomp.ledger.statistics import PairedStatistics
from chomp.ledger.verdict import Word
from chomp.storage import json_text, make_folder, write_text_atomic
from chomp.tracking import metrics

RESULTS = "docs/reports/results"
FORMAT = 1
_NOT_A_NAME = re.compile(r"[^\w.-]+")


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


@dataclass(frozen=True, kw_only=True)
class ChangeFacts(Config):
    """A config field that differs, both values as text."""

    field: str
    base: str
    variant: str


@dataclass(frozen=True, kw_only=True)
class Result(Config):
    """A comparison, kept."""

    format: int = FORMAT
    made: str  # in UTC, as 2026-11-16 10:28:03; early ones tell the day alone
    commit: str | None = None  # that the runs ran; several by commas; null: a run told none
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
    looks: int = 0  # earlier ones at these runs that were kept, each a chance to be wrong

    @property
    def day(self) -> str:
        """When it was made, without the hour."""
        return self.made[:10]

    @property
    def runs(self) -> set[tuple[str, str]]:
        """The pairs of runs by their names."""
        return {(seed.base_run, seed.variant_run) for seed in self.seeds}

    def at_budget(self, budget: Budget) -> BudgetFacts | None:
        """What came out at one budget; None where the file has none."""
        return next((found for found in self.budgets if found.budget == budget), None)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What a comparison cannot know of itself."""

    made: str
    command: str
    note: str = ""
    base_overrides: Sequence[str] = ()
    variant_overrides: Sequence[str] = ()
    lines: tuple[int, int] | None = None


def result_of(comparison: Comparison, around: Circumstances) -> Result:
    """The comparison as what is kept of it."""
    question = comparison.question
    runs = [run for pair in comparison.pairs for run in (pair.base, pair.variant)]
    return Result(
        made=around.made,
        commit=_commit([run.commit for run in runs]),
        command=shareable(around.command),
        note=shareable(around.note),
        metric=question.metric,
        best=question.best,
        at=question.at,
        confidence=question.confidence,
        smallest_percent=question.smallest_percent,
        device=", ".join(
            sorted({str(run.record.summary.get(metrics.DEVICE_KIND)) for run in runs})
        ),
        versions=_versions([run.environment for run in runs]),
        seeds=tuple(
            SeedFacts(
                seed=pair.seeds[0],
                data_seed=pair.seeds[1],
                base_run=pair.base.name,
                variant_run=pair.variant.name,
            )
            for pair in comparison.pairs
        ),
        base=_side(comparison.base, around.base_overrides),
        variant=_side(comparison.variant, around.variant_overrides),
        lines=around.lines,
        changes=tuple(
            ChangeFacts(field=path, base=shareable(str(before)), variant=shareable(str(after)))
            for path, before, after in comparison.changes
        ),
        budgets=tuple(map(_budget, comparison.budgets)),
        word=comparison.verdict.word,
        verdict=shareable(comparison.verdict.text),
        notes=tuple(map(shareable, (*comparison.notes, *comparison.looks))),
        diverged=tuple(map(shareable, comparison.diverged)),
        looks=len(comparison.looks),
    )


def result_text(result: Result) -> str:
    """The file's content."""
    return json_text(config_to_mapping(result), name="a result", indent=2) + "\n"


def save_result(root: Path, result: Result) -> Path:
    """Write the result into the checkout, and give its place; the same comparison replaces it."""
    path = root / RESULTS / result_name(result)
    make_folder(path.parent)
    write_text_atomic(path, result_text(result))
    return path


def result_name(result: Result) -> str:
    """The name of its file: both sides, and a hash of what was asked, of which runs and settings.

    Runs outside of the executor are called what their user called them, so runs of another
    experiment may have the same names; their settings are others.
    """
    asked = [result.metric, result.at, result.best, result.confidence, result.smallest_percent]
    settings = [side.settings_hash for side in (result.base, result.variant)]
    what = [asked, [config_to_mapping(seed) for seed in result.seeds], settings]
    # A name is the user's, and may hold anything; a file's must not lead elsewhere.
    sides = [_NOT_A_NAME.sub("-", side.variant) for side in (result.base, result.variant)]
    return f"{'--'.join(sides)}--{fingerprint(what)[:8]}.json"


def _side(side: Side, overrides: Sequence[str]) -> SideFacts:
    run = side.runs[0]
    summary = run.record.summary
    return SideFacts(
        variant=side_name(side.variant),
        overrides=tuple(map(shareable, overrides)),
        settings_hash=run.settings_hash,
        template_hash=run.template_hash,
        parameter_count=_number(summary.get(metrics.PARAMETER_COUNT), int),
        flops_per_token=_number(summary.get(metrics.FLOPS_PER_TOKEN_ANALYTIC), float),
    )


def _budget(found: AtBudget) -> BudgetFacts:
    return BudgetFacts(
        budget=found.budget,
        spent=found.spent,
        base=tuple(map(_finite, found.base)),
        variant=tuple(map(_finite, found.variant)),
        progress=found.progress,
        statistics=found.statistics,
        notes=found.notes,
    )


def _versions(environments: Sequence[Any]) -> dict[str, str]:
    """What the runs were made with; several values of one name side by side."""
    found: dict[str, set[str]] = {}
    for environment in environments:
        for name, value in environment.items():
            found.setdefault(name, set()).add(str(value))
    return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}


def _commit(commits: Sequence[str | None]) -> str | None:
    """The commits of all runs. What is checked out by now is another matter, so never that."""
    told = [commit for commit in commits if commit is not None]
    is_whole = bool(told) and len(told) == len(commits)
    return ", ".join(sorted(set(told))) if is_whole else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: object, kind: type[Any]) -> Any:
    return kind(value) if isinstance(value, int | float) else None
