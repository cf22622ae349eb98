"""The errors about configs, in the words of a person who writes the file.

Types are named as in a file ("an integer", "one of 'a', 'b'", "a number or null"), never as Python
or pydantic name them.
"""

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from chomp.config.fields import (
    KeyPath,
    allows_none,
    choices_of,
    dotted,
    entry_types,
    fixed_length,
    is_config,
    is_section,
    item_type,
    kinds_of,
    list_member,
    mapping_member,
    members,
    scalar_types,
    sections,
    settings_by_spelling,
    settings_of,
)
from chomp.errors import ConfigError

# Longer values are cut: the path says where to look, and a message is read in a terminal.
_MAX_VALUE_CHARACTERS = 80

_TYPE_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_VALUE_WORDS = _TYPE_WORDS | {
    bool: "a boolean",
    dict: "a mapping",
    list: "a list",
    tuple: "a list",
}
_BOOLEAN_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def raise_problems(source: str, errors: Iterable[ConfigError]) -> None:
    """Raise one `ConfigError` with every problem in it, headed by where the config came from."""
    problems = {str(error): error for error in errors}  # one may explain two places
    if len(problems) == 1:
        raise next(iter(problems.values())).within(source)
    if problems:
        listed = "\n".join(f"  - {text}" for text in problems)
        given = f"{source}: {len(problems)} problems\n{listed}"
        raise ConfigError(given, problems=list(problems.values()))


# ---- Words -----------------------------------------------------------------------------------


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name a misspelt one most likely stands for, if any is near."""
    # difflib's own threshold, 0.6: low enough to join "wbe" to "web".
    matches = difflib.get_close_matches(name, list(known), n=1)
    return matches[0] if matches else None


def did_you_mean(name: str | None) -> str:
    """The question to append to a wrong name; empty without a near one."""
    return f" (did you mean {name}?)" if name else ""


def describe_value(value: Any) -> str:
    """A value as it was given, cut to a readable length, and its type in words."""
    if value is None:
        return "null"
    cls = type(value)
    text = str(value).lower() if cls is bool else repr(value)
    if len(text) > _MAX_VALUE_CHARACTERS:
        text = text[: _MAX_VALUE_CHARACTERS - 3] + "..."
    if cls in _VALUE_WORDS:
        words = _VALUE_WORDS[cls]
    elif isinstance(value, Mapping):
        words = "a mapping"
    elif isinstance(value, list | tuple):
        words = "a list"
    elif isinstance(value, Enum) or is_config(value) or cls.__module__ == "builtins":
        words = f"a {cls.__qualname__}"
    else:
        words = f"a {cls.__module__}.{cls.__qualname__}"
    return f"{text} ({words})"


def describe_type(declared: Any) -> str:
    """What a declared type lets in, in words."""
    configs = sections(declared)
    words = [f"a mapping with {_known_keys(config)}" for config in configs]
    if len(configs) > 1:
        kinds = ", ".join(repr(kind) for config in configs for kind in kinds_of(config))
        words = [f"a mapping whose kind is one of {kinds}"]
    words += [_describe_member(member) for member in members(declared) if not is_section(member)]
    if allows_none(declared) and "any value" not in words:
        words.append("null")
    words = list(dict.fromkeys(words))
    if any("," in word for word in words):
        return " or ".join(words)
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _describe_member(member: Any) -> str:
    if choices := choices_of(member):
        listed = ", ".join("null" if choice is None else _literal(choice) for choice in choices)
        return listed if len(choices) == 1 else f"one of {listed}"
    if list_member(member) is not None:
        length = fixed_length(member)
        if length is None:
            return f"a list, each item {describe_type(item_type(member, 0))}"
        items = ", ".join(describe_type(item_type(member, index)) for index in range(length))
        return f"a list of {length} items: {items}"
    if mapping_member(member) is not None:
        return f"a mapping, each value {describe_type(entry_types(member)[1])}"
    if isinstance(member, type) and issubclass(member, PurePath):
        return "a path"
    if member in (Any, object):
        return "any value"
    return _TYPE_WORDS.get(member) or f"a {getattr(member, '__name__', str(member))}"


def _known_keys(section: type) -> str:
    """The keys of a config class, aliases in brackets."""
    names = [
        item.name + (f" (or {', '.join(item.aliases)})" if item.aliases else "")
        for item in settings_of(section)
    ]
    return f"the keys of {section.__name__}: {', '.join(names) or 'none'}"


def _literal(choice: Any) -> str:
    return str(choice).lower() if isinstance(choice, bool) else repr(choice)


def scalar_in_text(accepted: Collection[type], text: str) -> bool | int | float | None:
    """The boolean or finite number that a text spells, of the accepted types; else None.

    For command lines, which have nothing but text, and for what to write instead in a file.
    """
    if bool in accepted and text.lower() in _BOOLEAN_WORDS:
        return _BOOLEAN_WORDS[text.lower()]
    if int not in accepted and float not in accepted:
        return None
    for read in (int, float):  # int first: float would round a long integer
        try:
            number = read(text)
        except ValueError:
            continue
        return number if isinstance(number, int) or math.isfinite(number) else None
    return None


# ---- Errors ----------------------------------------------------------------------------------


def wrong_value(path: KeyPath, value: Any, declared: Any, detail: str = "") -> ConfigError:
    """The error for a value its declared type does not let in; `detail` narrows the type."""
    allowed = describe_type(declared) + (f", {detail}" if detail else "")
    return ConfigError(
        f"{dotted(path)}{'=' if path else ' is '}{describe_value(value)}",
        allowed=allowed,
        fix=_likely_fix(path, value, declared) or f"set {dotted(path)} to {allowed}",
    )


def _likely_fix(path: KeyPath, value: Any, declared: Any) -> str | None:
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
        meant = scalar_in_text(accepted, value)
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


def missing_value(path: KeyPath, declared: Any) -> ConfigError:
    """The error for a field without a default that was not given."""
    fix = f"add {path[-1]} to {dotted(path[:-1])}"
    return ConfigError(f"{dotted(path)} is missing", allowed=describe_type(declared), fix=fix)


def unknown_key(path: KeyPath, section: type, also: Collection[str] = ()) -> ConfigError:
    """The error for a key no field of a config class has; `path` ends with that key.

    `also` are keys that this section takes for fields of other sections.
    """
    key, whole = str(path[-1]), dotted(path[:-1])
    if key in also:  # in a section that an override gives as a whole
        return ConfigError(
            f"{dotted(path)} is a name of a field in another section than {whole}",
            allowed=f"{dotted(path)} as an override of its own",
            fix=f"remove it from {whole}={{...}} and add {dotted(path)}=...",
        )
    near = nearest(key, [*settings_by_spelling(section), *also])
    # Of the top level alone: further in, a like name is most often another thing.
    inside = [
        f"{item.spellings[1] if item.aliases else item.name}.{key}"
        for item in (settings_of(section) if len(path) == 1 else ())
        if any(key in settings_by_spelling(inner) for inner in sections(item.declared))
    ]
    meant = near or (inside[0] if len(inside) == 1 else None)
    fix = f"remove {dotted(path)}" + (f", or write one of {', '.join(inside)}" if inside else "")
    return ConfigError(
        f"{dotted(path)} is not a known key{did_you_mean(meant)}",
        allowed=_known_keys(section),
        fix=f"rename it to {meant}" if meant else fix,
    )


def two_spellings(first: KeyPath, second: KeyPath) -> ConfigError:
    """The error for a field given by two of its spellings."""
    return ConfigError(
        f"{dotted(first)} and {dotted(second)} are the same field",
        allowed="one name at a time",
        fix=f"remove {dotted(second)}",
    )


def no_such_field(path: KeyPath, field: KeyPath, section: KeyPath, value: Any) -> ConfigError:
    """The error for a field given by its `also` name, `path`, that its section has not."""
    return ConfigError(
        f"{dotted(path)}, which is {dotted(field)}, with {dotted(section)}={describe_value(value)}",
        allowed=f"{dotted(path)} if {dotted(section)} has that field",
        fix=f"remove {dotted(path)}, or change {dotted(section)}",
    )
