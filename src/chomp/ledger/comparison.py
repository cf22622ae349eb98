"""Two sides compared: the same metric at equal tokens, equal FLOPs and equal time, over seeds.

One budget, named before looking, gives the verdict; the other two are shown beside it and decide
nothing. With three chances a change that does nothing would be called better or worse not once in
thirty times but up to once in ten (docs/decisions/0013).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chomp.errors import require
from chomp.launch.sweep import DEFAULT_METRIC, LOWEST
from chomp.ledger.curves import (
    BUDGETS,
    UNITS,
    Budget,
    Curve,
    curve_of,
    progress_at,
    progress_notes,
    why_undecided,
)
from chomp.ledger.pairing import Pair, paired
from chomp.ledger.runs import MeasuredRun, Side, differing_fields
from chomp.ledger.statistics import CONFIDENCE, PairedStatistics, paired_statistics
from chomp.ledger.verdict import SMALLEST_PERCENT, Verdict, undecided, verdict_of
from chomp.tracking.run_files import AVERAGED, eval_prefix_in, held_out_prefix, is_of_averaged


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of two sides; all of it is fixed before a number is looked at."""

    metric: str = DEFAULT_METRIC
    at: Budget = "tokens"
    best: str = LOWEST
    confidence: float = CONFIDENCE
    smallest_percent: float = SMALLEST_PERCENT
    is_other_data: bool = False


@dataclass(frozen=True, kw_only=True)
class AtBudget:
    """Both sides once so much was spent. Values are in the order of pairs, NaN: not finite."""

    budget: Budget
    spent: tuple[float, ...] = ()  # by pair: the most that both of its runs reach; empty: none
    base: tuple[float, ...] = ()
    variant: tuple[float, ...] = ()
    progress: tuple[tuple[float, float], ...] = ()  # by pair: share of its steps each had done
    statistics: PairedStatistics | None = None  # of the finite pairs; None: there are none
    notes: tuple[str, ...] = ()

    @property
    def spent_text(self) -> str:
        """The budget with its unit."""
        return spent_text(self.budget, self.spent)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is known after comparing two sides."""

    question: Question
    base: Side
    variant: Side
    pairs: tuple[Pair, ...]
    budgets: tuple[AtBudget, ...]  # the deciding one first
    verdict: Verdict
    notes: tuple[str, ...]
    diverged: tuple[str, ...]  # runs that ended because they were not finite, in words
    changes: tuple[tuple[str, object, object], ...]  # config fields: name, base's, variant's
    looks: tuple[str, ...] = ()  # what is kept of earlier looks at these runs, in words

    @property
    def deciding(self) -> AtBudget:
        """The budget that gave the verdict."""
        return self.budgets[0]


def spent_text(budget: Budget, spent: Sequence[float]) -> str:
    """What pairs had spent, with its unit; a range where they differ."""
    digits = ",.0f" if budget == "tokens" else ".3g"
    ends = dict.fromkeys(f"{end:{digits}}" for end in (min(spent), max(spent))) if spent else {}
    return f"{' to '.join(ends)} {UNITS[budget]}" if ends else "-"


def compare(base: Side, variant: Side, question: Question) -> Comparison:
    """The comparison; `ConfigError` where the runs do not answer the question.

    The default metric is the held-out loss that all runs have, under the name it has there.
    """
    notes: tuple[str, ...] = ()
    if question.metric == DEFAULT_METRIC:
        question = replace(question, metric=_held_out_loss((*base.runs, *variant.runs)))
        if is_of_averaged(question.metric):
            notes = (f"{question.metric} is of the {AVERAGED}: some runs evaluated no others",)
    found = paired(base, variant, metric=question.metric, is_other_data=question.is_other_data)
    if found.pairs:
        _require_metric(found.pairs, question.metric)
    order = sorted(BUDGETS, key=lambda budget: budget != question.at)
    budgets = tuple(_at(budget, found.pairs, question) for budget in order)
    first = (found.pairs[0].base, found.pairs[0].variant) if found.pairs else None
    return Comparison(
        question=question,
        base=base,
        variant=variant,
        pairs=found.pairs,
        budgets=budgets,
        verdict=_verdict(budgets[0], found.diverged, found.pairs, question),
        notes=(*notes, *found.notes),
        diverged=found.diverged,
        changes=tuple(differing_fields(*first)) if first else (),
    )


def _held_out_loss(runs: Sequence[MeasuredRun]) -> str:
    """The held-out loss of some run that every evaluated run has; the default where there is none.

    Where one run evaluated the averaged weights alone, that is theirs, of all runs.
    """
    own = {
        run.folder: f"{held_out_prefix(eval_prefix_in(run.config), run.record.names)}/loss"
        for run in runs
    }
    evaluated = [run for run in runs if own[run.folder] in run.record.names]
    for metric in dict.fromkeys(own[run.folder] for run in evaluated):
        if all(metric in run.record.names for run in evaluated):
            return metric
    return DEFAULT_METRIC


def _require_metric(pairs: Sequence[Pair], metric: str) -> None:
    for run in _runs(pairs):
        known = [name for name in run.record.names if name.startswith(("eval/", "train/", "lm_"))]
        require(
            bool(run.record.series(metric).steps.size),
            f"{run.folder} has no {metric}",
            allowed=f"a metric in its record: {', '.join(known[:6]) or 'the record is empty'}",
            fix="pass --metric train/loss"
            if "train/loss" in known
            else "compare runs that have logged metrics",
        )


def _at(budget: Budget, pairs: Sequence[Pair], question: Question) -> AtBudget:
    """Both sides at the largest budget that both runs of a pair reach."""
    why = _not_comparable(budget, pairs)
    if why is not None:
        return AtBudget(budget=budget, notes=(why,))
    metric = question.metric
    curves = [
        (curve_of(pair.base.record, metric, budget), curve_of(pair.variant.record, metric, budget))
        for pair in pairs
    ]
    # By pair: a machine that was slow during one seed was so for both of its runs.
    spent = [min(curve.reach for curve in both) for both in curves]
    values = [
        tuple(curve.value_at(at) for curve in both) for at, both in zip(spent, curves, strict=True)
    ]
    if any(value is None for both in values for value in both):
        return AtBudget(budget=budget, notes=(_no_value(budget, spent, pairs, curves),))
    base, variant = ([_number(both[side]) for both in values] for side in (0, 1))
    finite = [both for both in zip(base, variant, strict=True) if all(map(math.isfinite, both))]
    progress = progress_at(spent, curves)
    return AtBudget(
        budget=budget,
        spent=tuple(spent),
        base=tuple(base),
        variant=tuple(variant),
        progress=progress,
        statistics=paired_statistics(*zip(*finite, strict=True), confidence=question.confidence)
        if finite
        else None,
        notes=(
            *progress_notes(budget, progress),
            *_left_out_notes(spent, pairs, curves),
            *_overlap_notes(budget, pairs),
        ),
    )


def _not_comparable(budget: Budget, pairs: Sequence[Pair]) -> str | None:
    """Why a budget means different things to the two sides; None where it does not."""
    if not pairs:
        return "no pair of runs has ended"
    if budget == "time":
        devices = {run.device or "an unknown device" for run in _runs(pairs)}
        if len(devices) > 1:
            return f"seconds of different devices: {', '.join(sorted(devices))}"
    if budget == "tokens":
        hashes = {run.checkpoint.get("tokenizer_hash") for run in _runs(pairs)} - {None}
        if len(hashes) > 1:
            return "tokens of different tokenizers: a token is not the same text"
    return None


def _no_value(
    budget: Budget,
    spent: Sequence[float],
    pairs: Sequence[Pair],
    curves: Sequence[tuple[Curve, Curve]],
) -> str:
    """Which run has no value at the budget, and what would give it one."""
    unit = UNITS[budget]
    for at, pair, both in zip(spent, pairs, curves, strict=True):
        for run, curve in zip((pair.base, pair.variant), both, strict=True):
            if not curve.spent.size:
                return f"{run.name} does not tell what it spent in {unit}"
            if at and curve.value_at(at) is None:
                return (
                    f"no value at equal {unit}: {run.name} has its first at {curve.spent[0]:.4g}, "
                    f"and its partner ends at {at:.4g}; evaluate on the way (eval.steps_per_eval)"
                )
    raise AssertionError("asked only where some value is missing")


def _left_out_notes(
    spent: Sequence[float], pairs: Sequence[Pair], curves: Sequence[tuple[Curve, Curve]]
) -> list[str]:
    """Which means leave out values that are not finite, as of a step that was skipped."""
    left_out = [
        (run, curve.left_out_at(at))
        for at, pair, both in zip(spent, pairs, curves, strict=True)
        for run, curve in zip((pair.base, pair.variant), both, strict=True)
    ]
    return [
        f"{run.name}: {count} value{'s' * (count > 1)} of the mean not finite and left out"
        for run, count in left_out
        if count
    ]


def _overlap_notes(budget: Budget, pairs: Sequence[Pair]) -> list[str]:
    """Whether runs of the comparison slowed each other down, where that matters."""
    if budget != "time":
        return []
    spans = sorted(
        (attempt.first_time, attempt.last_time)
        for run in _runs(pairs)
        for attempt in run.record.attempts
    )
    if all(before[1] <= after[0] for before, after in itertools.pairwise(spans)):
        return []
    return [
        "runs of this comparison ran at the same time, so their seconds are not a machine's own"
    ]


def _verdict(
    deciding: AtBudget, diverged: Sequence[str], pairs: Sequence[Pair], question: Question
) -> Verdict:
    """The verdict of the deciding budget; none where a run has no finite end, or ends elsewhere.

    The mean of those that went well would say nothing of a change that diverges now and then.
    """
    statistics = deciding.statistics
    not_finite = list(diverged)
    for pair, before, after in zip(pairs, deciding.base, deciding.variant, strict=False):
        for run, value in ((pair.base, before), (pair.variant, after)):
            if not math.isfinite(value):
                not_finite.append(f"seed {pair.label}: {run.name} is not finite there")
    if not_finite:
        return undecided("; ".join(not_finite), statistics)
    if statistics is None:
        return undecided("; ".join(deciding.notes) or "there is no value to compare", None)
    why = why_undecided(deciding.budget, deciding.progress)
    if why is not None:
        return undecided(why, statistics, beside="Measured there")
    return verdict_of(
        statistics,
        best=question.best,
        smallest_percent=question.smallest_percent,
        new_seed=1 + max(pair.seeds[0] for pair in pairs),
    )


def _number(value: float | None) -> float:
    assert value is not None, "a budget that all runs reach"
    return value


def _runs(pairs: Sequence[Pair]) -> list[MeasuredRun]:
    return [run for pair in pairs for run in (pair.base, pair.variant)]
