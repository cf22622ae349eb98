"""Whether the same seeds have been looked at before: each look is another chance to be wrong."""

from collections.abc import Sequence

from chomp.ledger.comparison import Comparison
from chomp.ledger.result_file import Result


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
