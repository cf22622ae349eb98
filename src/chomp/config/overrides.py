"""Dotted overrides: `model.hidden_dim=64` on the command line, applied to a config.

The declared type of the field decides what the text means. Overrides only change what the config
has; the one thing they add is a whole entry of a mapping.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from chomp.config.declared import (
    KIND,
    entry_types,
    item_type,
    list_member,
    mapping_member,
    section_for,
    sections,
)
from chomp.config.fields import ConfigClass, settings_by_spelling
from chomp.config.messages import raise_problems
from chomp.config.override_value import override_value
from chomp.config.parsing import config_from_mapping, config_to_mapping, validated
from chomp.config.paths import KeyPath, dotted, split_override
from chomp.config.words import (
    did_you_mean,
    given_value,
    nearest,
    unknown_key,
)
from chomp.errors import ConfigError, message

C = TypeVar("C", bound=ConfigClass)


class _Target(NamedTuple):
    """Where an override lands: its container in the mapping, the key there, and what is declared.

    `is_kind` tells that the key decides which config of a union its container is.
    """

    container: Any
    key: str | int
    path: KeyPath
    declared: Any
    is_kind: bool = False


def apply_overrides(config: C, overrides: Iterable[str]) -> C:
    """The config with each `path=value` applied in turn, checked as a whole at the end.

    Values are YAML: scalars, `[a, b]`, `{key: value}`, `null`. Text fields take the text as it is
    (`run_id=5` is "5"), less a pair of quotes around all of it. Paths go through fields (aliases
    work), mapping keys and list indexes; a key with a dot in it is quoted.

    A mapping given to a nested config replaces that config: fields left out get their class's
    defaults, not their present values. It may also be a new entry of a mapping. A key given twice
    must be given the same value both times, and a whole may not follow one of its parts.
    """
    # Validated first: as a mapping, an instance of a wrong class could pass for the right one.
    mapping = config_to_mapping(validated(config))
    applied: dict[KeyPath, Any] = {}
    problems: dict[KeyPath, str] = {}
    for position, text in enumerate(overrides):
        try:
            _apply(type(config), mapping, text, applied)
        except ConfigError as error:
            problems[(position,)] = f"{text!r}: {error}"
    raise_problems("override", problems)
    return config_from_mapping(type(config), mapping, source="config with overrides")


def _apply(cls: type, mapping: dict[str, Any], text: str, applied: dict[KeyPath, Any]) -> None:
    """Put one override into the mapping, and into the record of those applied."""
    split = split_override(text)
    if split is None:
        raise ConfigError(
            message(
                given="this is not of the form path=value",
                allowed="a dotted path, '=' and a value, such as model.hidden_dim=64",
                fix="write the path, '=' and the value",
            )
        )
    parts, value_text = split
    # The config itself, as if it were an entry: every step then starts from a container and a key.
    target = _Target({"": mapping}, "", (), cls)
    for part in parts[:-1]:
        target = _step(target, part, adds_entry=False)
    target = _step(target, parts[-1], adds_entry=value_text.startswith("{"))
    value = override_value(value_text, target.declared, target.path)
    _refuse_conflict(target, value, applied)
    target.container[target.key] = applied[target.path] = value


def _step(target: _Target, part: str, *, adds_entry: bool) -> _Target:
    """One part further down a path. Raises `ConfigError` if that part leads nowhere."""
    here, path, declared = target.container[target.key], target.path, target.declared
    if isinstance(here, dict) and (section := section_for(declared, here)) is not None:
        item = settings_by_spelling(section).get(part)
        if item is None:
            raise ConfigError(unknown_key((*path, part), section))
        is_kind = item.name == KIND and len(sections(declared)) > 1
        return _Target(here, item.name, (*path, item.name), item.declared, is_kind)
    if isinstance(here, dict):
        value_type = entry_types(mapping_member(declared))[1]
        # Only a whole mapping adds an entry, so that a misspelt key is not taken for a new one.
        if part not in here and not adds_entry:
            raise ConfigError(_unknown_entry((*path, part), here, value_type))
        return _Target(here, part, (*path, part), value_type)
    if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
        index = int(part)
        return _Target(here, index, (*path, index), item_type(list_member(declared), index))
    raise ConfigError(_nothing_inside((*path, part), here))


def _refuse_conflict(target: _Target, value: Any, applied: Mapping[KeyPath, Any]) -> None:
    """Raise for an override that would undo another one or leave fields of another kind behind."""
    path = target.path
    if target.is_kind and value != target.container[target.key]:
        whole = dotted(path[:-1])
        raise ConfigError(
            message(
                given=f"{dotted(path)}={value!r} would keep the fields of "
                f"kind {target.container[target.key]!r}",
                allowed=f"another kind only with all of {whole}",
                fix=f"write {whole}={{kind: {value}, ...}}",
            )
        )
    parts = [other for other in applied if other[: len(path)] == path and other != path]
    if parts:
        raise ConfigError(
            message(
                given=f"{dotted(path)} replaces {dotted(parts[0])}, which is given before it",
                allowed="a whole first, then its parts",
                fix=f"put {dotted(path)} first",
            )
        )
    if path in applied and applied[path] != value:
        raise ConfigError(
            message(
                given=f"{dotted(path)} is given twice, as {given_value(applied[path])} "
                f"and as {given_value(value)}",
                allowed="one value for one key",
                fix="remove one of the two",
            )
        )


def _unknown_entry(path: KeyPath, here: Mapping[str, Any], value_type: Any) -> str:
    near = nearest(str(path[-1]), here)
    known = ", ".join(dotted((key,)) for key in here) or "none yet"
    takes_mapping = sections(value_type) or mapping_member(value_type) is not None
    adding = (
        f"add the entry as a whole: {dotted(path)}={{...}}"
        if takes_mapping
        else f"give {dotted(path[:-1])} as a whole: {dotted(path[:-1])}={{...}}"
    )
    return message(
        given=f"{dotted(path)} does not exist{did_you_mean(near)}",
        allowed=f"the keys of {dotted(path[:-1])}: {known}",
        fix=f"rename it to {near}, or {adding}" if near else adding,
    )


def _nothing_inside(path: KeyPath, here: Any) -> str:
    whole = dotted(path[:-1])
    if isinstance(here, list):
        allowed = f"the indexes 0 to {len(here) - 1}" if here else "no index: the list is empty"
    else:
        allowed = "paths through configs, mappings and lists"
    return message(
        given=f"{dotted(path)} does not exist: {whole} is {given_value(here)}",
        allowed=allowed,
        fix=f"give {whole} as a whole",
    )
