"""Fields by the names that people write: aliases, and names that start in another section.

A field that declares `setting(also=("train.eval_every",))` can be given by that name too. The name
starts from the nearest config around the field that has its first part, so a section need not know
where it is used. If no config around has it, the name has no effect. Such a name is only read,
never written out.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from chomp.config.fields import (
    KeyPath,
    Setting,
    dotted,
    section_for,
    sections,
    settings_by_spelling,
    settings_of,
)
from chomp.config.messages import no_such_field, two_spellings
from chomp.errors import ConfigError

_PART = r"""(?:"[^"]*"|'[^']*'|[^.='"]+)"""
# The first "=" outside quotes ends the path; the value may hold more of them, and line ends.
_OVERRIDE = re.compile(rf"\s*({_PART}(?:\.{_PART})*)\s*=(.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class AlsoName:
    """A field's name in another section, seen from the config class that holds both.

    `section` and `field` are paths by field names; `route` has all spellings of each part of the
    name.
    """

    name: tuple[str, ...]
    route: tuple[frozenset[str], ...]
    section: tuple[str, ...]
    field: tuple[str, ...]
    zero_is_null: bool

    def meaning(self, value: Any) -> Any:
        """What a value that was given by this name means to the field."""
        is_zero = not isinstance(value, bool) and value == 0
        return None if is_zero and self.zero_is_null else value


@cache  # called for every section that is parsed
def also_names(cls: type) -> tuple[AlsoName, ...]:
    """The `also` names that start from a config class; those that start from one inside are its.

    Raises `TypeError` for a name that is a field's own, or that two fields claim.
    """
    found: dict[tuple[tuple[str, ...], str], AlsoName] = {}
    for name, field, item in _declared_also(cls):
        section = _section_of(cls, name)
        if section is None:
            continue
        place, spellings = section
        other = found.get((place, name[-1]))
        # The members of a union may share a field, and its other name with it.
        if other is not None and other.field != field:
            both = f"{dotted(other.field)} and {dotted(field)}"
            raise TypeError(f"{cls.__name__}: {dotted(name)!r} means both {both}")
        found[place, name[-1]] = AlsoName(
            name=name,
            route=(*spellings, frozenset({name[-1]})),
            section=place,
            field=field,
            zero_is_null=item.zero_is_null,
        )
    return tuple(found.values())


class MovedValue(NamedTuple):
    """A value given by an `also` name, put where its field is, and the path it was given by."""

    path: KeyPath
    value: Any
    name: AlsoName

    def __repr__(self) -> str:
        """As the value is, in messages that show the section around it."""
        return repr(self.value)


def move_values(
    cls: type, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
) -> tuple[Mapping[Any, Any], dict[KeyPath, ConfigError]]:
    """A mapping for a config class with what is given by `also` names put where its fields are.

    With the problems by the path of the field. `at` is the place of the mapping by field names,
    `path` as the user wrote it.
    """
    problems: dict[KeyPath, ConfigError] = {}
    for name in also_names(cls):
        value, found = _take(value, name.route)
        for key_path, given in found.items():
            moved = MovedValue((*path, *key_path), given, name)
            try:
                value = _put(cls, value, moved, name.field, at, path)
            except ConfigError as error:
                problems.setdefault((*at, *name.field), error)
    return value, problems


def _take(
    value: Mapping[Any, Any], route: tuple[frozenset[str], ...]
) -> tuple[Mapping[Any, Any], dict[KeyPath, Any]]:
    """A mapping without what is at the end of a route, and what was there, by path."""
    left, found = dict(value), dict[KeyPath, Any]()
    for key in value:
        if key not in route[0]:
            continue
        if len(route) == 1:
            found[(key,)] = left.pop(key)
        elif isinstance(value[key], Mapping):
            left[key], below = _take(value[key], route[1:])
            found |= {(key, *rest): inner for rest, inner in below.items()}
    return left, found


def _put(
    cls: type,
    value: Mapping[Any, Any],
    moved: MovedValue,
    field: tuple[str, ...],
    at: KeyPath,
    path: KeyPath,
) -> Mapping[Any, Any]:
    """The mapping of a section with a value at the path of its field in it."""
    item = settings_by_spelling(cls)[field[0]]
    key = next((spelling for spelling in item.spellings if spelling in value), item.name)
    inner = value.get(key)
    where = (*path, key)
    if len(field) == 1:
        if key in value:
            first = inner.path if isinstance(inner, MovedValue) else where
            raise two_spellings(first, moved.path)
        return {**value, key: moved}
    if key not in value:
        inner = {}  # as if the section were there and empty
    elif type(inner) in sections(item.declared):
        inner = fields_of(inner)
    if isinstance(inner, Mapping):
        section = section_for(item.declared, inner)
        if section is None:  # of no known kind, which is refused by itself
            return {**value, key: inner}
        if field[1] in settings_by_spelling(section):
            found = _put(section, inner, moved, field[1:], (*at, item.name), where)
            return {**value, key: found}
    elif inner is not None or moved.name.meaning(moved.value) is None:
        return value  # a wrong value; or no section, and a period that is none
    raise no_such_field(moved.path, (*at, *field), where, inner)


def fields_of(config: Any) -> dict[str, Any]:
    """What a config instance has, by field."""
    cls: type = type(config)
    return {item.name: getattr(config, item.name) for item in settings_of(cls)}


def resolve_also(cls: type, parts: tuple[str, ...]) -> tuple[tuple[str, ...], AlsoName | None]:
    """A path from a config class with the field's own path in place of an `also` name of it."""
    for item in also_names(cls):
        end = len(item.route)
        if len(parts) >= end and all(map(frozenset.__contains__, item.route, parts)):
            return (*item.field, *parts[end:]), item
    return parts, None


def split_override(text: str) -> tuple[tuple[str, ...], str] | None:
    """The path and the value of `path=value`; None if the text has no such form."""
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        return None
    parts = [part.strip() for part in re.findall(_PART, match[1])]
    if "" in parts:  # a name of blanks alone; one that is meant to be empty is quoted
        return None
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in parts), match[2].strip()


def _declared_also(
    cls: type, around: frozenset[type] = frozenset()
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], Setting]]:
    """Every `also` name of a field in or below a class that starts no lower than that class.

    With the path of the field. Lists and mappings are not entered: their items have no one path.
    """
    around |= {cls}
    for item in settings_of(cls):
        for name in item.also:
            yield tuple(name.split(".")), (item.name,), item
        for section in sections(item.declared):
            if section in around:  # a config that may hold its like
                continue
            for parts, field, inner in _declared_also(section, around):
                if _section_of(section, parts) is None:
                    yield parts, (item.name, *field), inner


def _section_of(
    cls: type, name: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[frozenset[str], ...]] | None:
    """The section that a name leads to from a class, and the spellings of each part of its path.

    None if the class has no such section.
    """
    classes: tuple[type, ...] = (cls,)
    path: list[Setting] = []
    for part in name[:-1]:
        known = [settings_by_spelling(each) for each in classes]
        item = next((each[part] for each in known if part in each), None)
        if item is None:
            return None
        classes = sections(item.declared)
        path.append(item)
    for each in classes:
        if name[-1] in settings_by_spelling(each):
            raise TypeError(f"{cls.__name__}: {dotted(name)!r} is a field of {each.__name__}")
    return tuple(item.name for item in path), tuple(frozenset(item.spellings) for item in path)
