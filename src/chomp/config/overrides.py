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
from chomp.config.elsewhere import Elsewhere, names_elsewhere, rerouted
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
from chomp.errors import ConfigError

C = TypeVar("C", bound=ConfigClass)


class _Target(NamedTuple):
    """Where an override lands: its container in the mapping, the key there, and what is declared.

    `written` is its path as far as the override spells it, `path` as the config does. `is_kind`
    tells that the key decides which config of a union its container is.
    """

    container: Any
    key: str | int
    path: KeyPath
    declared: Any
    written: KeyPath
    is_kind: bool = False

    @property
    def section(self) -> type | None:
        """The config class whose fields lie inside, if there is one."""
        here = self.container[self.key]
        return section_for(self.declared, here) if isinstance(here, dict) else None


class _Landing(NamedTuple):
    """The end of an override's path, and what was passed on the way.

    `by` is the name elsewhere that led here; `names`, the keys of sections for fields elsewhere.
    """

    target: _Target
    by: Elsewhere | None
    names: dict[KeyPath, list[str]]


class _Applied(NamedTuple):
    """How an override that was applied spells its path."""

    written: KeyPath
    is_elsewhere: bool  # by a name of its field in another section


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
    applied: dict[KeyPath, _Applied] = {}
    problems: dict[KeyPath, ConfigError] = {}
    for position, text in enumerate(overrides):
        try:
            _apply(type(config), mapping, text, applied)
        except ConfigError as error:
            problems[(position,)] = error.within(repr(text))
    raise_problems("override", problems)
    written = _written(applied)
    return config_from_mapping(
        type(config), mapping, source="config with overrides", written=written
    )


def _apply(cls: type, mapping: dict[str, Any], text: str, applied: dict[KeyPath, _Applied]) -> None:
    """Put one override into the mapping, and into the record of those applied."""
    split = split_override(text)
    if split is None:
        raise ConfigError(
            "this is not of the form path=value",
            allowed="a dotted path, '=' and a value, such as model.hidden_dim=64",
            fix="write the path, '=' and the value",
        )
    parts, value_text = split
    target, by, names = _landing(cls, mapping, parts, adds_entry=value_text.startswith("{"))
    value = override_value(value_text, target.declared, target.path, parts, names)
    value = value if by is None else by.meant(value)
    _refuse_conflict(target, value, applied)
    target.container[target.key] = value
    applied[target.path] = _Applied(parts, by is not None)


def _written(applied: Mapping[KeyPath, _Applied]) -> dict[KeyPath, KeyPath]:
    """How overrides spell what they change, and the sections that it is in."""
    found: dict[KeyPath, KeyPath] = {}
    for path, override in applied.items():
        found[path] = override.written
        # A name elsewhere says nothing about the section that its field is in.
        if not override.is_elsewhere:
            found |= {path[:end]: override.written[:end] for end in range(1, len(path))}
    return found


def _landing(
    cls: type, mapping: dict[str, Any], parts: tuple[str, ...], *, adds_entry: bool
) -> _Landing:
    """Where a path leads. Raises `ConfigError` if it leads nowhere."""
    # The config itself, as if it were an entry: every step then starts from a container and a key.
    target = _Target({"": mapping}, "", (), cls, ())
    by: Elsewhere | None = None
    names: dict[KeyPath, list[str]] = {}
    while parts:
        section = target.section
        if section is not None:
            parts, found = rerouted(section, parts)
            by = found or by
            names |= names_elsewhere(section, target.path)
        is_last = len(parts) == 1
        target = _step(target, parts[0], names, adds_entry=adds_entry and is_last)
        parts = parts[1:]
    return _Landing(target, by, names)


def _step(
    target: _Target, part: str, names: Mapping[KeyPath, list[str]], *, adds_entry: bool
) -> _Target:
    """One part further down a path. Raises `ConfigError` if that part leads nowhere."""
    here, path, declared = target.container[target.key], target.path, target.declared
    written = (*target.written, part)
    if (section := target.section) is not None:
        item = settings_by_spelling(section).get(part)
        if item is None:
            raise unknown_key(written, section, names.get(path, ()))
        is_kind = item.name == KIND and len(sections(declared)) > 1
        return _Target(here, item.name, (*path, item.name), item.declared, written, is_kind)
    if isinstance(here, dict):
        value_type = entry_types(mapping_member(declared))[1]
        # Only a whole mapping adds an entry, so that a misspelt key is not taken for a new one.
        if part not in here and not adds_entry:
            raise _unknown_entry(written, here, value_type)
        return _Target(here, part, (*path, part), value_type, written)
    if isinstance(here, list) and part.isdecimal() and int(part) < len(here):
        index = int(part)
        declared = item_type(list_member(declared), index)
        return _Target(here, index, (*path, index), declared, written)
    raise _nothing_inside(written, here)


def _refuse_conflict(target: _Target, value: Any, applied: Mapping[KeyPath, _Applied]) -> None:
    """Raise for a section after one of its fields, and for a kind whose other fields would stay."""
    path, written = target.path, target.written
    if target.is_kind and value != target.container[target.key]:
        whole = dotted(written[:-1])
        raise ConfigError(
            f"{dotted(written)}={value!r} would keep the fields of "
            f"kind {target.container[target.key]!r}",
            allowed=f"another kind only with all of {whole}",
            fix=f"write {whole}={{kind: {value}, ...}}",
        )
    parts = [other for other in applied if other[: len(path)] == path and other != path]
    if parts:
        part = dotted(applied[parts[0]].written)
        raise ConfigError(
            f"{dotted(written)} replaces {part}, which is given before it",
            allowed="a whole first, then its parts",
            fix=f"put {dotted(written)} first",
        )


def _unknown_entry(path: KeyPath, here: Mapping[str, Any], value_type: Any) -> ConfigError:
    near = nearest(str(path[-1]), here)
    known = ", ".join(dotted((key,)) for key in here) or "none yet"
    takes_mapping = sections(value_type) or mapping_member(value_type) is not None
    adding = (
        f"add the entry as a whole: {dotted(path)}={{...}}"
        if takes_mapping
        else f"give {dotted(path[:-1])} as a whole: {dotted(path[:-1])}={{...}}"
    )
    return ConfigError(
        f"{dotted(path)} does not exist{did_you_mean(near)}",
        allowed=f"the keys of {dotted(path[:-1])}: {known}",
        fix=f"rename it to {near}, or {adding}" if near else adding,
    )


def _nothing_inside(path: KeyPath, here: Any) -> ConfigError:
    whole = dotted(path[:-1])
    if isinstance(here, list):
        allowed = f"the indexes 0 to {len(here) - 1}" if here else "no index: the list is empty"
    else:
        allowed = "paths through configs, mappings and lists"
    return ConfigError(
        f"{dotted(path)} does not exist: {whole} is {given_value(here)}",
        allowed=allowed,
        fix=f"give {whole} as a whole",
    )
