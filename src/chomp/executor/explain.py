"""Why a step is new, and how one that is not differs from its record, in words.

The nearest earlier run is found quickly among thousands: a sweep of a thousand steps over a
thousand earlier runs is a million comparisons. So each record is read once for a plan, and compared
as one whole number, with a bit for each value that occurs.
"""

import logging
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from chomp.config import MISSING, Difference, canonical_json, config_difference
from chomp.config.fields import KeyPath, dotted
from chomp.errors import StorageError
from chomp.executor.identity import CLASS, HASH_DIGITS, MODULE, Identity
from chomp.executor.status import StepInfo, read_info
from chomp.executor.step import LEAVES
from chomp.storage import is_folder, join, list_folder, name_of, parent_of
from chomp.storage.secrets import without_secrets

_log = logging.getLogger(__name__)
_CHANGES_SHOWN = 3
# Longer values are cut: the path says where to look.
_MAX_VALUE_CHARACTERS = 80


class EarlierRuns:
    """The nearest earlier runs of many steps. What it has read is not read again."""

    def __init__(self) -> None:
        self._bits: dict[Hashable, int] = {}
        self._found: dict[tuple[str, str], list[tuple[StepInfo, int]]] = {}

    def nearest(self, name: str, identity: Identity, path: str) -> StepInfo | None:
        """The run of that name beside `path` with the fewest changes, of several the latest."""
        place = (name, parent_of(path))
        if place not in self._found:
            runs = _earlier_runs(name, place[1], name_of(name))
            self._found[place] = [(info, self._mask(info.values)) for _, info in runs]
        if not self._found[place]:
            return None
        own = self._mask(identity.values)
        # A field that changed has two values of which each side lacks one; a field that one side
        # does not have is missing itself and with its value. Two bits for each, either way.
        ranked = ((own ^ mask).bit_count() for _, mask in self._found[place])
        started = (-info.started for info, _ in self._found[place])
        best = min(zip(ranked, started, range(len(self._found[place])), strict=True))
        return self._found[place][best[2]][0]

    def _mask(self, values: Mapping[str, Any]) -> int:
        """Identity values as bits: one for each field that there is, one for each value it has."""
        mask = 0
        for field, value in values.items():
            # With its type: in Python true equals 1, and 1 equals 1.0.
            known = value if isinstance(value, LEAVES) else canonical_json(value)
            for thing in (field, (field, type(value), known)):
                mask |= 1 << self._bits.setdefault(thing, len(self._bits))
        return mask


def why_new(name: str, identity: Identity, path: str, earlier: EarlierRuns) -> str:
    """Which versioned fields changed since the nearest earlier run of that name."""
    nearest = earlier.nearest(name, identity, path)
    if nearest is None:
        return "new"
    changes = changes_since(nearest, name, identity)
    if not changes:
        return f"new here; {nearest.output_path} was continued as this run, and --allow finds it"
    return f"changed since {nearest.identity}: {describe_changes(changes)}"


def describe_changes(changes: Sequence[Difference]) -> str:
    """The first few changes in words."""
    told = [f"{d.path}: {short(d.before)} -> {short(d.after)}" for d in changes]
    more = f" and {len(told) - _CHANGES_SHOWN} more" if len(told) > _CHANGES_SHOWN else ""
    return f"{', '.join(told[:_CHANGES_SHOWN])}{more}"


def changes_since(info: StepInfo, name: str, identity: Identity) -> list[Difference]:
    """What makes a step another one than that which a folder records."""
    before, after = {"name": info.name, **info.values}, {"name": name, **identity.values}
    # Records have no secrets, so that what is there now must not show as a change.
    changes = changed_values(without_secrets(before), without_secrets(after))
    if changes or info.identity in (identity.hash, identity.own_hash):
        return changes
    # A path and a text that reads like it, or a record from before hashes told these apart.
    told = {"path": "its hash alone", "before": info.identity, "after": identity.hash}
    return [Difference(**told, mark="identity")]


def not_allowed(changes: Iterable[Difference], allowed: Iterable[str]) -> list[Difference]:
    """The changes outside of the fields that may change, which are given by dotted paths."""
    fields = tuple(allowed)
    return [
        change
        for change in changes
        if not any(change.path == field or change.path.startswith(f"{field}.") for field in fields)
    ]


def nearest_allowed(name: str, identity: Identity, path: str, allowed: Sequence[str]) -> str | None:
    """The folder beside `path` of an earlier run that differs in allowed fields only, if any.

    The nearest, and among those the latest; folders are named `<something>-<hash>`, as `path` is.
    """
    found: list[tuple[int, float, str]] = []
    for folder, info in _earlier_runs(name, parent_of(path), name_of(path)[: -HASH_DIGITS - 1]):
        changes = changes_since(info, name, identity)
        if not not_allowed(changes, allowed):
            found.append((len(changes), -info.started, folder))
    return min(found)[2] if found else None


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What differs between the values of two identities, by dotted path; nothing if they agree."""
    found: list[Difference] = []
    for path in dict.fromkeys([*before, *after]):
        old, new = before.get(path, MISSING), after.get(path, MISSING)
        # The first says so of most, and is quick.
        if repr(old) == repr(new) or (
            MISSING not in (old, new) and canonical_json(old) == canonical_json(new)
        ):
            continue
        whole = Difference(path=path, before=old, after=new, mark="identity")
        found += _inner_differences(whole) if isinstance(old, list) else [whole]
    return found


def record_differences(
    info: StepInfo,
    config: Any,
    marked: Iterable[KeyPath],
    sources: Mapping[str, str],
    fn: str,
    unversioned: Iterable[KeyPath] = (),
) -> tuple[str, ...]:
    """How a run with this plain config, template source and function differs from its record.

    Places with a marker are left out: the identity covers what is versioned, and where outputs lie
    does not matter. `unversioned` are places inside of these which it does not cover; modules of
    classes are others. A record from before classes, or modules, were written down is not one of
    configs without: it says nothing of them.
    """
    # As `plain_differences` writes the places of a config that is no mapping.
    root: KeyPath = () if isinstance(config, dict) else ("config",)
    covered, not_covered = ([(*root, *each) for each in some] for some in (marked, unversioned))
    told = [
        f"{d.path}: recorded {short(d.before)}, now {short(d.after)}"
        for d in _differences_of_record(*map(without_secrets, (info.config, config)))
        if not any(_is_within(d.path, path) for path in covered)
        or any(_is_within(d.path, path) for path in not_covered)
        or _is_at(d.path, MODULE)
    ]
    # By its own name: the same launch file is one module as a command and another when loaded.
    if info.fn.rpartition(".")[2] != fn.rpartition(".")[2]:
        told.append(f"function: recorded {info.fn}, now {fn}")
    for name in sorted({*info.sources, *sources}):
        if info.sources.get(name) != sources.get(name):
            verb = "edited" if name in info.sources and name in sources else "added or removed"
            told.append(f"template source {name}: {verb} since the recorded run")
    return tuple(told)


def plain_differences(before: Any, after: Any) -> list[Difference]:
    """What differs between two step configs in plain form, which need not be mappings."""
    if repr(before) == repr(after):
        return []  # in most of a large plan, and in a tenth of the time
    if isinstance(before, dict) and isinstance(after, dict):
        return config_difference(before, after)
    return config_difference({"config": before}, {"config": after})


def short(value: Any) -> str:
    """The value as Python writes it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def _earlier_runs(name: str, folder: str, stem: str) -> list[tuple[str, StepInfo]]:
    """The runs of a step of that name in `<folder>/<stem>-<hash>`, each with its folder."""
    if not is_folder(folder):
        return []
    # The whole name: results that were moved aside have a longer one.
    pattern = re.compile(re.escape(stem) + rf"-[0-9a-f]{{{HASH_DIGITS}}}")
    siblings = [join(folder, each) for each in list_folder(folder) if pattern.fullmatch(each)]
    found = []
    for sibling in siblings:
        try:
            info = read_info(sibling)
        except StorageError as error:  # of another run: no reason not to begin this one
            _log.warning("passed over among the earlier runs of %s: %s", name, error)
            continue
        if info is not None and info.name == name:
            found.append((sibling, info))
    return found


def _inner_differences(whole: Difference) -> list[Difference]:
    """The same difference by the parts that differ; whole if it is none to a config's eyes."""
    inner = config_difference({"": whole.before}, {"": whole.after})
    prefix = dotted(("",))
    return [
        Difference(
            path=whole.path + difference.path.removeprefix(prefix),
            before=difference.before,
            after=difference.after,
            mark="identity",
        )
        for difference in inner
    ] or [whole]  # 1 and 1.0 are equal in a config, and two values in an identity


def _is_within(path: str, outer: KeyPath) -> bool:
    return not outer or path == dotted(outer) or path.startswith(f"{dotted(outer)}.")


def _differences_of_record(recorded: Any, config: Any) -> list[Difference]:
    """What differs from a record in what it speaks of."""
    found = plain_differences(recorded, config)
    silent = [key for key in (CLASS, MODULE) if found and not _has_key(recorded, key)]
    return [
        d
        for d in found
        if not any(_is_at(d.path, key) for key in silent) and not _is_move_in_library(d)
    ]


def _is_move_in_library(difference: Difference) -> bool:
    """Whether a class of the library was moved to another file: it is the same by its name."""
    modules = (difference.before, difference.after)
    return _is_at(difference.path, MODULE) and all(
        isinstance(module, str) and module.startswith("chomp.") for module in modules
    )


def _has_key(plain: Any, key: str) -> bool:
    if isinstance(plain, dict):
        return key in plain or any(_has_key(each, key) for each in plain.values())
    return isinstance(plain, list) and any(_has_key(each, key) for each in plain)


def _is_at(path: str, key: str) -> bool:
    return path == key or path.endswith(f".{key}")
