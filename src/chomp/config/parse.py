"""Mappings to configs and back: the gate every config passes, whatever text it came from.

One walk over the input and the class together builds the config: names become fields, fields left
out get their defaults, `kind` picks the member of a union. The value of a single field is checked
by pydantic, as strict JSON: lists fill tuples and text fills enums and paths, while nothing else
is converted. The walk notes every problem under its path, and one error lists them all.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from os import PathLike, fspath
from typing import Any, Literal, TypeVar, get_origin

from pydantic import TypeAdapter, ValidationError

from chomp.config.fields import (
    KIND,
    AlsoName,
    ConfigClass,
    KeyPath,
    also_names,
    dotted,
    fields_at,
    is_config,
    kinds_of,
    section_for,
    settings_by_spelling,
    settings_of,
    type_info,
)
from chomp.config.messages import (
    describe_type,
    describe_value,
    missing_value,
    no_such_field,
    raise_problems,
    scalar_in_text,
    two_spellings,
    unknown_key,
    wrong_value,
)
from chomp.errors import ConfigError

C = TypeVar("C", bound=ConfigClass)

# Larger floats cannot tell neighbouring whole numbers apart, so they are not taken as integers.
_MAX_EXACT_INTEGER = 2**53

# pydantic's complaints that the declared type itself explains; others come from validators in it.
_OF_TYPE = {"enum", "int_from_float", "literal_error", "none_required"}
_OF_TYPE_ENDINGS = ("_type", "_parsing")

# For a Literal made of values found at run time, which a type checker cannot follow.
_LITERAL: Any = Literal


def config_from_mapping(cls: type[C], mapping: Mapping[str, Any], *, source: str = "config") -> C:
    """The config a mapping describes; defaults for what it leaves out, checked like the rest.

    A section given in part keeps the values it has by default for the fields that are left out;
    with another `kind`, it has the defaults of that class. Mappings with free keys are taken as
    given.
    Values may be plain data, tuples, enums, paths or configs. Raises one `ConfigError`, headed by
    `source`, that lists every problem with its dotted path.
    """
    return parse(cls, mapping, source)


def validated(config: C) -> C:
    """An equal config with every field at every depth checked against its declared type.

    For configs built in Python, where a dataclass takes anything. Numbers are brought to their
    declared type (1 becomes 1.0 in a float field).
    """
    return parse(type(config), config, type(config).__name__)


def config_to_mapping(config: ConfigClass) -> dict[str, Any]:
    """The config as fresh plain data for JSON: field names, lists for tuples, values for enums."""
    mapping: dict[str, Any] = plain_value(config)
    return mapping


def parse(
    cls: type[C], value: Any, source: str, written: Mapping[KeyPath, KeyPath] | None = None
) -> C:
    """The config that a mapping or an instance describes.

    `written` has the paths that messages spell another way than the mapping.
    """
    walk = Walk(written=written)
    config: C = walk.value(cls, value)
    raise_problems(source, walk.problems.values())
    return config


# ---- Plain data ------------------------------------------------------------------------------


class Unquoted(str):
    """A scalar written without quotes on the command line, and what YAML reads it as.

    `run_id=5` may mean the text or the number; the declared type decides, later than the parser.
    """

    meaning: Any

    def __new__(cls, text: str, meaning: Any) -> "Unquoted":
        """The text, which also remembers its meaning."""
        self = super().__new__(cls, text)
        self.meaning = meaning
        return self


def plain_value(value: Any, path: KeyPath = ()) -> Any:
    """The value as fresh plain data: what JSON can hold.

    Dataclasses become mappings by field name, tuples lists, enums their values, paths text. Raises
    `ConfigError` with path and type for anything else, and for NaN and infinity.
    """
    if isinstance(value, Unquoted):
        value = value.meaning
    # Before the scalars: an IntEnum is an int and a StrEnum a str, and both print otherwise.
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, PathLike):
        value = fspath(value)
    # Exactly int, float or str: subclasses print themselves otherwise.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise ConfigError(
            f"{dotted(path)}={describe_value(value)}",
            allowed="a finite number",
            fix=f"set {dotted(path)} to a finite number",
        )
    if isinstance(value, str):
        return _plain_text(value, path)
    if is_config(value):
        # Derived fields are left out: no constructor takes them back.
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: plain_value(getattr(value, name), (*path, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: plain_value(item, (*path, key)) for key, item in plain_items(value, path)}
    if isinstance(value, list | tuple):
        return [plain_value(item, (*path, index)) for index, item in enumerate(value)]
    raise ConfigError(
        f"{dotted(path)}={describe_value(value)}",
        allowed="null, true, false, numbers, text, lists, mappings, configs, enums and paths",
        fix="write the value as one of these",
    )


def plain_items(mapping: Mapping[Any, Any], path: KeyPath) -> Iterator[tuple[str, Any]]:
    """The entries of a mapping with their keys as text; whole numbers are keys too, as digits."""
    seen: set[str] = set()
    for key, item in mapping.items():
        text = key.value if isinstance(key, Enum) else key
        if isinstance(text, bool) or not isinstance(text, str | int):
            raise ConfigError(
                f"{dotted(path)} has the key {describe_value(key)}",
                allowed="keys that are text or whole numbers",
                fix="write the key in quotes",
            )
        if str(text) in seen:  # {1: a, "1": b}, of which JSON would keep one
            raise ConfigError(
                f"{dotted(path)} has the key {str(text)!r} as text and as a number",
                allowed="each key once",
                fix="remove one",
            )
        seen.add(str(text))
        yield _plain_text(str(text), path), item


def _plain_text(text: str, path: KeyPath) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{dotted(path)} has the text {text!a} with half of a surrogate pair",
            allowed="text that UTF-8 can hold",
            fix="remove the broken character",
        ) from None
    return str(text)


# ---- The walk --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Moved:
    """The key of a value that a name in another section gave to a field of this one."""

    field: str
    path: KeyPath  # as it was given


class Walk:
    """One input on its way to a config, and its problems by the place of their field.

    A place is a path by field names. `written` has the places that the user spelled another way,
    and `also_keys` the keys that sections take for fields of other sections. Without `builds`, a
    section becomes a mapping of all its fields, and neither types nor rules between fields are
    checked.
    """

    def __init__(
        self, written: Mapping[KeyPath, KeyPath] | None = None, *, builds: bool = True
    ) -> None:
        self.problems: dict[KeyPath, ConfigError] = {}
        self.written = dict(written or {})
        self.also_keys: dict[KeyPath, list[str]] = {}
        self._builds = builds

    def note_also_keys(self, cls: type, at: KeyPath) -> None:
        """Note the keys that a section and those inside of it take for fields of others."""
        for name in also_names(cls):
            self.also_keys.setdefault((*at, *name.section), []).append(name.name[-1])

    def value(self, declared: Any, value: Any, at: KeyPath = (), default: Any = None) -> Any:
        """A value of the declared type; None if it has a problem.

        `default` is what the field has if no value is given: a mapping for a config changes only
        the fields that it names.
        """
        if isinstance(value, Unquoted):
            value = _meaning(value, declared)
        info, spelled = type_info(declared), self._spelled(at)
        if is_config(value) and info.sections:
            cls: type = type(value)
            if cls in info.sections:
                fields = {item.name: getattr(value, item.name) for item in settings_of(cls)}
                return self._section(cls, fields, at, None)
            # A subclass, too: no file could say which one it was.
            names = " or ".join(each.__name__ for each in info.sections)
            error = ConfigError(
                f"{dotted(spelled)} is an instance of {cls.__name__}",
                allowed=f"exactly {names}, or a mapping of its fields",
                fix=f"give {dotted(spelled)} as {names}, or declare {cls.__name__} in its place",
            )
            return self._refuse(at, error)
        if isinstance(value, Mapping) and info.sections:
            chosen, kind_path = section_for(declared, value), (*spelled, KIND)
            if chosen is None:
                kinds = _LITERAL[tuple(kind for each in info.sections for kind in kinds_of(each))]
                if KIND in value:
                    return self._refuse(at, wrong_value(kind_path, value[KIND], kinds))
                return self._refuse(at, missing_value(kind_path, kinds))
            # The fields of another class or another kind mean nothing here.
            kind = getattr(default, KIND, None)
            is_same = type(default) is chosen and value.get(KIND, kind) == kind
            return self._section(chosen, value, at, default if is_same else None)
        if isinstance(value, Mapping) and info.entry_types is not None:
            return self._mapping(*info.entry_types, value, at)
        if isinstance(value, list | tuple) and info.list_type is not None:
            if self._builds and info.fixed_length not in (None, len(value)):
                self._refuse(at, wrong_value(spelled, value, declared))
            numbered = enumerate(value)
            items = [self.value(info.item_type(n), item, (*at, n)) for n, item in numbered]
            is_tuple = tuple in (info.list_type, get_origin(info.list_type))
            return tuple(items) if is_tuple else items
        return self._single(declared, value, at)

    def _mapping(
        self, key_type: Any, value_type: Any, value: Mapping[Any, Any], at: KeyPath
    ) -> Any:
        """A mapping with free keys."""
        path = self._spelled(at)
        try:
            entries = dict(plain_items(value, path))
        except ConfigError as error:
            return self._refuse(at, error)
        found: dict[Any, Any] = {}
        for (text, item), key in zip(entries.items(), value, strict=True):
            name: Any = text
            try:
                # JSON would turn a number into text here without a word.
                if key_type is str and not isinstance(getattr(key, "value", key), str):
                    raise ValueError(text)
                if key_type not in (str, Any):
                    name = _adapter(key_type).validate_strings(text, strict=True)
            except ValueError:
                is_text = key_type is str
                wrong_key = ConfigError(
                    f"{dotted(path)} has the key {describe_value(key)}",
                    allowed=f"keys that are each {describe_type(key_type)}",
                    fix=f"write it in quotes: '{key}'" if is_text else "rename or remove the key",
                )
                self._refuse((*at, text), wrong_key)
            else:
                result = self.value(value_type, item, (*at, text))
                found[name if self._builds else text] = result
        return found

    def _spelled(self, at: KeyPath) -> KeyPath:
        """A place as the user wrote it."""
        for end in range(len(at), -1, -1):
            if at[:end] in self.written:
                return (*self.written[at[:end]], *at[end:])
        return at

    def _refuse(self, at: KeyPath, error: ConfigError) -> Any:
        """Note a problem, unless its place has one, and return None in place of the value."""
        self.problems.setdefault(at, error)

    def _section(self, cls: type, value: Mapping[Any, Any], at: KeyPath, default: Any) -> Any:
        """A config with every field as given, else as in `default`, else its own default."""
        self.note_also_keys(cls, at)
        for name in also_names(cls):
            value, moved = _take(value, name.route)
            for key_path, moved_value in moved.items():
                key = _Moved(name.field[-1], (*self._spelled(at), *key_path))
                value = self._put(cls, value, name, key, name.meaning(moved_value), at)
        known, spelled = settings_by_spelling(cls), self._spelled(at)
        given: dict[str, Any] = {}
        for key, found in value.items():
            is_moved = isinstance(key, _Moved)
            written = key.path if is_moved else (*spelled, key)
            item = known.get(key.field if is_moved else key)
            if item is None and is_moved:
                rest = {k: inner for k, inner in value.items() if not isinstance(k, _Moved)}
                place = (*at, key.field)
                self._refuse(place, no_such_field(key.path, place, spelled, rest))
            elif item is None:
                also = self.also_keys.get(at, ())
                self._refuse((*at, str(key)), unknown_key((*spelled, str(key)), cls, also))
            elif item.name in given:
                inner = (*at, item.name)
                self._refuse(inner, two_spellings(self._spelled(inner), written))
            else:
                given[item.name] = found
                if written != (*spelled, item.name):
                    self.written.setdefault((*at, item.name), written)
        fields: dict[str, Any] = {}
        for item in settings_of(cls):
            inner = (*at, item.name)
            kept = item.default() if default is None else getattr(default, item.name)
            if item.is_required and default is None and item.name not in given:
                self._refuse(inner, missing_value(self._spelled(inner), item.declared))
                continue
            is_given = item.name in given
            fields[item.name] = self.value(
                item.declared, given.get(item.name, kept), inner, kept if is_given else None
            )
            for below, number in item.bounds.outside(fields[item.name]):
                place = (*inner, *below)
                self._refuse(place, item.out_of_bounds(self._spelled(place), number))
        if not self._builds:
            return fields
        # The rules of a class wait until all its fields are right.
        if any(problem[: len(at)] == at for problem in self.problems):
            return None
        try:
            return cls(**fields)
        except (ValueError, AssertionError) as error:
            refused = error if isinstance(error, ConfigError) else ConfigError(str(error))
        # With the names by which the fields it speaks of were given.
        names = {name: self._spelled((*at, name)) for name in fields}
        renamed = ", ".join(
            f"{name} is given as {dotted(path)}"
            for name, path in names.items()
            if path != (*spelled, name) and re.search(rf"\b{re.escape(name)}\b", str(refused))
        )
        head = (dotted(spelled) if at else "") + (f" ({renamed})" if renamed else "")
        return self._refuse(at, refused.within(head.strip()) if head else refused)

    def _put(
        self,
        cls: type,
        value: Mapping[Any, Any],
        name: AlsoName,
        moved: _Moved,
        given: Any,
        at: KeyPath,
        depth: int = 0,
    ) -> Mapping[Any, Any]:
        """A section's mapping with a moved value in the place of its field, inside of it."""
        part, *below = name.field[depth:]
        if not below:
            return {**value, moved: given}
        names = {s for _, item in fields_at(cls, name.field[: depth + 1]) for s in item.spellings}
        key = next((key for key in value if key in names), part)
        inner = value.get(key, {})  # as if a section that is left out were there and empty
        inner = inner.meaning if isinstance(inner, Unquoted) else inner
        if isinstance(inner, Mapping):
            return {**value, key: self._put(cls, inner, name, moved, given, at, depth + 1)}
        place = (*at, *name.field)
        if is_config(inner) and fields_at(type(inner), below):
            self._refuse(place, two_spellings(place, moved.path))
        # A period that is none may be given for a section that is none.
        elif is_config(inner) or (inner is None and given is not None):
            section = (*self._spelled((*at, *name.field[:depth])), key)
            self._refuse(place, no_such_field(moved.path, place, section, inner))
        return value

    def _single(self, declared: Any, value: Any, at: KeyPath) -> Any:
        """The value of a field that has no fields, entries or items of its own."""
        path, info = self._spelled(at), type_info(declared)
        if value is None:
            is_fine = info.allows_none or not self._builds
            return None if is_fine else self._refuse(at, wrong_value(path, value, declared))
        given = value
        if info.scalars is not None:
            value = _number_as_declared(info.scalars, value)
            # pydantic takes true for Literal[1] and for an enum's 1, even when strict.
            if isinstance(value, bool) and bool not in info.scalars:
                return self._refuse(at, wrong_value(path, value, declared))
            # A blank name or path would be found out much later.
            is_item = info.is_text and isinstance(at[-1] if at else "", int)
            is_blank = isinstance(value, str) and not value.strip() and str in info.scalars
            if is_blank and (is_item or info.allows_none):
                error = ConfigError(
                    f"{dotted(path)}={value!r}, which is blank",
                    allowed=f"{describe_type(declared)}, and text that is not blank",
                    fix=f"leave {dotted(path)} out" if is_item else f"set {dotted(path)} to null",
                )
                return self._refuse(at, error)
        try:
            plain = plain_value(value, path)
        except ConfigError as error:
            # A value of the right type is refused for what it holds, in words of its own.
            is_own_type = info.scalars is None or type(value) in info.scalars
            return self._refuse(at, error if is_own_type else wrong_value(path, given, declared))
        if not self._builds or type(plain) is declared:
            return plain
        try:
            return _adapter(declared).validate_json(json.dumps(plain), strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            is_of_type = first["type"] in _OF_TYPE or first["type"].endswith(_OF_TYPE_ENDINGS)
            detail = "" if is_of_type else first["msg"]
            return self._refuse(at, wrong_value(path, given, declared, detail))


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


# ---- Scalars ---------------------------------------------------------------------------------


@cache
def _adapter(declared: Any) -> TypeAdapter[Any]:
    """pydantic's validator of a type, built once: building takes longer than using it."""
    return TypeAdapter(declared)


def _meaning(value: Unquoted, declared: Any) -> Any:
    """The text or its YAML meaning, whichever the declared type can take; null only as null."""
    accepted, meaning = type_info(declared).scalars, value.meaning
    # A null that is not allowed stays null and is refused; as text it would name a run "null".
    if accepted is None or meaning is None:
        return meaning
    if str not in accepted:  # `no`, `007`: text to YAML
        found = scalar_in_text(accepted, meaning) if isinstance(meaning, str) else None
        return meaning if found is None else found
    fits = type(_number_as_declared(accepted, meaning)) in accepted
    return meaning if fits else str(value)


def _number_as_declared(accepted: frozenset[type], value: Any) -> Any:
    """A number as the type that is accepted, where it says the same thing; else as it is.

    `1.0` or `1e3` for an integer, `1` for a number. A boolean is an int to Python alone.
    """
    if type(value) is float and int in accepted and float not in accepted:
        is_exact = value.is_integer() and abs(value) <= _MAX_EXACT_INTEGER
        return int(value) if is_exact else value
    if type(value) is int and float in accepted and int not in accepted:
        try:
            return float(value)
        except OverflowError:
            return math.inf  # refused as such
    return value
