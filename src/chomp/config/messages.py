"""pydantic's complaints in our words, and the one `ConfigError` that lists all problems.

A complaint carries the place in the shaped data. `Shaping` knows what the user wrote there and what
the class declares, so the message is built from those; pydantic's own text is used only for bounds
declared in an annotation. Names pydantic adds for the members of a union never reach the message.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from chomp.config.declared import entry_types, mapping_member
from chomp.config.paths import KeyPath, dotted
from chomp.config.shaping import Shaping
from chomp.config.words import wrong_key, wrong_value
from chomp.errors import ConfigError

# Complaints that the declared type itself explains; any other is about a bound beyond the type.
_OF_TYPE = {"enum", "int_from_float", "literal_error", "missing", "none_required", "too_long"}
_OF_TYPE_ENDINGS = ("_type", "_parsing")

# Complaints that carry an exception raised by a config class.
_OF_CHECK = {"value_error", "assertion_error"}


def note_complaints(error: ValidationError, shaping: Shaping) -> None:
    """Add pydantic's complaints to the problems of a shaping, each place once.

    A check over several fields is left out while one of those fields is wrong. So is whatever
    pydantic says about the members of a union that the input did not choose.
    """
    for complaint in error.errors(include_url=False):
        located = _located(complaint["loc"], shaping)
        if located is None or _is_wrong_around(located[0], shaping):
            continue
        at, rest = located
        if complaint["type"] not in _OF_CHECK or not _is_wrong_inside(at, shaping):
            shaping.problems[at] = _text(complaint, at, rest, shaping)


def raise_problems(source: str, problems: Mapping[KeyPath, str]) -> None:
    """Raise one `ConfigError` with every problem in it, headed by where the config came from."""
    texts = list(dict.fromkeys(problems.values()))  # one text may explain two places
    if len(texts) == 1:
        raise ConfigError(f"{source}: {texts[0]}")
    if texts:
        listed = "\n".join(f"  - {text}" for text in texts)
        raise ConfigError(f"{source}: {len(texts)} problems\n{listed}")


def _located(loc: tuple[str | int, ...], shaping: Shaping) -> tuple[KeyPath, KeyPath] | None:
    """The deepest known place on the way to a complaint, and the rest of the way.

    None if the way leads into a member of a union that the input did not choose.
    """
    at: KeyPath = ()
    awaits_tag = at in shaping.tags
    for index, part in enumerate(loc):
        if awaits_tag:
            if part not in shaping.tags[at]:
                return None
            awaits_tag = False
        # A missing field has a problem but no place.
        elif (*at, part) in shaping.places or (*at, part) in shaping.problems:
            at = (*at, part)
            awaits_tag = at in shaping.tags
        else:
            return at, loc[index:]
    return at, ()


def _text(complaint: Any, at: KeyPath, rest: KeyPath, shaping: Shaping) -> str:
    place = shaping.places[at]
    if complaint["type"] in _OF_CHECK:
        text = str(complaint["ctx"]["error"])
        given = _given_otherwise(text, at, shaping)
        return f"{dotted(place.path)}{given}: {text}" if place.path else f"{text}{given}"
    if rest == ("[key]",):  # pydantic's mark for the key of an entry rather than its value
        mapping = shaping.places[at[:-1]]
        key_type = entry_types(mapping_member(mapping.declared))[0]
        return wrong_key(mapping.path, place.path[-1], key_type)
    is_of_type = complaint["type"] in _OF_TYPE or complaint["type"].endswith(_OF_TYPE_ENDINGS)
    # "Input should be greater than 0" -> "which should be greater than 0".
    _, found, bound = complaint["msg"].partition(" should ")
    detail = f"which should {bound}" if found else complaint["msg"]
    return wrong_value(place.path, place.value, place.declared, "" if is_of_type else detail)


def _given_otherwise(text: str, at: KeyPath, shaping: Shaping) -> str:
    """The names by which fields were given that a check calls by their own; empty: those."""
    section = shaping.places[at].path
    told = [
        f"{field[-1]} is given as {dotted(place.path)}"
        for field, place in shaping.places.items()
        if field
        and field[:-1] == at
        and place.path != (*section, field[-1])
        and re.search(rf"\b{re.escape(str(field[-1]))}\b", text)
    ]
    return f" ({', '.join(told)})" if told else ""


def _is_wrong_around(at: KeyPath, shaping: Shaping) -> bool:
    return any(at[:length] in shaping.problems for length in range(len(at) + 1))


def _is_wrong_inside(at: KeyPath, shaping: Shaping) -> bool:
    return any(found[: len(at)] == at for found in shaping.problems)
