"""Which runs of two sides belong together, and whether their numbers mean the same thing.

A pair is two runs of one seed: the same data in the same order, and the same key for the weights.
Runs that did not end are left out and named; one that ended because it was not finite is a result,
whatever became of its partner. Other held-out text, or another tokenizer under a loss per token, is
refused with the fields; other training data too, unless that is the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chomp.config.fingerprint import config_difference
from chomp.errors import ConfigError, require
from chomp.ledger.runs import MeasuredRun, Side
from chomp.storage import name_of
from chomp.tracking.run_files import FINISHED, PIECE_FINISHED

_FIELDS_TOLD = 8
_OTHER_DATA = "make the data settings equal, or pass --other-data if the data is the change"
# What of a component is text, and not tokens: a source in another form is another text.
_TEXT_FIELDS = ("source", "format")
# What decides which positions of held-out text are scored, and with how much before them.
_SCORED_FIELDS = ("mask_boundary_loss", "packing_mode", "packing")
Seeds = tuple[int, int]  # of the weights, and of the data's order
_DIVERGED = "NonFiniteError"


def require_comparable(
    base: MeasuredRun, variant: MeasuredRun, *, metric: str, is_other_data: bool
) -> list[str]:
    """What a reader should know of the pair; raises `ConfigError` if it must not be compared."""
    require(
        base.folder != variant.folder and not _is_same_run(base, variant),
        f"the same run on both sides: {base.folder} and {variant.folder}",
        allowed="two different runs",
        fix="name a run of the variant",
    )
    is_per_byte = metric.endswith("bpb")
    if not is_per_byte:
        found = _tokenizer_fields(base, variant)
        _refuse(base, variant, found, "one tokenizer for a loss per token", "use --metric eval/bpb")
    if not metric.startswith("train/"):
        found = _held_out_fields(base, variant, is_per_byte=is_per_byte)
        _refuse(base, variant, found, f"{metric} of the same held-out text", "evaluate both alike")
    other = _training_fields(base, variant)
    if not is_other_data:
        _refuse(base, variant, other, "the same training data in the same order", _OTHER_DATA)
    pair = f"{base.name} and {variant.name}"
    notes = [f"{pair}: other training data, as allowed: {'; '.join(other)}"] if other else []
    if None in (_data_fingerprint(base), _data_fingerprint(variant)):
        notes.append(f"{pair}: their data is compared by config: no checkpoint is left to prove it")
    unproved = [] if metric.startswith("train/") else _without_hash(base, variant)
    if unproved:
        notes.append(
            f"{pair}: the held-out text of {', '.join(unproved)} is compared by config: neither "
            "run has recorded its hash"
        )
    runs = (base, variant)
    return notes + [f"{run.name}: {problem}" for run in runs for problem in run.record.problems]


def _is_same_run(base: MeasuredRun, variant: MeasuredRun) -> bool:
    """Whether two folders are copies of one run: every row of it bears the time it was written."""
    times = [run.record.series("train/loss").times.tolist() for run in (base, variant)]
    return bool(times[0]) and times[0] == times[1]


def _refuse(
    base: MeasuredRun, variant: MeasuredRun, fields: Sequence[str], allowed: str, fix: str
) -> None:
    require(
        not fields,
        f"{base.name} and {variant.name} differ in {'; '.join(fields[:_FIELDS_TOLD])}",
        allowed=allowed,
        fix=fix,
    )


def _tokenizer_fields(base: MeasuredRun, variant: MeasuredRun) -> list[str]:
    hashes = [run.checkpoint.get("tokenizer_hash") for run in (base, variant)]
    if None not in hashes:
        return [] if hashes[0] == hashes[1] else ["the tokenizer"]
    return _differing([{"tokenizer": _data(run).get("tokenizer")} for run in (base, variant)])


def _held_out_fields(base: MeasuredRun, variant: MeasuredRun, *, is_per_byte: bool) -> list[str]:
    """In what the evaluated text differs."""
    runs = (base, variant)
    if is_per_byte and _tokenizer_fields(base, variant):
        # Stores hold tokens; of other tokens only the settings tell whether the text is the same.
        fields = _differing([_text_settings(_data(run)) for run in runs])
    else:
        hashes = [run.derived("data", "held_out_hashes") or {} for run in runs]
        parts = sorted({*hashes[0], *hashes[1]})
        differing = [name for name in parts if hashes[0].get(name) != hashes[1].get(name)]
        fields = [f"held-out data of {name}" for name in differing]
        unproved = _without_hash(base, variant)
        fields += _differing([_text_settings(_data(run), unproved) for run in runs])
    fields += _differing([_scored_settings(_data(run)) for run in runs])
    rows = [_evaluated_rows(run) for run in runs]
    if rows[0] != rows[1]:
        fields.append(f"evaluated rows: {rows[0]} -> {rows[1]}")
    lengths = [run.config.get("trainer", {}).get("seq_len") for run in runs]
    if lengths[0] != lengths[1]:
        fields.append(f"train.seq_len, the context of evaluation: {lengths[0]} -> {lengths[1]}")
    return fields


def _training_fields(base: MeasuredRun, variant: MeasuredRun) -> list[str]:
    """In what the training data or its order differs, as far as the runs tell."""
    prints = [_data_fingerprint(run) for run in (base, variant)]
    if prints[0] is not None and prints[0] == prints[1]:
        return []
    fields = _differing([_data(run) for run in (base, variant)])
    if None not in prints and not fields:
        return ["the content of the training data, or train.seq_len"]
    return fields


def _data_fingerprint(run: MeasuredRun) -> str | None:
    """Fingerprint of which tokens each example of the run has."""
    found = run.checkpoint.get("data_fingerprint")
    return found if isinstance(found, str) else None


def _data(run: MeasuredRun) -> dict[str, Any]:
    # Of stores only their names are left here, which say what is in them.
    return dict(run.settings.get("data", {}))


def _without_hash(base: MeasuredRun, variant: MeasuredRun) -> list[str]:
    """Components whose held-out data neither run has recorded a hash of, as streams have none."""
    runs = (base, variant)
    hashed = {name for run in runs for name in run.derived("data", "held_out_hashes") or {}}
    named = {name for run in runs for name in _data(run).get("components", {})}
    return sorted(named - hashed)


def _text_settings(data: Mapping[str, Any], names: Sequence[str] | None = None) -> dict[str, Any]:
    """What decides which text is held out, whatever its tokens; of some components, or of all."""
    stages = data.get("stages") or ()

    def weights(name: str, part: Mapping[str, Any]) -> list[float]:
        return [stage["weights"].get(name, 0) for stage in stages] or [part.get("weight", 1.0)]

    # Of a component that is never trained on, all documents are evaluated.
    components = {
        name: {
            **{key: part.get(key) for key in _TEXT_FIELDS},
            "is_trained_on": any(weights(name, part)),
        }
        for name, part in data.get("components", {}).items()
        if names is None or name in names
    }
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
