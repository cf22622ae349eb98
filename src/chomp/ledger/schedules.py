"""How far the runs of a pair are through their own schedules where they are compared.

A learning rate that falls takes the loss down with it at the end of a schedule. A run that is read
before its end, against one that is read at its end, would lose by that alone: a shorter run of the
very same recipe would be called better.
"""

import math
from collections.abc import Sequence

from chomp.ledger.curves import UNITS, Budget, Curve

# By pair: the share of its own steps that the base had done, and the variant.
Progress = Sequence[tuple[float, float]]

# Within this of each other nobody would notice.
_SLACK = 0.02


def progress_at(
    spent: Sequence[float], curves: Sequence[tuple[Curve, Curve]]
) -> tuple[tuple[float, float], ...]:
    """How far both runs of each pair were when they had spent so much."""
    return tuple(
        (base.progress_at(at), variant.progress_at(at))
        for at, (base, variant) in zip(spent, curves, strict=True)
    )


def mean_progress(progress: Progress) -> tuple[float, float]:
    """The share that the base had done, and the variant, over all pairs; of none, all."""
    if not progress:
        return 1.0, 1.0
    base, variant = (math.fsum(side) / len(progress) for side in zip(*progress, strict=True))
    return base, variant


def are_apart(progress: Progress) -> bool:
    """Whether the two sides stand at different places of their schedules, on average."""
    base, variant = mean_progress(progress)
    return abs(base - variant) > _SLACK


def why_undecided(budget: Budget, progress: Progress) -> str | None:
    """Why a difference there is not the change's alone, and what to do; None where it may be."""
    if not are_apart(progress):
        return None
    base, variant = (_done(share) for share in mean_progress(progress))
    return (
        f"the base had done {base} of its schedule there, the variant {variant} of it, and a "
        "learning rate that falls makes a difference by itself; train both for as many "
        f"{UNITS[budget]}"
    )


def progress_notes(budget: Budget, progress: Progress) -> list[str]:
    """Whether runs are read before their end, where a learning rate that falls is not down yet."""
    leads = [base - variant for base, variant in progress]
    widest = max(map(abs, leads))
    if widest <= _SLACK:
        return []
    unit = UNITS[budget]
    if min(leads) < -_SLACK and max(leads) > _SLACK:
        return [
            f"at equal {unit} the two runs of a pair are up to {100 * widest:.0f} % of their "
            "schedule apart, now one ahead and now the other: their speed varied"
        ]
    behind, other = ("base", "variant") if max(leads) <= _SLACK else ("variant", "base")
    far, near = (f"{100 * share:.0f} %" for share in sorted(mean_progress(progress)))
    return [f"at equal {unit} the {behind} is {far} through its schedule and the {other} {near}"]


def _done(share: float) -> str:
    return f"{100 * share:.0f} %" if share < 0.995 else "all"
