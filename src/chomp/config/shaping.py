"""Input laid over a config class, before pydantic judges it.

The walk gives every field its canonical name and its default, spells numbers the way JSON does, and
picks the member of a union of configs. What only this walk can see (unknown keys, two spellings of
a field, an unknown kind, a boolean where a number belongs) it notes as a problem; every other
mistake it leaves in place for pydantic. It remembers where each value came from, so a complaint
about the shaped data can be told in terms of what the user wrote.
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, NamedTuple

from chomp.config.declared import (
    KIND,
    accepts_only_text,
    entry_types,
    item_type,
    kinds_of,
    list_member,
    mapping_member,
    members,
    scalar_types,
    section_for,
    sections,
)
from chomp.config.fields import is_config, settings_by_spelling, settings_of
from chomp.config.paths import KeyPath
from chomp.config.plain import Unquoted, plain_items, plain_value
from chomp.config.words import (
    missing_value,
    two_spellings,
    unknown_key,
    wrong_class,
    wrong_key,
    wrong_value,
)
from chomp.errors import ConfigError

# Beyond this a float no longer tells neighbouring whole numbers apart, so it is not taken for one.
_MAX_EXACT_INTEGER = 2**53

# For a Literal made of values found at run time, which a type checker cannot follow.
_LITERAL: Any = Literal

_BOOLEAN_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class Place(NamedTuple):
    """One value of the input: its path as the user spelled it, itself, its declared type."""

    path: KeyPath
    value: Any
    declared: Any


class Shaping:
    """The walk over one input, and what it found.

    `places` and `problems` are keyed by canonical path; `tags` holds, for each place where a union
    was decided, the names under which pydantic may report the chosen member.
    """

    def __init__(self) -> None:
        self.places: dict[KeyPath, Place] = {}
        self.tags: dict[KeyPath, tuple[Any, ...]] = {}
        self.problems: dict[KeyPath, str] = {}

    def shaped(self, declared: Any, value: Any, at: KeyPath = (), path: KeyPath = ()) -> Any:
        """The value as plain data in the form pydantic checks strictly.

        A value with a problem is stood in for by None, which a type either refuses (that second
        complaint is dropped) or must cope with anyway.
        """
        if isinstance(value, Unquoted):
            value = _as_meant(value, declared)
        # Noted before anything is converted: messages quote what was given.
        self.places[at] = Place(path, value, declared)
        if value is None:
            return None
        if is_config(value) and sections(declared):
            return self._shaped_instance(declared, value, at, path)
        if isinstance(value, Mapping) and sections(declared):
            return self._shaped_section(declared, value, at, path)
        if isinstance(value, Mapping) and (member := mapping_member(declared)) is not None:
            return self._shaped_entries(member, value, at, path)
        if isinstance(value, list | tuple) and (member := list_member(declared)) is not None:
            return [
                self.shaped(item_type(member, index), item, (*at, index), (*path, index))
                for index, item in enumerate(value)
            ]
        return self._shaped_scalar(declared, value, at, path)

    def _shaped_instance(self, declared: Any, value: Any, at: KeyPath, path: KeyPath) -> Any:
        """A dataclass instance; a subclass is refused, since no file could say which one it was."""
        section: type = type(value)
        if section not in sections(declared):
            self.problems[at] = wrong_class(path, value, sections(declared))
            return None
        fields = {item.name: getattr(value, item.name) for item in settings_of(section)}
        return self._shaped_fields(declared, section, fields, at, path)

    def _shaped_section(
        self, declared: Any, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
    ) -> Any:
        section = section_for(declared, value)
        if section is not None:
            return self._shaped_fields(declared, section, value, at, path)
        kind_type = _LITERAL[tuple(kind for cls in sections(declared) for kind in kinds_of(cls))]
        kind_path = (*path, KIND)
        if KIND in value:
            self.problems[at] = wrong_value(kind_path, value[KIND], kind_type)
        else:
            self.problems[at] = missing_value(kind_path, kind_type)
        return None

    def _shaped_fields(
        self, declared: Any, section: type, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
    ) -> dict[str, Any]:
        """Every field of a config class by its name: as given, else by default, checked alike."""
        # pydantic names a plain union's member by its class, a discriminated one's by its kind, and
        # the only member of `X | None` not at all.
        if len(members(declared)) > 1:
            self.tags[at] = (section.__name__, value.get(KIND))
        spelled = self._spellings_used(section, value, at, path)
        shaped = {}
        for item in settings_of(section):
            inner = (*at, item.name)
            if item.name in spelled:
                key = spelled[item.name]
                shaped[item.name] = self.shaped(item.declared, value[key], inner, (*path, key))
            elif item.is_required:
                self.problems[inner] = missing_value((*path, item.name), item.declared)
            else:
                shaped[item.name] = self.shaped(
                    item.declared, item.default(), inner, (*path, item.name)
                )
        return shaped

    def _spellings_used(
        self, section: type, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
    ) -> dict[str, str]:
        """The key under which each field was given, by the field's name."""
        known = settings_by_spelling(section)
        used: dict[str, str] = {}
        for key in value:
            item = known.get(key) if isinstance(key, str) else None
            if item is None:
                # Not handed on, so that the known fields beside it are still checked.
                self.problems[(*at, str(key))] = unknown_key((*path, str(key)), section)
            elif item.name in used:
                self.problems[(*at, item.name)] = two_spellings(path, used[item.name], key)
            else:
                used[item.name] = key
        return used

    def _shaped_entries(
        self, member: Any, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
    ) -> Any:
        key_type, value_type = entry_types(member)
        if accepts_only_text(key_type):
            # JSON would turn a number into text here without a word.
            for key in value:
                if not isinstance(key.value if isinstance(key, Enum) else key, str):
                    self.problems[(*at, str(key))] = wrong_key(path, key, key_type)
        try:
            entries = dict(plain_items(value, path))
        except ConfigError as error:
            self.problems.setdefault(at, str(error))
            return None
        return {
            key: self.shaped(value_type, item, (*at, key), (*path, key))
            for key, item in entries.items()
        }

    def _shaped_scalar(self, declared: Any, value: Any, at: KeyPath, path: KeyPath) -> Any:
        accepted = scalar_types(declared)
        if accepted is not None:
            value = _spelled_for(accepted, value)
            # pydantic takes true for Literal[1] and for an enum's 1, even when strict.
            if isinstance(value, bool) and bool not in accepted:
                self.problems[at] = wrong_value(path, value, declared)
                return None
        try:
            return plain_value(value, path)
        except ConfigError as error:
            # A value of the right type is refused for what it holds, in words of its own.
            is_own_type = accepted is None or type(value) in accepted
            self.problems[at] = str(error) if is_own_type else wrong_value(path, value, declared)
            return None


def _as_meant(value: Unquoted, declared: Any) -> Any:
    """The text or its YAML meaning, whichever the declared type can take; null only as null."""
    accepted = scalar_types(declared)
    meaning = value.meaning
    # A null that is not allowed stays null and is refused; as text it would name a run "null".
    if accepted is None or meaning is None or str not in accepted:
        return meaning
    fits = type(_spelled_for(accepted, meaning)) in accepted
    return meaning if fits else str(value)


def _spelled_for(accepted: frozenset[type], value: Any) -> Any:
    """A scalar as the type that is wanted, where it says the same thing; else as it is."""
    if isinstance(value, bool):  # an int to Python, never to a config
        return value
    if isinstance(value, str) and str not in accepted:
        if bool in accepted and value.lower() in _BOOLEAN_WORDS:
            return _BOOLEAN_WORDS[value.lower()]
        number = _number(value) if accepted & {int, float} else None
        value = value if number is None else number
    if isinstance(value, float) and int in accepted and float not in accepted:
        is_exact = value.is_integer() and abs(value) <= _MAX_EXACT_INTEGER
        return int(value) if is_exact else value
    if type(value) is int and float in accepted and int not in accepted:
        return _float(value)
    return value


def _number(text: str) -> int | float | None:
    """The finite number a text spells, if it spells one."""
    # int first: float would round a long integer.
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        return number if isinstance(number, int) or math.isfinite(number) else None
    return None


def _float(value: int) -> float:
    """The nearest float; infinity, which is refused later, for what no float can hold."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
