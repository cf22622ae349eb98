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
    dotted,
    is_config,
    kinds_of,
    sections,
    settings_by_spelling,
    settings_of,
    type_info,
)
from chomp.errors import ConfigError

# Longer values are cut: the path says where to look, and a message is read in a terminal.
_MAX_VALUE_CHARACTERS = 80

_TYPE_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_VALUE_WORDS: dict[type, str] = {
    **_TYPE_WORDS,
    bool: "a boolean",
    Mapping: "a mapping",
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
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str | None) -> str:
    """The question to append to a wrong name; empty without a near one."""
    return f" (did you mean {name}?)" if name else ""


def describe_value(value: Any) -> str:
    """A value as it was given, cut to a readable length, and its type in words."""
    if value is None:
        return "null"
    text = _literal(value)
    if len(text) > _MAX_VALUE_CHARACTERS:
        text = text[: _MAX_VALUE_CHARACTERS - 3] + "..."
    cls = type(value)
    words = next((words for kind, words in _VALUE_WORDS.items() if isinstance(value, kind)), None)
    if words is None or isinstance(value, Enum):
        is_named = cls.__module__ == "builtins" or isinstance(value, Enum) or is_config(value)
        words = f"a {cls.__qualname__}" if is_named else f"a {cls.__module__}.{cls.__qualname__}"
    return f"{text} ({words})"


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def describe_type(declared: Any) -> str:
    """What a declared type lets in, in words."""
    info = type_info(declared)
    words = [f"a mapping with {_known_keys(config)}" for config in info.sections]
    if len(info.sections) > 1:
        kinds = ", ".join(repr(kind) for config in info.sections for kind in kinds_of(config))
        words = [f"a mapping whose kind is one of {kinds}"]
    for member in info.members:
        part = type_info(member)
        if part.choices:
            listed = ["null" if choice is None else _literal(choice) for choice in part.choices]
            words.append("one of " * (len(listed) > 1) + ", ".join(listed))
        elif part.list_type and part.fixed_length is None:
            words.append(f"a list, each item {describe_type(part.item_type(0))}")
        elif part.list_type:
            items = ", ".join(map(describe_type, part.item_types))
            words.append(f"a list of {part.fixed_length} items: {items}")
        elif part.entry_types:
            words.append(f"a mapping, each value {describe_type(part.entry_types[1])}")
        elif isinstance(member, type) and issubclass(member, PurePath):
            words.append("a path")
        elif member in (Any, object):
            return "any value"
        elif not part.sections:
            words.append(_TYPE_WORDS.get(member) or f"a {getattr(member, '__name__', member)}")
    if info.allows_none:
        words.append("null")
    words = list(dict.fromkeys(words))
    if any("," in word for word in words):
        return " or ".join(words)
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _known_keys(section: type) -> str:
    """The keys of a config class, aliases in brackets."""
    names = [
        item.name + (f" (or {', '.join(item.aliases)})" if item.aliases else "")
        for item in settings_of(section)
    ]
    return f"the keys of {section.__name__}: {', '.join(names) or 'none'}"


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
    """The error for a value its declared type does not let in; `detail` narrows the type.

    The fix is the repair most likely meant, where the value gives a hint of it.
    """
    info = type_info(declared)
    allowed = describe_type(declared) + (f", {detail}" if detail else "")
    accepted = info.scalars or frozenset()
    fix = f"set {dotted(path)} to {allowed}"
    if info.sections:
        fix = f"give {dotted(path)} as such a mapping"
    elif isinstance(value, str):
        meant = scalar_in_text(accepted, value)
        is_whole = isinstance(meant, int) or (meant is not None and meant.is_integer())
        if near := nearest(value, [each for each in info.choices if isinstance(each, str)]):
            fix = f"write {near!r}"
        elif info.list_type:
            fix = f"write a list: [{value}]"  # tags=a,b, the habit of other command lines
        elif meant is not None and (float in accepted or is_whole):
            fix = f"write {_literal(meant)}, without quotes"
    elif isinstance(value, bool | int | float):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        # YAML reads an unquoted 5 as a number; that is the usual way a number gets into text.
        if str in accepted and (not info.choices or text in info.choices):
            fix = f"write it in quotes: '{text}'"
        elif isinstance(value, float) and int in accepted:
            fix = f"set {dotted(path)} to a whole number, in digits"
    given = f"{dotted(path)}{'=' if path else ' is '}{describe_value(value)}"
    return ConfigError(given, allowed=allowed, fix=fix)


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
