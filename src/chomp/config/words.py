"""The words of messages about configs: for types, for values, and for each way to be wrong.

Types are named as a person writes them in a file ("an integer", "one of 'a', 'b'", "a number or
null"), never as Python or pydantic name them.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, get_args, get_origin

from chomp.config.declared import (
    accepts_only_text,
    allows_none,
    choices_of,
    entry_types,
    is_section,
    item_type,
    kinds_of,
    list_member,
    mapping_member,
    members,
    scalar_types,
    sections,
)
from chomp.config.fields import is_config, settings_by_spelling, settings_of
from chomp.config.paths import KeyPath, dotted
from chomp.config.spelled_text import spelled_scalar
from chomp.errors import ConfigError

# Longer values are cut: the path says where to look, and a message is read in a terminal.
_MAX_VALUE_CHARACTERS = 80

_TYPE_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_VALUE_WORDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}


def allowed_values(declared: Any) -> str:
    """What a declared type lets in, in words."""
    configs = sections(declared)
    if len(configs) > 1:
        kinds = ", ".join(repr(kind) for config in configs for kind in kinds_of(config))
        words = [f"a mapping whose kind is one of {kinds}"]
    else:
        words = [_member_words(config) for config in configs]
    words += [_member_words(member) for member in members(declared) if not is_section(member)]
    if allows_none(declared) and "any value" not in words:
        words.append("null")
    return _either(list(dict.fromkeys(words)))


def given_value(value: Any) -> str:
    """A value as it was given, cut to a readable length, and its type in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a boolean)"
    text = repr(value)
    if len(text) > _MAX_VALUE_CHARACTERS:
        text = text[: _MAX_VALUE_CHARACTERS - 3] + "..."
    return f"{text} ({_value_type(value)})"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name a misspelt one most likely stands for, if any is near."""
    # difflib's own threshold, 0.6: low enough to join "wbe" to "web".
    matches = difflib.get_close_matches(name, list(known), n=1)
    return matches[0] if matches else None


def did_you_mean(name: str | None) -> str:
    """The question to append to a wrong name; empty without a near one."""
    return f" (did you mean {name}?)" if name else ""


def known_keys(section: type) -> str:
    """The keys of a config class, aliases in brackets, as a sentence's object."""
    names = [
        item.name + (f" (or {', '.join(item.aliases)})" if item.aliases else "")
        for item in settings_of(section)
    ]
    return f"the keys of {section.__name__}: {', '.join(names) or 'none'}"


def wrong_value(path: KeyPath, value: Any, declared: Any, detail: str = "") -> ConfigError:
    """The error for a value its declared type does not let in; `detail` narrows the type."""
    allowed = allowed_values(declared) + (f", {detail}" if detail else "")
    return ConfigError(
        f"{dotted(path)}{'=' if path else ' is '}{given_value(value)}",
        allowed=allowed,
        fix=_fix(path, value, declared) or f"set {dotted(path)} to {allowed}",
    )


def missing_value(path: KeyPath, declared: Any) -> ConfigError:
    """The error for a field without a default that was not given."""
    return ConfigError(
        f"{dotted(path)} is missing",
        allowed=allowed_values(declared),
        fix=f"add {path[-1]} to {dotted(path[:-1])}",
    )


def unknown_key(path: KeyPath, section: type, elsewhere: Collection[str] = ()) -> ConfigError:
    """The error for a key no field of a config class has; `path` ends with that key.

    `elsewhere` are keys that this section takes for fields outside of it.
    """
    if path[-1] in elsewhere:  # in a section that an override gives as a whole
        return ConfigError(
            f"{dotted(path)} is the name of a field outside of {dotted(path[:-1])}",
            allowed=f"it by itself, not in the whole of {dotted(path[:-1])}",
            fix=f"take it out, and give {dotted(path)}=... as well",
        )
    near = nearest(str(path[-1]), [*settings_by_spelling(section), *elsewhere])
    # Of the top level alone: further in, a like name is most often another thing.
    inside = _in_sections(str(path[-1]), section) if len(path) == 1 else []
    meant = near or (inside[0] if len(inside) == 1 else None)
    fix = f"remove {dotted(path)}" + (f", or write one of {', '.join(inside)}" if inside else "")
    return ConfigError(
        f"{dotted(path)} is not a known key{did_you_mean(meant)}",
        allowed=known_keys(section),
        fix=f"rename it to {meant}" if meant else fix,
    )


def _in_sections(name: str, section: type) -> list[str]:
    """Where a section right inside of a config class has a field of that name."""
    found: list[str] = []
    for item in settings_of(section):
        place = item.aliases[0] if item.aliases else item.name
        if any(name in settings_by_spelling(inner) for inner in sections(item.declared)):
            found.append(f"{place}.{name}")
    return found


def two_spellings(first: KeyPath, second: KeyPath) -> ConfigError:
    """The error for a field given by two of its spellings."""
    return ConfigError(
        f"{dotted(first)} and {dotted(second)} are the same field",
        allowed="one spelling at a time",
        fix=f"remove {dotted(second)}",
    )


def no_such_field(path: KeyPath, field: KeyPath, section: KeyPath, value: Any) -> ConfigError:
    """The error for a field given by its name elsewhere, `path`, that its section has not."""
    return ConfigError(
        f"{dotted(path)}, which is {dotted(field)}, with {dotted(section)}={given_value(value)}",
        allowed=f"{dotted(path)} where {dotted(section)} has that field",
        fix=f"remove {dotted(path)}, or change {dotted(section)}",
    )


def wrong_key(path: KeyPath, key: Any, declared: Any) -> ConfigError:
    """The error for a key its mapping's key type does not let in; `path` is the mapping's."""
    wants_text = accepts_only_text(declared) and not choices_of(declared)
    return ConfigError(
        f"{dotted(path)} has the key {given_value(key)}",
        allowed=f"keys that are each {allowed_values(declared)}",
        fix=f"write it in quotes: '{key}'" if wants_text else "rename or remove the key",
    )


def wrong_class(path: KeyPath, value: Any, classes: Iterable[type]) -> ConfigError:
    """The error for a dataclass instance where another class is declared."""
    names = " or ".join(cls.__name__ for cls in classes)
    return ConfigError(
        f"{dotted(path)} is an instance of {type(value).__name__}",
        allowed=f"exactly {names}, or a mapping of its fields",
        fix=f"give {dotted(path)} as {names}, or declare {type(value).__name__} in its place",
    )


def _either(words: list[str]) -> str:
    """The words joined by commas and "or"; by "or" alone if they hold commas themselves."""
    if any("," in word for word in words):
        return " or ".join(words)
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _member_words(member: Any) -> str:
    if choices := choices_of(member):
        listed = ", ".join("null" if choice is None else _literal(choice) for choice in choices)
        return listed if len(choices) == 1 else f"one of {listed}"
    if is_section(member):
        return f"a mapping with {known_keys(member)}"
    if list_member(member) is not None:
        return _list_words(member)
    if mapping_member(member) is not None:
        return f"a mapping, each value {allowed_values(entry_types(member)[1])}"
    if isinstance(member, type) and issubclass(member, PurePath):
        return "a path"
    if member in (Any, object):
        return "any value"
    return _TYPE_WORDS.get(member) or f"a {getattr(member, '__name__', str(member))}"


def _list_words(member: Any) -> str:
    arguments = get_args(member)
    if get_origin(member) is tuple and arguments[-1:] != (Ellipsis,):
        items = ", ".join(allowed_values(item) for item in arguments)
        return f"a list of {len(arguments)} items: {items}"
    return f"a list, each item {allowed_values(item_type(member, 0))}"


def _value_type(value: Any) -> str:
    for cls, words in _VALUE_WORDS.items():
        if type(value) is cls:
            return words
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Enum) or is_config(value):
        return f"a {type(value).__name__}"
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")


def _literal(choice: Any) -> str:
    return str(choice).lower() if isinstance(choice, bool) else repr(choice)


def _fix(path: KeyPath, value: Any, declared: Any) -> str | None:
    """The repair most likely meant, where the value gives a hint of it."""
    if sections(declared):
        return f"give {dotted(path)} as such a mapping"
    accepted = scalar_types(declared) or frozenset()
    choices = [choice for member in members(declared) for choice in choices_of(member)]
    if isinstance(value, str):
        near = nearest(value, [choice for choice in choices if isinstance(choice, str)])
        if near:
            return f"write {near!r}"
        if list_member(declared) is not None:
            return f"write a list: [{value}]"  # tags=a,b, the habit of other command lines
        meant = spelled_scalar(accepted, value)
        is_whole = isinstance(meant, int) or (meant is not None and meant.is_integer())
        if meant is not None and (float in accepted or is_whole):
            return f"write {_literal(meant)}, without quotes"
    elif isinstance(value, bool | int | float):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        # YAML reads an unquoted 5 as a number; that is the usual way a number gets into text.
        if str in accepted and (not choices or text in choices):
            return f"write it in quotes: '{text}'"
        if isinstance(value, float) and int in accepted:
            return f"set {dotted(path)} to a whole number, in digits"
    return None
