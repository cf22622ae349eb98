"""What differs between two configs, field by field, and how much each difference matters."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from chomp.config.fields import MARKS, ConfigClass, Mark, is_config, is_unset_addition, mark_of
from chomp.config.paths import KeyPath, dotted
from chomp.config.plain import plain_items, plain_value


class _Missing(Enum):
    """The type of `MISSING`: an enum of one member, which type checkers can tell from values."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "(missing)"

    __str__ = __repr__


MISSING: Final = _Missing.MISSING
"""Stands in a `Difference` for a field that one side does not have."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field that differs: its dotted path, both values as plain data, and its mark."""

    path: str
    before: Any
    after: Any
    mark: Mark

    def __str__(self) -> str:
        return f"{self.path}: {self.before!r} -> {self.after!r} ({self.mark})"


def config_difference(
    before: ConfigClass | Mapping[str, Any], after: ConfigClass | Mapping[str, Any]
) -> list[Difference]:
    """The fields that differ, in the order of `before`, then those only `after` has.

    Either side may be a mapping, such as a config read back from a run folder: its marks are then
    the other side's, and identity where neither side is a config. Lists of different length are
    one difference; 1 and 1.0 are none, nor is a field that was added later, at its default, to one
    that is missing.
    """
    marks = {**_loosened(before), **_loosened(after)}
    added = unset_additions(before) | unset_additions(after)
    return [
        Difference(path=dotted(path), before=old, after=new, mark=_mark_at(path, marks))
        for path, old, new in _differing(plain_value(before), plain_value(after), ())
        if MISSING not in (old, new) or dotted(path) not in added
    ]


def unset_additions(value: Any) -> set[str]:
    """The paths inside a config of fields that were added later and have their default."""
    return {dotted(path) for path in _unset_additions(value, ())}


def _unset_additions(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    if is_config(value):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if is_unset_addition(field, item):
                yield (*path, field.name)
            yield from _unset_additions(item, (*path, field.name))
    elif isinstance(value, Mapping):
        for key, item in plain_items(value, path):
            yield from _unset_additions(item, (*path, key))


def _differing(old: Any, new: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any, Any]]:
    """The innermost paths at which two values of plain data differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _differing(old.get(key, MISSING), new.get(key, MISSING), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            yield from _differing(old_item, new_item, (*path, index))
    # In Python true equals 1; in a config it does not.
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield path, old, new


def _loosened(value: Any, path: KeyPath = ()) -> dict[KeyPath, Mark]:
    """The paths inside a config whose field is marked anything but identity."""
    marks: dict[KeyPath, Mark] = {}
    if is_config(value):
        for field in dataclasses.fields(value):
            inner = (*path, field.name)
            if (mark := mark_of(field)) != "identity":
                marks[inner] = mark
            marks |= _loosened(getattr(value, field.name), inner)
    elif isinstance(value, Mapping):
        for key, item in plain_items(value, path):
            marks |= _loosened(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            marks |= _loosened(item, (*path, index))
    return marks


def _mark_at(path: KeyPath, marks: Mapping[KeyPath, Mark]) -> Mark:
    """The loosest mark on the way to a path."""
    # The root is no field, so it has no mark.
    found = [marks[path[:end]] for end in range(1, len(path) + 1) if path[:end] in marks]
    return max(found, key=MARKS.index, default="identity")
