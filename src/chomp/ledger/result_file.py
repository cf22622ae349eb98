"""A comparison as a file of the repository: written, read back, and checked against itself.

The ledger is made from these files alone, so they hold all that it shows, and all that the verdict
was made of. They name runs by their folders' last names, and hold no secret and no folder of
somebody's machine. Statistics and verdict follow from the values in the file: one in which they do
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
from chomp.ledger.comparison import AtBudget, Comparison
from chomp.ledger.curves import Budget, are_apart
from chomp.ledger.runs import Side
from chomp.ledger.statistics import PairedStatistics, paired_statistics
from chomp.ledger.verdict import Word, word_of
from chomp.storage import json_text, make_folder, name_of, read_json, write_text_atomic
from chomp.storage.secrets import redacted
from chomp.tracking import metrics

# Folders from a root, a home, above here or at an address; not `eval/loss`, nor `./x`.
_FOLDERS = re.compile(
    r"(?<![\w./~:])(?:(?:\.\./)+|~\w*/|/|[A-Za-z][\w+.-]*://)(?:[^\s'\",;=\[\]{}()/]+/)+"
)
RESULTS = "docs/reports/results"
FORMAT = 1
_NOT_A_NAME = re.compile(r"[^\w.-]+")
# Other versions of scipy end in other digits.
_SAME = 1e-9


def shareable(text: str) -> str:
    """The text with secrets blotted out and every such path cut to its last name."""
    return _FOLDERS.sub("…/", redacted(text))


def side_name(text: str) -> str:
    """What one side is called: a name, or the last one of a path or an address."""
    return name_of(redacted(text)) if "/" in text else redacted(text)


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


def earlier_looks(results: Sequence[Result], comparison: Comparison) -> list[str]:
    """What is to be said of kept results of these runs or some of them, one line for each.

    The very same question of the very same runs is no second look, and what came after it was none
    before it either.
    """
    runs = {(pair.base.name, pair.variant.name) for pair in comparison.pairs}
    asked = _asked(comparison)
    # By their settings too: runs of an edited template have the folders of the earlier ones.
    settings = (comparison.base.runs[0].settings_hash, comparison.variant.runs[0].settings_hash)
    kept = [
        each
        for each in results
        if each.runs
        and each.runs <= runs
        and (each.base.settings_hash, each.variant.settings_hash) == settings
    ]
    same = [each for each in kept if each.runs == runs and _asked_by(each) == asked]
    looks = [each for each in kept if each not in same]
    if same:
        looks = [each for each in looks if each.made < same[0].made]
    return [_told(each, len(runs), is_same_question=_asked_by(each) == asked) for each in looks]


def _asked(comparison: Comparison) -> tuple[object, ...]:
    question = comparison.question
    return (question.metric, question.at, question.best, question.smallest_percent)


def _asked_by(result: Result) -> tuple[object, ...]:
    return (result.metric, result.at, result.best, result.smallest_percent)


def _told(result: Result, count: int, *, is_same_question: bool) -> str:
    seeds = len(result.seeds)
    which = f"with {seeds} of these {count} seeds" if seeds < count else f"with these {count} seeds"
    if is_same_question:
        return (
            f"looked at before {which}: after a second look one change in sixteen that does "
            "nothing is called better or worse, not one in thirty; --first-seed takes new seeds "
            "alone"
        )
    return (
        f"looked at before {which}, {result.metric} at equal {result.at}: {result.word}; to choose "
        "the question after an answer is a second chance, and --first-seed takes new seeds alone"
    )


def read_results(root: Path) -> list[Result]:
    """The results of a checkout, the newest first; `ChompError` for a file that is none."""
    return _newest_first([_read(path) for path in _files(root)])


def readable_results(root: Path) -> tuple[list[Result], list[str]]:
    """The results that can be read, the newest first, and a word on each file that cannot."""
    found, problems = [], []
    for path in _files(root):
        try:
            found.append(_read(path))
        except ChompError:
            problems.append(f"{RESULTS}/{path.name} cannot be read: what it tells is not known")
    return _newest_first(found), problems


def contradictions(result: Result) -> Iterator[str]:
    """In what a result does not follow from its own values."""
    pairs = [(seed.seed, seed.data_seed) for seed in result.seeds]
    if len(set(pairs)) < len(pairs):
        yield "a seed is there twice"
    if not 0.5 <= result.confidence < 1:
        yield f"its confidence is {result.confidence}"
        return
    budgets = [found.budget for found in result.budgets]
    if len(set(budgets)) < len(budgets) or result.at not in budgets:
        yield f"its budgets are {', '.join(budgets)}, of which {result.at} is to decide"
        return
    wrong = [told for found in result.budgets for told in _wrong_at(found, result)]
    yield from wrong
    if wrong:
        return
    word = _word_of(result)
    if result.word != word:
        yield f"its word is {result.word}, and its values make it {word}"
    elif not result.verdict.startswith(word):
        yield f"its word is {word}, and its verdict begins otherwise: {result.verdict[:40]}"


def _files(root: Path) -> list[Path]:
    return sorted((root / RESULTS).glob("*.json"))


def _newest_first(results: Sequence[Result]) -> list[Result]:
    return sorted(results, key=lambda result: result.made, reverse=True)


def _read(path: Path) -> Result:
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _refused(f"{path}, which is no result of format {FORMAT}")
    result = config_from_mapping(Result, content, source=str(path))
    wrong = list(contradictions(result))
    if wrong:
        raise _refused(f"{path}, which contradicts itself: {'; '.join(wrong)}")
    return result


def _refused(given: str) -> ConfigError:
    return ConfigError(
        given,
        allowed="a file that chomp compare --save wrote",
        fix="create it again, or remove the file",
    )


def _wrong_at(found: BudgetFacts, result: Result) -> Iterator[str]:
    """What is wrong with the numbers of one budget."""
    counts = [len(found.spent), len(found.base), len(found.variant)]
    expected = len(result.seeds) if any(counts) else 0
    if any(count != expected for count in counts) or len(found.progress) not in (0, expected):
        listed = f"{counts[1]} values of the base, {counts[2]} of the variant"
        yield f"at equal {found.budget} {listed}, for {len(result.seeds)} seeds"
        return
    if not all(math.isfinite(each) and each > 0 for each in found.spent):
        yield f"what was spent in {found.budget} is {list(found.spent)}"
    pairs = _finite_pairs(found)
    statistics = (
        paired_statistics(*zip(*pairs, strict=True), confidence=result.confidence)
        if pairs
        else None
    )
    fields = _differing(found.statistics, statistics)
    if fields:
        yield f"at equal {found.budget} its values do not give its {', '.join(fields)}"


def _finite_pairs(found: BudgetFacts) -> list[tuple[float, float]]:
    return [
        (base, variant)
        for base, variant in zip(found.base, found.variant, strict=True)
        if base is not None and variant is not None and math.isfinite(base + variant)
    ]


def _differing(told: PairedStatistics | None, found: PairedStatistics | None) -> list[str]:
    """The fields of two statistics that are not the same number."""
    if told is None or found is None:
        return [] if told is found else ["statistics"]
    left, right = config_to_mapping(told), config_to_mapping(found)
    return [name for name in right if not _is_same(left[name], right[name])]


def _is_same(left: object, right: object) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=_SAME)
    return left is None and right is None


def _word_of(result: Result) -> Word:
    """The word that the values of the deciding budget give, by the rule of `comparison`."""
    deciding = result.at_budget(result.at)
    assert deciding is not None, "asked for those that have it"
    is_whole = len(_finite_pairs(deciding)) == len(result.seeds)
    if deciding.statistics is None or not is_whole or result.diverged:
        return "cannot tell"
    if are_apart(deciding.progress):
        return "cannot tell"
    return word_of(deciding.statistics, best=result.best, smallest_percent=result.smallest_percent)
