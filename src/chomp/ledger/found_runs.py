"""The runs that one side of a comparison means: a run folder, a folder of them, or a variant.

All runs of a side are the same but for their seeds: one setting, one source of the template. A name
means whatever the executor left of that variant, so there the newest settings with the source that
is there now are taken, and the others are named; of folders somebody chose, nothing is passed over
in silence. Folders that were set aside are no runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chomp.config.fingerprint import config_difference, fingerprint
from chomp.config.messages import did_you_mean, nearest
from chomp.errors import ConfigError, StorageError, require
from chomp.executor.status import StepInfo, read_info
from chomp.executor.step import source_hashes
from chomp.ledger.measured_run import MeasuredRun, measured_run
from chomp.storage import is_folder, is_set_aside, join, list_folder, name_of, parent_of
from chomp.tracking.run_files import is_run_folder, run_folders_in
from chomp.variants.checkout import variant_path
from chomp.variants.last_run import RUNS, variant_of

_WILD = "*?["
_FIELDS_TOLD = 6
_DIGITS_TOLD = 8  # of a hash


@dataclass(frozen=True)
class Side:
    """The runs of one side, and what there is to say about how they were found."""

    given: str
    runs: tuple[MeasuredRun, ...]  # at least one, each of a known seed
    notes: tuple[str, ...] = ()
    nameless: tuple[MeasuredRun, ...] = ()  # begun, but nothing tells their seed or settings

    @property
    def variant(self) -> str:
        """The template of its runs."""
        return self.runs[0].variant


def found_side(given: str, *, outputs: str, checkout: Path | None = None) -> Side:
    """The runs that an argument means; `outputs` is where runs of a variant lie.

    `checkout`: with the templates as they are now. Runs of a name must be of that source.
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
    infos, damaged = _recorded(join(outputs, RUNS))
    own = [path for path, info in infos.items() if variant_of(info) == given]
    runs = [measured_run(path) for path in own if is_run_folder(path)]
    if not runs:
        raise _nothing_found(given, outputs, infos.values(), damaged)
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
    newest = max(groups.values(), key=lambda group: max(map(_begun, group)))
    passed = [run.name for run in side.runs if run not in newest]
    notes = list(damaged)
    if passed:
        notes.append(
            f"{name_of(given)}: the newest settings are taken; left out are {len(passed)} runs of "
            f"other settings or source ({', '.join(passed[:3])}{' …' if passed[3:] else ''})"
        )
    return replace(side, runs=tuple(newest), notes=tuple(notes))


def side_of(given: str, folders: Iterable[str]) -> Side:
    """The side whose run folders are known, as after a sweep; those without a run are left out."""
    runs = [measured_run(folder) for folder in folders if is_run_folder(folder)]
    if not runs:
        raise ConfigError(
            f"no run of {given} has started",
            allowed="at least one run of each side",
            fix="see above why they failed, and run the same command again",
        )
    return _side(given, runs)


def _side(given: str, runs: Sequence[MeasuredRun]) -> Side:
    """The side of these runs, those apart that nothing is known of but that they began."""
    named = tuple(run for run in runs if run.seeds is not None)
    nameless = tuple(run for run in runs if run.seeds is None)
    if not named:
        told = "; ".join(f"{run.name}: {', '.join(run.record.problems)}" for run in nameless)
        raise ConfigError(
            f"no run of {given} has a known seed ({told})",
            allowed="at least one run with a config that can be read",
            fix="name another folder, or run the pairs now with --seeds 3",
        )
    return Side(given, named, nameless=nameless)


def _folders_at(given: str) -> list[str]:
    """Run folders at a path, below it, or that a pattern means; none where it is no such path."""
    if any(mark in name_of(given) for mark in _WILD):
        folder = parent_of(given)
        names = list_folder(folder) if is_folder(folder) else []
        found = [
            join(folder, name)
            for name in names
            if fnmatchcase(name, name_of(given)) and not is_set_aside(name)
        ]
        return [path for path in found if is_folder(path) and is_run_folder(path)]
    if is_folder(given) and is_run_folder(given):
        return [given]
    return run_folders_in(given)


def _recorded(folder: str) -> tuple[dict[str, StepInfo], list[str]]:
    """What the executor recorded of each run below a folder, and which records are damaged.

    A damaged one may be anybody's, so it is named and no reason to compare nothing.
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
    """The hash of a template as it is now; None where there is no such folder."""
    folder = None if checkout is None else checkout / variant_path(variant)
    return fingerprint(source_hashes(folder)) if folder is not None and folder.is_dir() else None


def _begun(run: MeasuredRun) -> float:
    return 0.0 if run.info is None else run.info.started


def _require_one_setting(given: str, runs: Sequence[MeasuredRun]) -> None:
    """Raise `ConfigError` where chosen folders hold runs that differ by more than their seeds."""
    first = runs[0]
    sources = {run.template_hash: f"{run.template_hash}"[:_DIGITS_TOLD] for run in runs}
    listed = ", ".join(f"{run.name} ({sources[run.template_hash]})" for run in runs)
    require(
        len(sources) == 1,
        f"{given} has runs of several versions of the template: {listed}",
        allowed="runs of one version",
        fix="name a folder or a quoted pattern with runs of one version, or run them again with "
        "chomp compare --seeds N",
    )
    for other in runs[1:]:
        if other.settings_hash == first.settings_hash:
            continue
        fields = settings_difference(first, other)
        raise ConfigError(
            f"{given} has runs with several settings: {first.name} and {other.name} "
            f"differ in {'; '.join(fields[:_FIELDS_TOLD])}",
            allowed="runs that differ only in their seed",
            fix="name a folder, or a quoted pattern, with runs of one setting",
        )


def settings_difference(left: MeasuredRun, right: MeasuredRun) -> list[str]:
    """The fields in which two runs differ besides seeds, as `field: before -> after`."""
    return [f"{path}: {before} -> {after}" for path, before, after in differing_fields(left, right)]


def differing_fields(left: MeasuredRun, right: MeasuredRun) -> list[tuple[str, Any, Any]]:
    """The same as values; a field that one side lacks is `(missing)` there."""
    found = config_difference(left.settings, right.settings)
    return [(each.path, _plain(each.before), _plain(each.after)) for each in found]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)


def _nothing_found(
    given: str, outputs: str, infos: Iterable[StepInfo], damaged: Sequence[str]
) -> ConfigError:
    folder = join(outputs, RUNS)
    known = set(map(variant_of, infos))
    near = nearest(given, sorted(known))
    there = "; ".join([f"runs of {', '.join(sorted(known))}" if known else "no runs", *damaged])
    return ConfigError(
        f"{given} is not a folder with runs{did_you_mean(near)}; {folder} has {there}",
        allowed="a run folder, a folder of runs, a pattern such as 'outputs/grug/base-*', or "
        "the name of a variant with runs among the outputs",
        fix="correct it, or run the pairs now with --seeds 3",
    )
