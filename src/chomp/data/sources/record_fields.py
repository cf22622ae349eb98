"""What a record holds under a key, checked: the words for records that are not as declared.

A record is named by the id its document would have, which says the file and the record.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Integer

from chomp.config.messages import did_you_mean, nearest
from chomp.data.documents import Document
from chomp.errors import DataError, require

Record: TypeAlias = str | Mapping[str, Any] | Integer[np.ndarray, " N"] | Document
"""What a source reads: a mapping with keys, or a whole text, row of ids or document without any."""

_MAX_SHOWN = 60
_MAX_KEYS_SHOWN = 12


def require_key(name: str, key: str) -> None:
    """Raise `ConfigError` for a key that is blank."""
    require(
        bool(key.strip()),
        f"{name}={key!r}",
        allowed="the name of a field of each record",
        fix=f"name the field that {name} stands for",
    )


def value_under(record: object, key: str, name: str) -> Any:
    """What the record holds under the key."""
    if not isinstance(record, Mapping):
        raise DataError(
            f"record {name} has no keys: it is {_words_for(record)}",
            allowed=f"records with the key {key!r}",
            fix="choose the format for this source",
        )
    try:
        return record[key]
    except KeyError:
        raise missing_key(name, key, list(record)) from None


def missing_key(name: str, key: str, found: Collection[str]) -> DataError:
    """The error for a record without a key the format names."""
    near = nearest(key, found)
    shown = ", ".join(repr(other) for other in list(found)[:_MAX_KEYS_SHOWN]) or "none"
    more = len(found) - _MAX_KEYS_SHOWN
    return DataError(
        f"record {name} has no key {key!r}{did_you_mean(near)}; its keys are {shown}"
        + (f" and {more} more" if more > 0 else ""),
        allowed=f"records with the key {key!r}, as the format is set",
        fix=f"set the format's key to {near!r}" if near else "set the right key in the format",
    )


def text_under(record: object, key: str, name: str) -> str:
    """The text a record holds under the key; anything but text that UTF-8 can hold is refused."""
    return checked_text(value_under(record, key, name), name, f"under {key!r}")


def checked_text(value: object, name: str, place: str) -> str:
    """The value, which must be text; `place` says in an error where in the record it is."""
    if not isinstance(value, str):
        raise wrong_value(value, name, place, "text")
    if not value.isascii():
        _refuse_surrogates(value, name, place)
    return value


def wrong_value(value: object, name: str, place: str, allowed: str) -> DataError:
    """The error for a value of the wrong type."""
    return DataError(
        f"record {name} holds {shown(value)} {place}",
        allowed=allowed,
        fix="correct the record, or set another key in the format",
    )


def shown(value: object) -> str:
    """A value in an error, cut to a readable length, with its type."""
    if value is None:
        return "null"
    text = repr(value)
    text = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
    return f"{text} (of type {type(value).__name__})"


def _refuse_surrogates(text: str, name: str, place: str) -> None:
    # JSON can write half of a surrogate pair ("\ud800"); no tokenizer takes it.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"record {name} has half of a surrogate pair {place}, at character {error.start}",
            allowed="text that can be written as UTF-8",
            fix="correct or remove the record",
        ) from error


def _words_for(record: object) -> str:
    if isinstance(record, str | Document):
        return "a whole text"
    return "a row of token ids" if isinstance(record, np.ndarray) else shown(record)
