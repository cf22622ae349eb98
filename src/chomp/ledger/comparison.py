"""Two sides compared: the same metric at equal tokens, equal FLOPs and equal time, over seeds.

A pair is two runs of one seed: the same data in the same order, and the same key for the weights.
Runs that did not end are left out and named; one that ended because it was not finite is a result,
whatever became of its partner. Other held-out text, or another tokenizer under a loss per token, is
refused with the fields; other training data too, unless that is the change.

One budget, named before looking, gives the verdict; the other two are shown beside it and decide
nothing. With three chances a change that does nothing would be called better or worse not once in
thirty times but up to once in ten (docs/decisions/0013).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chomp.config.fingerprint import config_difference
from chomp.errors import ConfigError, require
from chomp.launch.sweep import DEFAULT_METRIC, LOWEST
from chomp.ledger.curves import (
    BUDGETS,
    UNITS,
    Budget,
    curve_of,
    progress_notes,
    why_undecided,
)
from chomp.ledger.runs import MeasuredRun, Side, differing_fields
from chomp.ledger.statistics import CONFIDENCE, PairedStatistics, paired_statistics
from chomp.ledger.verdict import SMALLEST_PERCENT, Verdict, undecided, verdict_of
from chomp.storage import name_of
from chomp.tracking.run_files import (
    AVERAGED,
    FINISHED,
    PIECE_FINISHED,
    eval_prefix_in,
    held_out_prefix,
    is_of_averaged,
)

Seeds = tuple[int, int]  # of the weights, and of the data's order

_DIVERGED = "NonFiniteError"
_MAX_FIELDS = 8  # in a message
# What of a component is text, and not tokens: a source in another form is another text.
_TEXT_FIELDS = ("source", "format")
# What decides which positions of held-out text are scored, and with how much before them.
_SCORED_FIELDS = ("mask_boundary_loss", "packing_mode", "packing")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of two sides; all of it is fixed before a number is looked at."""

    metric: str = DEFAULT_METRIC
    at: Budget = "tokens"
    best: str = LOWEST
    confidence: float = CONFIDENCE
    smallest_percent: float = SMALLEST_PERCENT
    is_other_data: bool = False


@dataclass(frozen=True)
class Pair:
    """A run of the base and one of the variant with the same seeds."""

    seeds: Seeds
    base: MeasuredRun
    variant: MeasuredRun

    @property
    def runs(self) -> tuple[MeasuredRun, MeasuredRun]:
        """The base's run and the variant's."""
        return self.base, self.variant

    @property
    def label(self) -> str:
        """The seed of the weights, and that of the data if it is another."""
        return _label(self.seeds)


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
    looks: tuple[str, ...] = ()  # earlier looks at these runs, in words

    @property
    def deciding(self) -> AtBudget:
        """The budget that gave the verdict."""
        return self.budgets[0]


def spent_text(budget: Budget, spent: Sequence[float]) -> str:
    """What pairs had spent, with its unit; a range if they differ."""
    digits = ",.0f" if budget == "tokens" else ".3g"
    ends = dict.fromkeys(f"{end:{digits}}" for end in (min(spent), max(spent))) if spent else {}
    return f"{' to '.join(ends)} {UNITS[budget]}" if ends else "-"


def compare(base: Side, variant: Side, question: Question) -> Comparison:
    """Compare two sides; `ConfigError` if the runs do not answer the question.

    The default metric is the held-out loss that all runs have, under the name it has there.
    """
    notes: list[str] = []
    if question.metric == DEFAULT_METRIC:
        question = replace(question, metric=_held_out_loss((*base.runs, *variant.runs)))
        if is_of_averaged(question.metric):
            notes.append(f"{question.metric} is of the {AVERAGED}: some runs evaluated no others")
    diverged = tuple(
        (f"seed {_label(run.seeds)}: " if run.seeds else "") + f"{run.name} ended with {_DIVERGED}"
        for side in (base, variant)
        for run in (*side.runs, *side.nameless)
        if run.outcome == _DIVERGED
    )
    pairs, pair_notes = _finished_pairs(base, variant)
    notes += pair_notes
    for pair in pairs:
        notes += _require_comparable(pair, question)
    if not pairs and not diverged:
        raise ConfigError(
            "no pair of runs has finished:\n" + "".join(f"  {note}\n" for note in pair_notes),
            allowed="at least one seed whose runs have ended on both sides",
            fix="wait for them, or start them again: a run continues where it stopped",
        )
    for run in _runs(pairs):
        known = [name for name in run.record.names if name.startswith(("eval/", "train/", "lm_"))]
        require(
            bool(run.record.series(question.metric).steps.size),
            f"{run.folder} has no {question.metric}",
            allowed=f"a metric in its record: {', '.join(known[:6]) or 'the record is empty'}",
            fix="pass --metric train/loss"
            if "train/loss" in known
            else "compare runs that have logged metrics",
        )
    order = sorted(BUDGETS, key=lambda budget: budget != question.at)
    budgets = tuple(_at(budget, pairs, question) for budget in order)
    return Comparison(
        question=question,
        base=base,
        variant=variant,
        pairs=tuple(pairs),
        budgets=budgets,
        verdict=_verdict(budgets[0], diverged, pairs, question),
        notes=tuple(dict.fromkeys(notes)),
        diverged=diverged,
        changes=tuple(differing_fields(*pairs[0].runs)) if pairs else (),
    )


def _held_out_loss(runs: Sequence[MeasuredRun]) -> str:
    """The held-out loss that every evaluated run has; the default if there is none.

    If one run evaluated the averaged weights alone, it is the loss of these, for all runs.
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


# --- Pairs ----------------------------------------------------------------------------------------


def _finished_pairs(base: Side, variant: Side) -> tuple[list[Pair], list[str]]:
    """The pairs that ended on both sides, by seed, and notes on what is left out."""
    by_seeds = [_runs_by_seeds(side) for side in (base, variant)]
    common = sorted(by_seeds[0].keys() & by_seeds[1].keys())
    notes: list[str] = []
    for side in (base, variant):
        notes += side.notes
        for run in side.nameless:
            why = "; ".join(run.record.problems) or "made by another program"
            notes.append(f"{run.name} is left out, as no config tells its seed ({why})")
    require(
        bool(common),
        f"the two sides share no seed: {base.given} has {_listed(by_seeds[0])}, {variant.given} "
        f"has {_listed(by_seeds[1])}" + "".join(f"; {note}" for note in notes),
        allowed="runs with the same train.seed and data seed on both sides",
        fix="run the missing seeds with chomp compare --seeds N",
    )
    for side, runs in zip((base, variant), by_seeds, strict=True):
        alone = ", ".join(_label(seeds) for seeds in sorted(runs) if seeds not in common)
        if alone:
            notes.append(f"{name_of(side.given)}: seed {alone} has no partner and is left out")
    pairs = []
    for seeds in common:
        pair = Pair(seeds, by_seeds[0][seeds], by_seeds[1][seeds])
        unfinished = [run for run in pair.runs if run.outcome != FINISHED]
        if not unfinished:
            pairs.append(pair)
            continue
        run = unfinished[0]
        ended = f"ended with {run.outcome}" if run.outcome else "has not ended, or was killed"
        ended = "has only finished a piece" if run.outcome == PIECE_FINISHED else ended
        problems = f" ({'; '.join(run.record.problems)})" if run.record.problems else ""
        notes.append(f"seed {pair.label} is left out: {run.name} {ended}{problems}")
    return pairs, notes


def _runs_by_seeds(side: Side) -> dict[Seeds, MeasuredRun]:
    found: dict[Seeds, MeasuredRun] = {}
    for run in side.runs:
        seeds = run.seeds
        assert seeds is not None, "a side keeps runs without a seed apart"
        if seeds in found:
            raise ConfigError(
                f"two runs of {side.given} with seed {_label(seeds)}: {found[seeds].name} and "
                f"{run.name}",
                allowed="one run for each seed",
                fix="name a folder, or a quoted pattern, with one of them",
            )
        found[seeds] = run
    return found


def _label(seeds: Seeds) -> str:
    seed, data_seed = seeds
    return str(seed) if seed == data_seed else f"{seed}/{data_seed}"


def _listed(runs: Mapping[Seeds, MeasuredRun]) -> str:
    if all(seed == data_seed for seed, data_seed in runs):
        return "seeds " + (", ".join(map(_label, sorted(runs))) or "none")
    listed = ", ".join(f"{seed}/{data_seed}" for seed, data_seed in sorted(runs))
    return f"seeds {listed} (of weights/data)"


def _runs(pairs: Sequence[Pair]) -> list[MeasuredRun]:
    return [run for pair in pairs for run in pair.runs]


# --- Whether a pair may be compared ---------------------------------------------------------------


def _require_comparable(pair: Pair, question: Question) -> list[str]:
    """What a reader should know of the pair; raises `ConfigError` if it must not be compared."""
    base, variant, metric = pair.base, pair.variant, question.metric
    # Copies of one run have the same times in every row.
    times = [run.record.series("train/loss").times.tolist() for run in pair.runs]
    require(
        base.folder != variant.folder and not (times[0] and times[0] == times[1]),
        f"the same run on both sides: {base.folder} and {variant.folder}",
        allowed="two different runs",
        fix="name a run of the variant",
    )

    def refuse(fields: Sequence[str], allowed: str, fix: str) -> None:
        listed = "; ".join(fields[:_MAX_FIELDS])
        given = f"{base.name} and {variant.name} differ in {listed}"
        require(not fields, given, allowed=allowed, fix=fix)

    tokenizer_fields = _tokenizer_fields(pair)
    is_per_byte, is_trained = metric.endswith("bpb"), metric.startswith("train/")
    if not is_per_byte:
        refuse(tokenizer_fields, "one tokenizer for a loss per token", "use --metric eval/bpb")
    unproved = _components_without_hash(pair)
    if not is_trained:
        is_other_token = is_per_byte and bool(tokenizer_fields)
        fields = _held_out_fields(pair, unproved, is_other_token=is_other_token)
        refuse(fields, f"{metric} of the same held-out text", "evaluate both alike")
    prints = [_data_fingerprint(run) for run in pair.runs]
    training_fields: list[str] = []
    if prints[0] is None or prints[0] != prints[1]:
        training_fields = _differing([_data(run) for run in pair.runs])
        if None not in prints and not training_fields:
            training_fields = ["the content of the training data, or train.seq_len"]
    if not question.is_other_data:
        fix = "make the data settings equal, or pass --other-data if the data is the change"
        refuse(training_fields, "the same training data in the same order", fix)
    names = f"{base.name} and {variant.name}"
    notes = []
    if training_fields:
        notes.append(f"{names}: other training data, as allowed: {'; '.join(training_fields)}")
    if None in prints:
        notes.append(
            f"{names}: their data is compared by config: no checkpoint is left to prove it"
        )
    if unproved and not is_trained:
        notes.append(
            f"{names}: the held-out text of {', '.join(unproved)} is compared by config: neither "
            "run has recorded its hash"
        )
    return notes + [
        f"{run.name}: {problem}" for run in pair.runs for problem in run.record.problems
    ]


def _tokenizer_fields(pair: Pair) -> list[str]:
    hashes = [run.checkpoint.get("tokenizer_hash") for run in pair.runs]
    if None not in hashes:
        return [] if hashes[0] == hashes[1] else ["the tokenizer"]
    return _differing([{"tokenizer": _data(run).get("tokenizer")} for run in pair.runs])


def _held_out_fields(pair: Pair, unproved: Sequence[str], *, is_other_token: bool) -> list[str]:
    """In what the evaluated text differs."""
    fields = []
    if is_other_token:
        # Stores hold tokens; with other tokens only the settings say whether the text is the same.
        fields += _differing([_text_settings(_data(run)) for run in pair.runs])
    else:
        hashes = [run.derived("data", "held_out_hashes") or {} for run in pair.runs]
        parts = sorted({*hashes[0], *hashes[1]})
        differing = [name for name in parts if hashes[0].get(name) != hashes[1].get(name)]
        fields += [f"held-out data of {name}" for name in differing]
        fields += _differing([_text_settings(_data(run), unproved) for run in pair.runs])
    fields += _differing([_scored_settings(_data(run)) for run in pair.runs])
    for what, values in (
        ("evaluated rows", [_evaluated_rows(run) for run in pair.runs]),
        (
            "train.seq_len, the context of evaluation",
            [run.config.get("trainer", {}).get("seq_len") for run in pair.runs],
        ),
    ):
        if values[0] != values[1]:
            fields.append(f"{what}: {values[0]} -> {values[1]}")
    return fields


def _components_without_hash(pair: Pair) -> list[str]:
    """Components of whose held-out data neither run has recorded a hash, as for streams."""
    hashed = {name for run in pair.runs for name in run.derived("data", "held_out_hashes") or {}}
    named = {name for run in pair.runs for name in _data(run).get("components", {})}
    return sorted(named - hashed)


def _data_fingerprint(run: MeasuredRun) -> str | None:
    found = run.checkpoint.get("data_fingerprint")
    return found if isinstance(found, str) else None


def _data(run: MeasuredRun) -> dict[str, Any]:
    return dict(run.settings.get("data", {}))


def _text_settings(data: Mapping[str, Any], names: Sequence[str] | None = None) -> dict[str, Any]:
    """What decides which text is held out, whatever its tokens; of some components, or of all."""
    stages = data.get("stages") or ()
    components = {}
    for name, part in data.get("components", {}).items():
        if names is None or name in names:
            weights = [stage["weights"].get(name, 0) for stage in stages]
            # Of a component that is never trained on, all documents are evaluated.
            is_trained_on = any(weights or [part.get("weight", 1.0)])
            text = {key: part.get(key) for key in _TEXT_FIELDS}
            components[name] = {**text, "is_trained_on": is_trained_on}
    if not components:
        return {}
    return {"components": components, "validation_fraction": data.get("validation_fraction")}


def _scored_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how much of the held-out text is scored, and how."""
    streams = {
        name: {"stream": {"max_validation_documents": stream.get("max_validation_documents")}}
        for name, part in data.get("components", {}).items()
        if isinstance(stream := part.get("stream"), Mapping)
    }
    return {**{key: data.get(key) for key in _SCORED_FIELDS}, "components": streams}


def _evaluated_rows(run: MeasuredRun) -> int | str:
    if "eval" in run.config and run.config["eval"] is None:
        return "none"
    settings = run.config.get("eval") or {}
    batches = settings.get("max_eval_batches")
    return "all" if batches is None else batches * settings.get("eval_batch_size", 1)


def _differing(sides: Sequence[Mapping[str, Any]]) -> list[str]:
    found = config_difference(sides[0], sides[1])
    return [f"data.{each.path}: {each.before} -> {each.after}" for each in found]


# --- At equal budgets -----------------------------------------------------------------------------


def _at(budget: Budget, pairs: Sequence[Pair], question: Question) -> AtBudget:
    """Both sides at the largest budget that both runs of a pair reach."""
    why = _why_not_comparable(budget, pairs)
    if why is not None:
        return AtBudget(budget=budget, notes=(why,))
    curves = [
        [curve_of(run.record, question.metric, budget) for run in pair.runs] for pair in pairs
    ]
    # By pair: a machine that was slow during one seed was slow for both of its runs.
    spent = [min(curve.reach for curve in both) for both in curves]
    for run, curve in zip(_runs(pairs), itertools.chain(*curves), strict=True):
        if not curve.spent.size:
            note = f"{run.name} has not recorded what it spent in {UNITS[budget]}"
            return AtBudget(budget=budget, notes=(note,))
    values: tuple[list[float], list[float]] = ([], [])
    notes = []
    for at, pair, both in zip(spent, pairs, curves, strict=True):
        for run, curve, side in zip(pair.runs, both, values, strict=True):
            value = curve.value_at(at)
            if value is None:
                note = (
                    f"no value at equal {UNITS[budget]}: {run.name} has its first at "
                    f"{curve.spent[0]:.4g}, and its partner ends at {at:.4g}; evaluate on the way "
                    "(eval.steps_per_eval)"
                )
                return AtBudget(budget=budget, notes=(note,))
            side.append(value)
            if count := curve.left_out_at(at):
                what = "1 value" if count == 1 else f"{count} values"
                notes.append(f"{run.name}: {what} of the mean not finite and left out")
    finite = [both for both in zip(*values, strict=True) if all(map(math.isfinite, both))]
    progress = tuple(
        (both[0].progress_at(at), both[1].progress_at(at))
        for at, both in zip(spent, curves, strict=True)
    )
    if budget == "time":
        notes += _overlap_notes(pairs)
    return AtBudget(
        budget=budget,
        spent=tuple(spent),
        base=tuple(values[0]),
        variant=tuple(values[1]),
        progress=progress,
        statistics=paired_statistics(*zip(*finite, strict=True), confidence=question.confidence)
        if finite
        else None,
        notes=(*progress_notes(budget, progress), *notes),
    )


def _why_not_comparable(budget: Budget, pairs: Sequence[Pair]) -> str | None:
    """Why a budget means different things to the two sides; None if it does not."""
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


def _overlap_notes(pairs: Sequence[Pair]) -> list[str]:
    """Whether runs of the comparison may have slowed each other down."""
    attempts = [attempt for run in _runs(pairs) for attempt in run.record.attempts]
    spans = sorted((attempt.first_time, attempt.last_time) for attempt in attempts)
    if all(before[1] <= after[0] for before, after in itertools.pairwise(spans)):
        return []
    return [
        "runs of this comparison ran at the same time, so their seconds are not a machine's own"
    ]


def _verdict(
    deciding: AtBudget, diverged: Sequence[str], pairs: Sequence[Pair], question: Question
) -> Verdict:
    """The verdict of the deciding budget; none if a run has no finite end, or ends elsewhere.

    The mean of the runs that went well would say nothing of a change that diverges now and then.
    """
    statistics = deciding.statistics
    not_finite = list(diverged)
    for pair, *values in zip(pairs, deciding.base, deciding.variant, strict=False):
        for run, value in zip(pair.runs, values, strict=True):
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
