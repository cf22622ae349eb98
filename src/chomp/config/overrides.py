"""Dotted overrides: `model.hidden_dim=64` on the command line, applied to a config.

The declared type of the field decides what the text means. Overrides only change what the config
has; the one thing they add is a whole entry of a mapping.
"""

import re
from collections.abc import Iterable, Mapping
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
    entry_types,
    is_text,
    item_type,
    list_member,
    mapping_member,
    mark_of,
    section_for,
    sections,
    settings_by_spelling,
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
            place, typed = _apply(type(config), mapping, text, applied)
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


def _apply(
    cls: type, mapping: dict[str, Any], text: str, applied: Mapping[KeyPath, KeyPath]
) -> tuple[_Place, KeyPath]:
    """Put one override into the mapping; returns its place, and its path as it was typed."""
    split = split_override(text)
    if split is None:
        raise ConfigError(
            "this is not of the form path=value",
            allowed="a dotted path, '=' and a value, such as model.hidden_dim=64",
            fix="write the path, '=' and the value",
        )
    parts, value_text = split
    # Only a whole mapping adds an entry, so that a misspelt key is not taken for a new one.
    place = _find(cls, mapping, parts, adds_entry=value_text.startswith("{"))
    value = _parse_value(value_text, place, parts)
    whole = dotted(place.typed)
    if place.is_kind and value != (kind := place.container[place.key]):
        union = dotted(place.typed[:-1])
        raise ConfigError(
            f"{whole}={value!r} would keep the fields of kind {kind!r}",
            allowed=f"another kind only with all of {union}",
            fix=f"write {union}={{kind: {value}, ...}}",
        )
    for other, typed in applied.items():
        if other[: len(place.path)] == place.path and other != place.path:
            raise ConfigError(
                f"{whole} replaces {dotted(typed)}, which is given before it",
                allowed="a whole first, then its parts",
                fix=f"put {whole} first",
            )
    place.container[place.key] = value
    return place, parts


def _find(
    cls: type, mapping: dict[str, Any], parts: tuple[str, ...], *, adds_entry: bool
) -> _Place:
    """Where a path leads. Raises `ConfigError` if it leads nowhere."""
    # The config itself, as if it were an entry: every step then starts from a container and a key.
    container: Any = {"": mapping}
    key: str | int = ""
    path: KeyPath = ()
    typed: KeyPath = ()
    declared: Any = cls
    mark = MARKS[0]
    is_kind = False
    also: AlsoName | None = None
    walk = Walk(builds=False)
    while parts:
        here = container[key]
        section = section_for(declared, here) if isinstance(here, dict) else None
        if section is not None:
            parts, found = resolve_also(section, parts)
            also = found or also
            walk.note_also_keys(section, path)
        part, parts = parts[0], parts[1:]
        typed = (*typed, part)
        if section is not None:
            item = settings_by_spelling(section).get(part)
            if item is None:
                raise unknown_key(typed, section, walk.also_keys.get(path, ()))
            is_kind = item.name == KIND and len(sections(declared)) > 1
            key, declared = item.name, item.declared
            mark = max(mark, mark_of(item.field), key=MARKS.index)
        elif isinstance(here, dict):
            key, declared = part, entry_types(mapping_member(declared))[1]
            if part not in here and not (adds_entry and not parts):
                raise _unknown_entry(typed, here, declared)
        elif isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            key = int(part)
            declared = item_type(list_member(declared), key)
        else:
            whole = dotted(typed[:-1])
            allowed = "paths through configs, mappings and lists"
            if isinstance(here, list):
                ends = f"the indexes 0 to {len(here) - 1}"
                allowed = ends if here else "no index: the list is empty"
            raise ConfigError(
                f"{dotted(typed)} does not exist: {whole} is {describe_value(here)}",
                allowed=allowed,
                fix=f"give {whole} as a whole",
            )
        container, path = here, (*path, key)
    return _Place(container, key, path, typed, declared, mark, is_kind, also, walk)


def _unknown_entry(path: KeyPath, here: Mapping[str, Any], value_type: Any) -> ConfigError:
    near = nearest(str(path[-1]), here)
    known = ", ".join(dotted((key,)) for key in here) or "none yet"
    whole = dotted(path[:-1])
    adding = f"give {whole} as a whole: {whole}={{...}}"
    if sections(value_type) or mapping_member(value_type) is not None:
        adding = f"add the entry as a whole: {dotted(path)}={{...}}"
    return ConfigError(
        f"{dotted(path)} does not exist{did_you_mean(near)}",
        allowed=f"the keys of {whole}: {known}",
        fix=f"rename it to {near}, or {adding}" if near else adding,
    )


def _parse_value(text: str, place: _Place, typed: KeyPath) -> Any:
    """The value as plain data, with the names of fields and their defaults filled in.

    Text fields take the text itself, less a pair of quotes around all of it; for all others it is
    YAML. Rules between fields are checked with the whole config.
    """
    value: Any = text
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    if is_text(place.declared) and not is_quoted:
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
    errors = list(place.walk.problems.values())
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigError(" ".join(map(str, errors)))
    return plain_value(value if place.also is None else place.also.meaning(value))
