"""Dotted overrides: `model.hidden_dim=64` on the command line, applied to a config.

The declared type of the field decides what the text means. Overrides only change what the config
has; the one thing they add is a whole entry of a mapping.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from chomp.config.fields import (
    KIND,
    MARKS,
    AlsoName,
    ConfigClass,
    KeyPath,
    Mark,
    also_names,
    dotted,
    mark_of,
    section_for,
    settings_by_spelling,
    type_info,
)
from chomp.config.files import parse_yaml
from chomp.config.messages import (
    describe_type,
    describe_value,
    did_you_mean,
    nearest,
    raise_problems,
    unknown_key,
)
from chomp.config.parse import Walk, config_to_mapping, parse, plain_value, validated
from chomp.errors import ConfigError

C = TypeVar("C", bound=ConfigClass)

_PART = r"""(?:"[^"]*"|'[^']*'|[^.='"]+)"""
# The first "=" outside quotes ends the path; the value may hold more of them, and line ends.
_OVERRIDE = re.compile(rf"\s*({_PART}(?:\.{_PART})*)\s*=(.*)", re.DOTALL)


def apply_overrides(config: C, overrides: Iterable[str]) -> C:
    """The config with each `path=value` applied in turn, checked as a whole at the end.

    Values are YAML: scalars, `[a, b]`, `{key: value}`, `null`. Text fields take the text as it is
    (`run_id=5` is "5"), less a pair of quotes around all of it. Paths go through fields (aliases
    and names in other sections work), mapping keys and list indexes; a key with a dot in it is
    quoted.

    A mapping given to a nested config replaces that config: fields left out get their class's
    defaults, not their present values. It may also be a new entry of a mapping. Of a key given
    twice the last value wins; a whole may not follow one of its parts.
    """
    # Validated first: as a mapping, an instance of a wrong class could pass for the right one.
    mapping = config_to_mapping(validated(config))
    # The paths of messages: as the overrides spell what they change and the sections it is in.
    written: dict[KeyPath, KeyPath] = {}
    applied: dict[KeyPath, KeyPath] = {}
    problems: list[ConfigError] = []
    for text in overrides:
        try:
            split = split_override(text)
            if split is None:
                raise ConfigError(
                    "this is not of the form path=value",
                    allowed="a dotted path, '=' and a value, such as model.hidden_dim=64",
                    fix="write the path, '=' and the value",
                )
            typed, value = split
            # Only a whole mapping adds an entry, or a misspelt key would be taken for a new one.
            place = _find(type(config), mapping, typed, adds_entry=value.startswith("{"))
            _put(place, value, typed, applied)
        except ConfigError as error:
            problems.append(error.within(repr(text)))
            continue
        applied[place.path] = written[place.path] = typed
        # A name in another section says nothing about the section that its field is in.
        if place.also is None:
            written |= {place.path[:end]: typed[:end] for end in range(1, len(typed))}
    raise_problems("override", problems)
    return parse(type(config), mapping, "config with overrides", written)


def find_field(config: ConfigClass, name: str) -> tuple[KeyPath, Mark] | None:
    """The path of a field by its own names, and the loosest mark on the way to it.

    Every spelling works (`train.steps`, `train.eval_every`), and a key with a dot in it is quoted,
    as in overrides. None if the config has no such field.
    """
    split = split_override(f"{name}=")
    if split is None:
        return None
    try:
        place = _find(type(config), config_to_mapping(config), split[0], adds_entry=False)
    except ConfigError:
        return None
    return place.path, place.mark


def split_override(text: str) -> tuple[tuple[str, ...], str] | None:
    """The path and the value of `path=value`; None if the text has no such form."""
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        return None
    parts = [part.strip() for part in re.findall(_PART, match[1])]
    if "" in parts:  # a name of blanks alone; one that is meant to be empty is quoted
        return None
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in parts), match[2].strip()


def resolve_also(cls: type, parts: tuple[str, ...]) -> tuple[tuple[str, ...], AlsoName | None]:
    """A path from a config class with the field's own path in place of an `also` name of it."""
    for item in also_names(cls):
        end = len(item.route)
        if len(parts) >= end and all(map(frozenset.__contains__, item.route, parts)):
            return (*item.field, *parts[end:]), item
    return parts, None


class _Place(NamedTuple):
    """Where a path leads: a container in the mapping, a key of it, and the type declared there.

    `path` is by the names of fields, `typed` as the user wrote it, `mark` the loosest on the way.
    `is_kind`: the key decides which config of a union its container is. `also` is the name in
    another section that led here, and `walk` is for the value: it has seen the sections on the way.
    """

    container: Any
    key: str | int
    path: KeyPath
    typed: KeyPath
    declared: Any
    mark: Mark
    is_kind: bool
    also: AlsoName | None
    walk: Walk


def _find(
    cls: type, mapping: dict[str, Any], parts: tuple[str, ...], *, adds_entry: bool
) -> _Place:
    """Where a path leads. Raises `ConfigError` if it leads nowhere."""
    # The config itself, as if it were an entry: every step then starts from a container and a key.
    place = _Place({"": mapping}, "", (), (), cls, MARKS[0], False, None, Walk(builds=False))
    while parts:
        here, info, also = place.container[place.key], type_info(place.declared), place.also
        section = section_for(place.declared, here) if isinstance(here, dict) else None
        if section is not None:
            parts, found = resolve_also(section, parts)
            also = found or also
            place.walk.note_also_keys(section, place.path)
        part, parts = parts[0], parts[1:]
        typed, mark, is_kind = (*place.typed, part), place.mark, False
        whole = dotted(typed[:-1])
        key: str | int = part
        if section is not None:
            item = settings_by_spelling(section).get(part)
            if item is None:
                raise unknown_key(typed, section, place.walk.also_keys.get(place.path, ()))
            is_kind = item.name == KIND and len(info.sections) > 1
            key, declared = item.name, item.declared
            mark = max(mark, mark_of(item.field), key=MARKS.index)
        elif isinstance(here, dict):
            declared = info.entry_types[1] if info.entry_types else Any
            if part not in here and not (adds_entry and not parts):
                near = nearest(part, here)
                known = ", ".join(dotted((each,)) for each in here) or "none yet"
                of_entry = type_info(declared)
                adding = f"give {whole} as a whole: {whole}={{...}}"
                if of_entry.sections or of_entry.entry_types:
                    adding = f"add the entry as a whole: {dotted(typed)}={{...}}"
                raise ConfigError(
                    f"{dotted(typed)} does not exist{did_you_mean(near)}",
                    allowed=f"the keys of {whole}: {known}",
                    fix=f"rename it to {near}, or {adding}" if near else adding,
                )
        elif isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            key = int(part)
            declared = info.item_type(key)
        else:
            allowed = "paths through configs, mappings and lists"
            if isinstance(here, list):
                ends = f"the indexes 0 to {len(here) - 1}"
                allowed = ends if here else "no index: the list is empty"
            raise ConfigError(
                f"{dotted(typed)} does not exist: {whole} is {describe_value(here)}",
                allowed=allowed,
                fix=f"give {whole} as a whole",
            )
        path = (*place.path, key)
        place = _Place(here, key, path, typed, declared, mark, is_kind, also, place.walk)
    return place


def _put(place: _Place, text: str, typed: KeyPath, applied: dict[KeyPath, KeyPath]) -> None:
    """Put a value into the mapping, as plain data with the names and the defaults of fields.

    Text fields take the text itself, less a pair of quotes around all of it; for all others it is
    YAML. Rules between fields are checked with the whole config.
    """
    whole = dotted(place.typed)
    value: Any = text
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    if type_info(place.declared).is_text and not is_quoted:
        # A bare null is null even where that is refused: a run called "null" is never meant.
        value = None if text == "null" else text
    elif text:
        value = parse_yaml(text, "the value", keeps_unquoted=True)
    else:
        # As from an unset shell variable; YAML would read null.
        raise ConfigError(
            f"{dotted(typed)} is given no value",
            allowed=describe_type(place.declared),
            fix="write the value after '='",
        )
    place.walk.written[place.path] = typed
    value = place.walk.value(place.declared, value, place.path)
    if errors := list(place.walk.problems.values()):
        raise errors[0] if len(errors) == 1 else ConfigError(" ".join(map(str, errors)))
    value = plain_value(value if place.also is None else place.also.meaning(value))
    if place.is_kind and value != (kind := place.container[place.key]):
        union = dotted(place.typed[:-1])
        raise ConfigError(
            f"{whole}={value!r} would keep the fields of kind {kind!r}",
            allowed=f"another kind only with all of {union}",
            fix=f"write {union}={{kind: {value}, ...}}",
        )
    for other, before in applied.items():
        if other[: len(place.path)] == place.path and other != place.path:
            raise ConfigError(
                f"{whole} replaces {dotted(before)}, which is given before it",
                allowed="a whole first, then its parts",
                fix=f"put {whole} first",
            )
    place.container[place.key] = value
