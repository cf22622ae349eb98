"""Values that are written once in a config file and used in many places of it.

    variables: {width: 256, name: {short: wide}}
    model: {hidden_dim: $variables.width}             the value itself, whatever its type
    run_id: "{$variables.name.short}-${variables.width}"    as text, inside of other text

A variable may use others. The section is gone once the file is read: a config never holds one.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chomp.config.fields import KeyPath, dotted
from chomp.config.files import MAX_YAML_BYTES, to_yaml
from chomp.config.messages import describe_value, did_you_mean, nearest
from chomp.errors import ConfigError

SECTION = "variables"

_PART = re.compile(r"[\w-]+")
_NAME = r"[\w-]+(?:\.[\w-]+)*"
_WHOLE = re.compile(rf"\$variables\.({_NAME})")
_INLINE = re.compile(rf"\{{\$variables\.({_NAME})\}}|\$\{{variables\.({_NAME})\}}")
# What is left of a reference that is neither: half of a text would be taken for a value.
_LEFT = re.compile(r"\$\{?variables\b\S*")


def replace_variables(content: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """The content of a file with every reference replaced, and without the section itself.

    Raises `ConfigError`, headed by `source`, for a reference to nothing, to itself, or to a list or
    mapping inside of text, and for one that is a key.
    """
    values = content.get(SECTION)
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(
            f"{source}: {SECTION}={describe_value(values)}",
            allowed="a mapping of names to values",
            fix=f"write {SECTION}: {{name: value}}",
        )
    variables = _Variables(values or {})
    try:
        _refuse_as_keys(content, ())
        variables.replace(values or {}, (SECTION,))  # unused ones are checked too
        return {
            key: variables.replace(value, (key,))
            for key, value in content.items()
            if key != SECTION
        }
    except ConfigError as error:
        raise error.within(source) from None


class _Variables:
    """The variables of one file, each worked out when it is first needed."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self._values = dict(_by_name(values))
        self._known: dict[str, Any] = {}
        self._open: list[str] = []  # those being worked out, each for the one before
        self._num_characters = 0  # that all references have brought in so far

    def replace(self, value: Any, path: KeyPath) -> Any:
        """A value with all references in it replaced."""
        if isinstance(value, str):
            return self._replace_in_text(value, path)
        if isinstance(value, Mapping):
            _refuse_as_keys(value, path)
            return {key: self.replace(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [self.replace(item, (*path, index)) for index, item in enumerate(value)]
        return value

    def _replace_in_text(self, text: str, path: KeyPath) -> Any:
        if whole := _WHOLE.fullmatch(text):
            value = self._value(whole[1], path)
            self._count(_size(value), path)
            # A copy: what is changed later in one place must not change in the others.
            return copy.deepcopy(value)
        # What a variable brings in is not looked at again: it was, when it was worked out.
        if left := _LEFT.search(_INLINE.sub("", text)):
            name = left[0].lstrip("${").removeprefix(f"{SECTION}.").rstrip("}") or "name"
            raise ConfigError(
                f"{dotted(path)}: {left[0]!r} inside of the text {text!r}",
                allowed="$variables.NAME alone, or {$variables.NAME} inside of text",
                fix=f"write {{$variables.{name}}}",
            )
        return _INLINE.sub(lambda found: self._inline(found[1] or found[2], path), text)

    def _inline(self, name: str, path: KeyPath) -> str:
        value = self._value(name, path)
        if isinstance(value, Mapping | list):
            raise ConfigError(
                f"{dotted(path)}: the variable {name}, {describe_value(value)}, inside of text",
                allowed="text, numbers, true, false and null inside of text",
                fix=f"write $variables.{name} alone, for the whole of it",
            )
        # As YAML writes it: true and 3.0e-4, not Python's spelling.
        text = value if isinstance(value, str) else to_yaml(value).partition("\n")[0]
        self._count(len(text), path)
        return text

    def _count(self, num_characters: int, path: KeyPath) -> None:
        """Raise `ConfigError` where a few lines would grow to more than memory holds."""
        self._num_characters += num_characters
        if self._num_characters > MAX_YAML_BYTES:
            raise ConfigError(
                f"{dotted(path)}: variables that stand for more text than a file may have",
                allowed=f"{MAX_YAML_BYTES:,} characters, all references replaced",
                fix="use fewer variables inside of other variables",
            )

    def _value(self, name: str, path: KeyPath) -> Any:
        if name in self._known:
            return self._known[name]
        if name in self._open:
            circle = " -> ".join([*self._open, name])
            raise ConfigError(
                f"{dotted(path)}: variables that lead back to themselves: {circle}",
                allowed="variables that end in a value",
                fix=f"write a value for one of {', '.join(self._open)}",
            )
        if name not in self._values:
            # Of a mapping its parts, which are what is used.
            known = sorted(k for k, value in self._values.items() if not isinstance(value, Mapping))
            near = nearest(name, known)
            raise ConfigError(
                f"{dotted(path)}: there is no variable {name}{did_you_mean(near)}",
                allowed=f"the names under {SECTION}: {', '.join(known) or 'there are none'}",
                fix=f"write $variables.{near}" if near else f"add it to {SECTION}",
            )
        self._open.append(name)
        self._known[name] = self.replace(self._values[name], (SECTION, *name.split(".")))
        self._open.pop()
        return self._known[name]


def _size(value: Any) -> int:
    """Characters of a value, about as it is written out."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return 1 + sum(_size(item) for item in value)
    return 1 + len(value) if isinstance(value, str) else 1


def _by_name(values: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every variable and every part of one by its dotted name; YAML's numbers are names too."""
    for key, value in values.items():
        if _PART.fullmatch(str(key)):
            yield f"{before}{key}", value
            if isinstance(value, Mapping):
                yield from _by_name(value, f"{before}{key}.")


def _refuse_as_keys(value: Mapping[Any, Any], path: KeyPath) -> None:
    """Raise `ConfigError` for a reference that is a key: names are not replaced."""
    for key, item in value.items():
        if not isinstance(key, str) or not _LEFT.search(key):
            continue
        # Braces without quotes around them are a mapping to YAML, of a name and nothing.
        if path and item is None and _WHOLE.fullmatch(key):
            raise ConfigError(
                f"{dotted(path)}: {{{key}}} without quotes, which YAML takes for a mapping",
                allowed="a reference inside of text in quotes, or a whole one without braces",
                fix=f'write "{{{key}}}", or {key}',
            )
        raise ConfigError(
            f"{dotted(path)}: the key {key!r}",
            allowed="variables in values; a key is what it is written as",
            fix="write the name itself, or make the mapping around it a variable",
        )
