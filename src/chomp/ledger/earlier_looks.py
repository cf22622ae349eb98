"""Whether the same seeds have been looked at before: each look is another chance to be wrong."""

from collections.abc import Sequence

from chomp.ledger.comparison import Comparison
from chomp.ledger.result_file import Result


def earlier_looks(results: Sequence[Result], comparison: Comparison) -> list[str]:
    """What is to be said of kept results that hold some of these runs, but not all of them."""
    runs = _runs(comparison)
    looks = []
    for result in results:
        before = {(seed.base_run, seed.variant_run) for seed in result.seeds}
        if before < runs and result.metric == comparison.question.metric:
            looks.append(len(before))
    if not looks:
        return []
    counts = ", ".join(map(str, sorted(set(looks))))
    return [
        f"looked at before with {counts} of these {len(runs)} seeds: after a second look one "
        "change in eleven that does nothing is called better or worse, not one in twenty; "
        "--first-seed takes new seeds alone"
    ]


def _runs(comparison: Comparison) -> set[tuple[str, str]]:
    return {(pair.base.name, pair.variant.name) for pair in comparison.pairs}
