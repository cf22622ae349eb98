"""The runs of one side of a comparison: found by name or folder, and read from their own files.

All runs of a side are equal except for their seeds: one setting, one source of the template. A name
means what the executor recorded for that variant: the newest settings with the current source are
taken, and the others are named. Of folders that the user chose, nothing is skipped silently.
Folders that were set aside are not runs. What no file of a run says is None here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from chomp.config.fingerprint import config_difference, fingerprint
from chomp.config.messages import did_you_mean, nearest
from chomp.errors import ConfigError, StorageError, require
from chomp.executor import read_status
from chomp.executor.status import StepInfo, read_info
from chomp.executor.step import source_hashes
from chomp.report.record import Record, read_record
from chomp.storage import (
    exists,
    is_folder,
    is_set_aside,
    join,
    list_folder,
    name_of,
    parent_of,
    read_bytes,
    read_json,
)
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.tracking import latest_rows, metrics, read_metrics
from chomp.tracking.run_files import (
    DERIVED,
    TEMPLATE,
    eval_prefix_in,
    held_out_prefix,
    is_run_folder,
    record_in,
    resolved_config,
    run_folders_in,
)
from chomp.variants.checkout import variant_path

RUNS = "grug"  # below the folder of outputs
# As `chomp.checkpoint` lays them out; that room imports JAX, which reading one file does not need.
_CHECKPOINTS, _METADATA = "checkpoints", "metadata.json"
_STEP_FOLDER = re.compile(r"step-(\d+)")
# Parts of a config that say which of several equal runs it is, where things are, and what is
# observed on the way.
_NO_SETTINGS = ("run_id", "output_path", "logging", "checkpoint", "samples", "eval", DERIVED)
_NO_TRAINER_SETTINGS = (
    *("seed", "data_seed", "log_every", "watch", "profiler", "log_dir"),
    *("load_checkpoint", "allow_changes", "allow_fresh_start"),
)
# The last name of a built path says what it is. That of a chosen one does not (`*.txt`,
# `step-100`), so a fingerprint of the whole is added: another place stays another setting.
_BUILT = ("path", "train_store", "validation_store")
_CHOSEN = ("paths", "data_files", "file", "initialize_from", "load_checkpoint_path")
_HUB = "hf"  # the kind of source whose `path` is a name, such as allenai/c4
_MAX_FIELDS = 6  # in a message


@dataclass(frozen=True)
class MeasuredRun:
    """One run, read once."""

    record: Record
    info: StepInfo | None  # None: not created by the executor
    host: str | None
    checkpoint: Mapping[str, Any]  # metadata of the newest checkpoint; empty if none is left

    @property
    def folder(self) -> str:
        """Its path."""
        return self.record.folder

    @property
    def name(self) -> str:
        """The name of its folder, which is all that a result file may say of a place."""
        return name_of(self.folder)

    @property
    def config(self) -> Mapping[str, Any]:
        """Its resolved config; empty if there is none."""
        return self.record.config or {}

    @property
    def variant(self) -> str:
        """The template that the executor recorded; else the run's own id."""
        return self.record.name if self.info is None else _variant_of(self.info)

    @property
    def seeds(self) -> tuple[int, int] | None:
        """The seed of the weights and that of the data's order; None if none is recorded."""
        seed = self.config.get("trainer", {}).get("seed")
        data_seed = self.derived("train", "data_seed_effective")
        return None if seed is None else (seed, seed if data_seed is None else data_seed)

    @property
    def outcome(self) -> str | None:
        """How its last attempt ended; None: it still runs, or was killed."""
        return self.record.attempts[-1].outcome if self.record.attempts else None

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions, devices and commit, by its newest checkpoint and its record, which is newer."""
        found = self.checkpoint.get("environment")
        start = metrics.name_from(metrics.ENVIRONMENT, "x").removesuffix("x")
        return {
            **(found if isinstance(found, Mapping) else {}),
            **{
                key.removeprefix(start): value
                for key, value in self.record.summary.items()
                if key.startswith(start)
            },
        }

    @property
    def commit(self) -> str | None:
        """The commit it ran, with `-dirty` if files differed from it; None if not recorded."""
        found = self.environment.get("commit")
        return found if isinstance(found, str) else None

    @property
    def device(self) -> str | None:
        """What its seconds are seconds of. For CPUs the host says more than the kind."""
        kind = self.record.summary.get(metrics.DEVICE_KIND)
        if not isinstance(kind, str):
            return None
        count = self.environment.get("devices")
        times = f"{count} x " if isinstance(count, int) and count > 1 else ""
        return f"{times}{kind}" + (f" of {self.host}" if kind == "cpu" and self.host else "")

    @cached_property
    def template_hash(self) -> str | None:
        """Fingerprint of the template's own files, as the run kept them."""
        if self.info is not None and self.info.sources:
            return fingerprint(self.info.sources)
        folder = join(self.folder, TEMPLATE)
        # As the executor does it, so that both ways to run a template give one hash.
        sources = {
            name: sha256(read_bytes(join(folder, name), max_bytes=MAX_TEXT_BYTES)).hexdigest()
            for name in (list_folder(folder) if is_folder(folder) else [])
            if name.endswith(".py")
        }
        return fingerprint(sources) if sources else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its config without seeds and places: equal for the runs of one side."""
        kept = {key: value for key, value in self.config.items() if key not in _NO_SETTINGS}
        trainer = kept.get("trainer", {})
        kept["trainer"] = _without_places(
            {key: value for key, value in trainer.items() if key not in _NO_TRAINER_SETTINGS}
        )
        kept["data"] = _without_places(kept.get("data", {}))
        return kept

    @cached_property
    def settings_hash(self) -> str:
        """One text for runs that differ only in their seed."""
        return fingerprint({"settings": self.settings, "template": self.template_hash})

    def derived(self, *keys: str) -> Any:
        """A value that follows from the config; None if this run has not recorded it."""
        found: Any = self.config.get(DERIVED)
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def measured_run(folder: str) -> MeasuredRun:
    """Read a run folder. What is half written is left out, and in the record's `problems`."""
    record = read_record(folder, has_begun=False)
    try:
        info, status = read_info(record.folder), read_status(record.folder)
    except StorageError:  # not the run's own files: it can be compared without them
        info = status = None
    host = None if status is None else status.host
    return MeasuredRun(record, info, host, _newest_checkpoint(record.folder))


def _newest_checkpoint(folder: str) -> Mapping[str, Any]:
    """The metadata of the newest checkpoint that can be read; empty if there is none."""
    place = join(folder, _CHECKPOINTS)
    names = list_folder(place) if is_folder(place) else []
    steps = {int(found[1]): found[0] for found in map(_STEP_FOLDER.fullmatch, names) if found}
    for step in sorted(steps, reverse=True):
        location = join(place, steps[step], _METADATA)
        try:
            content = read_json(location) if exists(location) else None
        except StorageError:
            continue  # a damaged one; an older one says the same
        if isinstance(content, dict):
            return content
    return {}


def _without_places(value: Any, key: str = "", *, is_hub: bool = False) -> Any:
    """Plain data with every path cut to its last name."""
    if isinstance(value, Mapping):
        is_hub = value.get("kind") == _HUB
        return {name: _without_places(each, name, is_hub=is_hub) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_places(each, key if key in _CHOSEN else "") for each in value]
    if not isinstance(value, str):
        return value
    if is_hub and key == "path" and not value.startswith(("/", ".", "~")) and "://" not in value:
        return value
    if key in _CHOSEN:
        return f"{name_of(value)} ({fingerprint(value)[:6]})"
    return name_of(value) if key in _BUILT else value


def differing_fields(left: MeasuredRun, right: MeasuredRun) -> list[tuple[str, Any, Any]]:
    """The fields in which two runs differ besides seeds, with both values.

    A field that one side lacks is `(missing)` there.
    """

    def plain(value: Any) -> Any:
        is_plain = isinstance(value, str | int | float | bool | list | dict | None)
        return value if is_plain else str(value)

    found = config_difference(left.settings, right.settings)
    return [(each.path, plain(each.before), plain(each.after)) for each in found]


@dataclass(frozen=True)
class Side:
    """The runs of one side, and what there is to say about how they were found."""

    given: str
    runs: tuple[MeasuredRun, ...]  # at least one, each of a known seed
    notes: tuple[str, ...] = ()
    nameless: tuple[MeasuredRun, ...] = ()  # started, but nothing says their seed or settings

    @property
    def variant(self) -> str:
        """The template of its runs."""
        return self.runs[0].variant


def find_side(given: str, *, outputs: str, checkout: Path | None = None) -> Side:
    """The runs that an argument means; `outputs` is where runs of a variant are.

    `checkout`: with the templates as they are now. Runs found by name must be of that source.
    """
    folders = _folders_at(given)
    if folders:
        side = _side(given, [measured_run(folder) for folder in folders])
        _require_one_setting(given, side.runs)
        source = None if side.runs[0].info is None else _source_now(checkout, side.variant)
        if source in (None, side.runs[0].template_hash):
            return side
        edited = f"{variant_path(side.variant)} was edited since the runs of {name_of(given)}"
        return replace(side, notes=(edited,))
    infos, damaged = _recorded_infos(join(outputs, RUNS))
    own = [path for path, info in infos.items() if _variant_of(info) == given]
    runs = [measured_run(path) for path in own if is_run_folder(path)]
    if not runs:
        known = sorted(set(map(_variant_of, infos.values())))
        listed = f"runs of {', '.join(known)}" if known else "no runs"
        raise ConfigError(
            f"{given} is not a folder with runs{did_you_mean(nearest(given, known))}; "
            f"{join(outputs, RUNS)} has {'; '.join([listed, *damaged])}",
            allowed="a run folder, a folder of runs, a pattern such as 'outputs/grug/base-*', or "
            "the name of a variant with runs among the outputs",
            fix="correct it, or run the pairs now with --seeds 3",
        )
    side = _side(given, runs)
    source = _source_now(checkout, given)
    current = [run for run in side.runs if source in (None, run.template_hash)]
    require(
        bool(current),
        f"all runs of {given} are of an earlier {variant_path(given)}: "
        + ", ".join(run.name for run in side.runs),
        allowed="runs of the current source",
        fix="run the pairs again with --seeds 3, or name the folders of the earlier runs",
    )
    groups: dict[str, list[MeasuredRun]] = {}
    for run in current:
        groups.setdefault(run.settings_hash, []).append(run)
    newest = max(
        groups.values(), key=lambda group: max(r.info.started if r.info else 0.0 for r in group)
    )
    others = [run.name for run in side.runs if run not in newest]
    notes = list(damaged)
    if others:
        notes.append(
            f"{name_of(given)}: the newest settings are taken; left out are {len(others)} runs of "
            f"other settings or source ({', '.join(others[:3])}{' …' if others[3:] else ''})"
        )
    return replace(side, runs=tuple(newest), notes=tuple(notes))


def side_of(given: str, folders: Iterable[str]) -> Side:
    """The side with these run folders, as after a sweep; those without a run are left out."""
    runs = [measured_run(folder) for folder in folders if is_run_folder(folder)]
    if not runs:
        raise ConfigError(
            f"no run of {given} has started",
            allowed="at least one run of each side",
            fix="see above why they failed, and run the same command again",
        )
    return _side(given, runs)


def _side(given: str, runs: Sequence[MeasuredRun]) -> Side:
    named = tuple(run for run in runs if run.seeds is not None)
    nameless = tuple(run for run in runs if run.seeds is None)
    if not named:
        why = "; ".join(f"{run.name}: {', '.join(run.record.problems)}" for run in nameless)
        raise ConfigError(
            f"no run of {given} has a known seed ({why})",
            allowed="at least one run with a config that can be read",
            fix="name another folder, or run the pairs now with --seeds 3",
        )
    return Side(given, named, nameless=nameless)


def _folders_at(given: str) -> list[str]:
    """Run folders at a path, below it, or that match a pattern; empty if it is no such path."""
    pattern = name_of(given)
    if any(mark in pattern for mark in "*?["):
        folder = parent_of(given)
        paths = [
            join(folder, name)
            for name in (list_folder(folder) if is_folder(folder) else [])
            if fnmatchcase(name, pattern) and not is_set_aside(name)
        ]
        return [path for path in paths if is_folder(path) and is_run_folder(path)]
    return [given] if is_folder(given) and is_run_folder(given) else run_folders_in(given)


def _recorded_infos(folder: str) -> tuple[dict[str, StepInfo], list[str]]:
    """What the executor recorded of each run below a folder, and which records are damaged.

    A damaged one may belong to another variant, so it is reported and stops nothing.
    """
    found: dict[str, StepInfo] = {}
    damaged = []
    names = list_folder(folder) if is_folder(folder) else []
    for path in [join(folder, name) for name in names if not is_set_aside(name)]:
        try:
            info = read_info(path) if is_folder(path) else None
        except StorageError:
            damaged.append(f"{name_of(path)} is passed over: its executor's record is damaged")
            continue
        if info is not None:
            found[path] = info
    return found, damaged


def _source_now(checkout: Path | None, variant: str) -> str | None:
    """The hash of a template as it is now; None if there is no such folder."""
    folder = None if checkout is None else checkout / variant_path(variant)
    return fingerprint(source_hashes(folder)) if folder is not None and folder.is_dir() else None


def _require_one_setting(given: str, runs: Sequence[MeasuredRun]) -> None:
    """Raise `ConfigError` if chosen folders hold runs that differ in more than their seeds."""
    listed = ", ".join(f"{run.name} ({str(run.template_hash)[:8]})" for run in runs)
    require(
        len({run.template_hash for run in runs}) == 1,
        f"{given} has runs of several versions of the template: {listed}",
        allowed="runs of one version",
        fix="name a folder or a quoted pattern with runs of one version, or run them again with "
        "chomp compare --seeds N",
    )
    first = runs[0]
    for other in runs[1:]:
        if other.settings_hash != first.settings_hash:
            fields = [f"{path}: {a} -> {b}" for path, a, b in differing_fields(first, other)]
            raise ConfigError(
                f"{given} has runs with several settings: {first.name} and {other.name} "
                f"differ in {'; '.join(fields[:_MAX_FIELDS])}",
                allowed="runs that differ only in their seed",
                fix="name a folder, or a quoted pattern, with runs of one setting",
            )


def _variant_of(info: StepInfo) -> str:
    """The variant whose launch file a run came from.

    A launch file that was run by its path is `__main__`; then the function's name says it.
    """
    module, _, function = info.fn.rpartition(".")
    parts = module.split(".")
    if parts[:2] == ["experiments", "grug"] and len(parts) > 2:
        return parts[2]
    return function.removeprefix("train_")


@dataclass(frozen=True)
class LastRun:
    """How a run ended, and where it is."""

    path: str
    metric: str
    value: float
    steps: int

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4f} at step {self.steps} ({self.path})"


def last_runs(outputs: str, names: Iterable[str]) -> dict[str, LastRun]:
    """The newest finished run of each variant that has one below the folder of outputs.

    By what the executor recorded. A run that cannot be read is skipped: this is only an overview.
    """
    folder, wanted = join(outputs, RUNS), set(names)
    newest: dict[str, tuple[float, LastRun]] = {}
    for name in list_folder(folder) if is_folder(folder) else []:
        path = join(folder, name)
        if is_set_aside(path):
            continue
        try:
            info, status = read_info(path), read_status(path)
            if info is None or status is None or status.finished is None:
                continue
            variant, finished = _variant_of(info), status.finished
            # A run that was stopped has a last row as well, which says nothing of the variant.
            is_newer = finished > newest.get(variant, (0.0,))[0]
            if variant in wanted and status.state == "SUCCESS" and is_newer:
                run = _last_run(path)
                newest |= {} if run is None else {variant: (finished, run)}
        except StorageError:
            continue
    return {name: run for name, (_, run) in newest.items()}


def _last_run(path: str) -> LastRun | None:
    config = resolved_config(path)
    record = record_in(path, config)
    rows = latest_rows(read_metrics(record)) if exists(record) else []
    held_out = held_out_prefix(eval_prefix_in(config), set().union(*rows))
    for metric in (f"{held_out}/loss", "train/loss"):
        for row in reversed(rows):
            value = row.get(metric)  # null if it was not finite
            if isinstance(value, int | float):
                return LastRun(path, metric, float(value), int(row["step"]) + 1)
    return None
