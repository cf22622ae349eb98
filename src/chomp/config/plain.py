"""Values as plain data: what JSON can hold, and nothing else.

Dataclasses become mappings by field name, tuples lists, enums their values, paths text. Whatever
has no such form is refused by name, as are NaN and infinity, which JSON cannot hold.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from os import PathLike, fspath
from typing import Any

from chomp.config.fields import is_config
from chomp.config.paths import KeyPath, dotted
from chomp.config.words import given_value
from chomp.errors import ConfigError

_PLAIN = "null, true, false, numbers, text, lists, mappings, configs, enums and paths"


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
    """The value as fresh plain data. Raises `ConfigError` with path and type if it has none."""
    if isinstance(value, Unquoted):
        value = value.meaning
    # Before the scalars: an IntEnum is an int and a StrEnum a str, and both print otherwise.
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | str):
        return _plain_scalar(value, path)
    if isinstance(value, PathLike):
        return plain_value(fspath(value), path)
    if is_config(value):
        # Derived fields are left out: no constructor takes them back.
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: plain_value(getattr(value, name), (*path, name)) for name in fields}
    if isinstance(value, Mapping):
        return {key: plain_value(item, (*path, key)) for key, item in plain_items(value, path)}
    if isinstance(value, list | tuple):
        return [plain_value(item, (*path, index)) for index, item in enumerate(value)]
    raise _refusal(value, path)


def plain_items(mapping: Mapping[Any, Any], path: KeyPath) -> Iterator[tuple[str, Any]]:
    """The entries of a mapping with their keys as text; whole numbers are keys too, as digits."""
    seen: set[str] = set()
    for key, item in mapping.items():
        text = key.value if isinstance(key, Enum) else key
        if isinstance(text, bool) or not isinstance(text, str | int):
            raise ConfigError(
                f"{dotted(path)} has the key {given_value(key)}",
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


def _plain_scalar(value: int | float | str, path: KeyPath) -> int | float | str:
    """The number or text as exactly int, float or str: subclasses print themselves otherwise."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise ConfigError(
            f"{dotted(path)}={given_value(value)}",
            allowed="a finite number",
            fix=f"set {dotted(path)} to a finite number",
        )
    return _plain_text(value, path)


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


def _refusal(value: Any, path: KeyPath) -> ConfigError:
    return ConfigError(
        f"{dotted(path)}={given_value(value)}",
        allowed=_PLAIN,
        fix="write the value as one of these",
    )
