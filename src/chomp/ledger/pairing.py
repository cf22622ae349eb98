"""Which runs of two sides belong together: those of one seed.

A pair has the same data in the same order, and the same key for its weights. Runs that did not end
are left out and named; one that ended because it was not finite is no accident but a result, so it
is told apart from them, whatever became of its partner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chomp.errors import ConfigError, require
from chomp.ledger.comparable import require_comparable
from chomp.ledger.found_runs import Side
from chomp.ledger.measured_run import MeasuredRun
from chomp.storage import name_of
from chomp.tracking.run_files import FINISHED, PIECE_FINISHED

Seeds = tuple[int, int]  # of the weights, and of the data's order
_DIVERGED = "NonFiniteError"


@dataclass(frozen=True)
class Pair:
    """A run of the base and one of the variant with the same seeds."""

    seeds: Seeds
    base: MeasuredRun
    variant: MeasuredRun

    @property
    def label(self) -> str:
        """The seed, and the data's where it is another."""
        return label_of(self.seeds)


@dataclass(frozen=True)
class Pairing:
    """The pairs that can be compared, by seed, and what was left out or should be known."""

    pairs: tuple[Pair, ...]
    diverged: tuple[str, ...]  # runs that ended because they were not finite, in words
    notes: tuple[str, ...]


def label_of(seeds: Seeds) -> str:
    """The seed of the weights, and that of the data where it is another."""
    seed, data_seed = seeds
    return str(seed) if seed == data_seed else f"{seed}/{data_seed}"


def paired(base: Side, variant: Side, *, metric: str, is_other_data: bool = False) -> Pairing:
    """The finished pairs of two sides; `ConfigError` where they cannot be compared.

    `is_other_data`: the data is what was changed, so training data may differ.
    """
    runs = [_by_seeds(side) for side in (base, variant)]
    common = sorted(runs[0].keys() & runs[1].keys())
    notes = [note for side in (base, variant) for note in (*side.notes, *_nameless(side))]
    require(
        bool(common),
        f"the two sides share no seed: {base.given} has {_listed(runs[0])}, {variant.given} "
        f"has {_listed(runs[1])}" + "".join(f"; {note}" for note in notes),
        allowed="runs with the same train.seed and data seed on both sides",
        fix="run the missing seeds with chomp compare --seeds N",
    )
    all_pairs = [Pair(seeds, runs[0][seeds], runs[1][seeds]) for seeds in common]
    notes += [*_alone(base, runs[0], common), *_alone(variant, runs[1], common)]
    diverged = [*_diverged(base), *_diverged(variant)]
    pairs = []
    for pair in all_pairs:
        why = _why_unfinished(pair)
        if why is None:
            pairs.append(pair)
        else:
            notes.append(f"seed {pair.label} is left out: {why}")
    for pair in pairs:
        notes += require_comparable(
            pair.base, pair.variant, metric=metric, is_other_data=is_other_data
        )
    if not pairs and not diverged:
        raise ConfigError(
            "no pair of runs has finished:\n" + "".join(f"  {note}\n" for note in notes),
            allowed="at least one seed whose runs have ended on both sides",
            fix="wait for them, or start them again: a run continues where it stopped",
        )
    return Pairing(tuple(pairs), tuple(diverged), tuple(dict.fromkeys(notes)))


def _by_seeds(side: Side) -> dict[Seeds, MeasuredRun]:
    found: dict[Seeds, MeasuredRun] = {}
    for run in side.runs:
        seeds = run.seeds
        assert seeds is not None, "a side keeps those without a seed apart"
        require(
            seeds not in found,
            f"two runs of {side.given} with seed {label_of(seeds)}: {found[seeds].name} and "
            f"{run.name}"
            if seeds in found
            else "",
            allowed="one run for each seed",
            fix="name a folder, or a quoted pattern, with one of them",
        )
        found[seeds] = run
    return found


def _nameless(side: Side) -> list[str]:
    """What is to be said of runs that cannot be paired, as nothing tells their seed."""
    return [
        f"{run.name} is left out, as no config tells its seed "
        f"({'; '.join(run.record.problems) or 'made by another program'})"
        for run in side.nameless
    ]


def _diverged(side: Side) -> list[str]:
    """The runs of a side that ended because they were not finite, also those without a partner."""
    return [
        (f"seed {label_of(run.seeds)}: " if run.seeds else "")
        + f"{run.name} ended with {_DIVERGED}"
        for run in (*side.runs, *side.nameless)
        if run.outcome == _DIVERGED
    ]


def _listed(runs: Mapping[Seeds, MeasuredRun]) -> str:
    if all(seed == data_seed for seed, data_seed in runs):
        return "seeds " + (", ".join(map(label_of, sorted(runs))) or "none")
    listed = ", ".join(f"{seed}/{data_seed}" for seed, data_seed in sorted(runs))
    return f"seeds {listed} (of weights/data)"


def _alone(side: Side, runs: Mapping[Seeds, MeasuredRun], common: Sequence[Seeds]) -> list[str]:
    left = [label_of(seeds) for seeds in sorted(runs) if seeds not in common]
    return (
        [f"{name_of(side.given)}: seed {', '.join(left)} has no partner and is left out"]
        if left
        else []
    )


def _why_unfinished(pair: Pair) -> str | None:
    """What keeps a pair from being compared; None for one that ended on both sides."""
    for run in (pair.base, pair.variant):
        if run.outcome != FINISHED:
            ended = f"ended with {run.outcome}" if run.outcome else "has not ended, or was killed"
            ended = "has only finished a piece" if run.outcome == PIECE_FINISHED else ended
            problems = f" ({'; '.join(run.record.problems)})" if run.record.problems else ""
            return f"{run.name} {ended}{problems}"
    return None
