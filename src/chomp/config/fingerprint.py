"""Fingerprints and differences: what makes two configs the same run, and what differs.

Equal values give equal text whatever the order of their keys or fields. A config's hash covers the
identity fields only, so a run keeps its hash when its logging or its schedule changes.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from chomp.config.fields import (
    MARKS,
    ConfigClass,
    KeyPath,
    Mark,
    dotted,
    is_config,
    is_unset_addition,
    mark_of,
)
from chomp.config.parse import plain_items, plain_value, validated


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


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII, floats as `repr` writes them.

    Takes dataclasses, mappings, lists, tuples, enums, paths and scalars. 1 and 1.0 differ here; a
    config that passed `validated` has them as declared. Raises `ConfigError` naming the path and
    type of anything else, and for NaN and infinity.
    """
    return json.dumps(plain_value(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def config_hash(config: ConfigClass) -> str:
    """Fingerprint of a config's identity fields, after validation.

    A field with another mark is left out together with everything inside it.
    """

    def identity(value: Any) -> Any:
        if is_config(value):
            fields = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
            return {
                field.name: identity(item)
                for field, item in fields.items()
                if field.init
                and mark_of(field) == "identity"
                and not is_unset_addition(field, item)
            }
        if isinstance(value, Mapping):
            return {key: identity(item) for key, item in value.items()}
        return [identity(item) for item in value] if isinstance(value, list | tuple) else value

    # Validated first, or lr=1 and lr=1.0 would be two runs.
    return fingerprint(identity(validated(config)))


def config_difference(
    before: ConfigClass | Mapping[str, Any], after: ConfigClass | Mapping[str, Any]
) -> list[Difference]:
    """The fields that differ, in the order of `before`, then those only `after` has.

    Either side may be a mapping, such as a config read back from a run folder: its marks are then
    the other side's, and identity where neither side is a config. Lists of different length are
    one difference; 1 and 1.0 are none, nor is a field that was added later, at its default, to one
    that is missing.
    """
    fields = [*_fields_inside(before), *_fields_inside(after)]
    marks = {path: mark_of(field) for path, field, _ in fields if mark_of(field) != MARKS[0]}
    added = {path for path, field, value in fields if is_unset_addition(field, value)}
    found: list[Difference] = []

    def compare(old: Any, new: Any, path: KeyPath) -> None:
        if isinstance(old, dict) and isinstance(new, dict):
            for key in dict.fromkeys([*old, *new]):
                compare(old.get(key, MISSING), new.get(key, MISSING), (*path, key))
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
                compare(old_item, new_item, (*path, index))
        # In Python true equals 1; in a config it does not.
        elif old != new or isinstance(old, bool) != isinstance(new, bool):
            on_the_way = (marks.get(path[:end], MARKS[0]) for end in range(len(path) + 1))
            mark = max(on_the_way, key=MARKS.index)  # the loosest
            if path not in added or MISSING not in (old, new):
                found.append(Difference(path=dotted(path), before=old, after=new, mark=mark))

    compare(plain_value(before), plain_value(after), ())
    return found


def unset_additions(value: Any) -> set[str]:
    """The paths inside a config of fields that were added later and have their default."""
    fields = _fields_inside(value)
    return {dotted(path) for path, field, inner in fields if is_unset_addition(field, inner)}


def _fields_inside(
    value: Any, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, "dataclasses.Field[Any]", Any]]:
    """Every field inside a value at any depth, with its path and what it has."""
    children: list[tuple[str | int, Any]] = []
    if is_config(value):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            yield (*path, field.name), field, item
            children.append((field.name, item))
    elif isinstance(value, Mapping):
        children += plain_items(value, path)
    elif isinstance(value, list | tuple):
        children += enumerate(value)
    for key, item in children:
        yield from _fields_inside(item, (*path, key))
