"""Why a step is new, and how one that is not differs from its record. In words, for a plan."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from chomp.config import MISSING, Difference, canonical_json, config_difference
from chomp.config.paths import KeyPath, dotted
from chomp.executor.identity import HASH_DIGITS, Identity
from chomp.executor.status import StepInfo, read_info
from chomp.storage import is_folder, join, list_folder, name_of, parent_of

_CHANGES_SHOWN = 3
# Longer values are cut: the path says where to look.
_MAX_VALUE_CHARACTERS = 80


def why_new(name: str, identity: Identity, path: str) -> str:
    """Which versioned fields changed since the nearest earlier run of that name.

    Nearest is the one with the fewest changes, and among those the latest.
    """
    infos = _earlier_infos(name, parent_of(path))
    if not infos:
        return "new"
    changes = {info.identity: changed_values(info.values, identity.values) for info in infos}
    nearest = min(infos, key=lambda info: (len(changes[info.identity]), -info.started))
    told = [f"{d.path}: {short(d.before)} -> {short(d.after)}" for d in changes[nearest.identity]]
    more = f" and {len(told) - _CHANGES_SHOWN} more" if len(told) > _CHANGES_SHOWN else ""
    return f"changed since {nearest.identity}: {', '.join(told[:_CHANGES_SHOWN])}{more}"


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What differs between the values of two identities, by dotted path; nothing if they agree."""
    found: list[Difference] = []
    for path in dict.fromkeys([*before, *after]):
        old, new = before.get(path, MISSING), after.get(path, MISSING)
        if MISSING not in (old, new) and canonical_json(old) == canonical_json(new):
            continue
        whole = Difference(path=path, before=old, after=new, mark="identity")
        found += _inner_differences(whole) if isinstance(old, list) else [whole]
    return found


def record_differences(
    info: StepInfo, config: Any, marked: Iterable[KeyPath], sources: Mapping[str, str]
) -> tuple[str, ...]:
    """How a run with this plain config and this template source would differ from its record.

    Places with a marker are left out: the identity covers what is versioned, and where outputs lie
    does not matter.
    """
    told = [
        f"{d.path}: recorded {short(d.before)}, now {short(d.after)}"
        for d in plain_differences(info.config, config)
        if not any(_is_within(d.path, path) for path in marked)
    ]
    for name in sorted({*info.sources, *sources}):
        if info.sources.get(name) != sources.get(name):
            verb = "edited" if name in info.sources and name in sources else "added or removed"
            told.append(f"template source {name}: {verb} since the recorded run")
    return tuple(told)


def plain_differences(before: Any, after: Any) -> list[Difference]:
    """What differs between two step configs in plain form, which need not be mappings."""
    if isinstance(before, dict) and isinstance(after, dict):
        return config_difference(before, after)
    return config_difference({"config": before}, {"config": after})


def short(value: Any) -> str:
    """The value as Python writes it, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else text[: _MAX_VALUE_CHARACTERS - 3] + "..."


def _earlier_infos(name: str, folder: str) -> list[StepInfo]:
    if not is_folder(folder):
        return []
    # The whole name: results that were moved aside have a longer one.
    pattern = re.compile(re.escape(name_of(name)) + rf"-[0-9a-f]{{{HASH_DIGITS}}}")
    siblings = [sibling for sibling in list_folder(folder) if pattern.fullmatch(sibling)]
    infos = [read_info(join(folder, sibling)) for sibling in siblings]
    return [info for info in infos if info is not None and info.name == name]


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
