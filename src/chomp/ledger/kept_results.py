"""The results that a checkout keeps, read and held against themselves.

A result holds the values of its runs, and its statistics and its word follow from them. A file in
which they do not was edited, merged badly or made by another rule: it is refused, as a table of
such files would say what nobody measured.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from chomp.config import config_from_mapping, config_to_mapping
from chomp.errors import ChompError, ConfigError
from chomp.ledger.result_file import FORMAT, RESULTS, BudgetFacts, Result
from chomp.ledger.schedules import are_apart
from chomp.ledger.statistics import PairedStatistics, paired_statistics
from chomp.ledger.verdict import Word, word_of
from chomp.storage import read_json

# Other versions of scipy end in other digits.
_SAME = 1e-9


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
