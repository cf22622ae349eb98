"""pydantic's complaints in our words, and the one `ConfigError` that lists all problems.

A complaint carries the place in the shaped data. `Shaping` knows what the user wrote there and what
the class declares, so the message is built from those; pydantic's own text is used only for
validators in an annotation. Names it adds for the members of a union never reach the message.
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

# Complaints that the declared type itself explains; others come from validators in it.
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
            shaping.problems[at] = _error(complaint, at, rest, shaping)


def raise_problems(source: str, problems: Mapping[KeyPath, ConfigError]) -> None:
    """Raise one `ConfigError` with every problem in it, headed by where the config came from."""
    errors = {str(error): error for error in problems.values()}  # one may explain two places
    if len(errors) == 1:
        raise next(iter(errors.values())).within(source)
    if errors:
        listed = "\n".join(f"  - {text}" for text in errors)
        given = f"{source}: {len(errors)} problems\n{listed}"
        raise ConfigError(given, problems=list(errors.values()))


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


def _error(complaint: Any, at: KeyPath, rest: KeyPath, shaping: Shaping) -> ConfigError:
    place = shaping.places[at]
    if complaint["type"] in _OF_CHECK:
        error = complaint["ctx"]["error"]
        if not isinstance(error, ConfigError):  # a rule that raises another ValueError
            error = ConfigError(str(error))
        names = _given_otherwise(str(error), at, shaping)
        head = f"{dotted(place.path)}{names}" if place.path else names.strip()
        return error.within(head) if head else error
    if rest == ("[key]",):  # pydantic's mark for the key of an entry rather than its value
        mapping = shaping.places[at[:-1]]
        key_type = entry_types(mapping_member(mapping.declared))[0]
        return wrong_key(mapping.path, place.path[-1], key_type)
    is_of_type = complaint["type"] in _OF_TYPE or complaint["type"].endswith(_OF_TYPE_ENDINGS)
    detail = "" if is_of_type else complaint["msg"]
    return wrong_value(place.path, place.value, place.declared, detail)


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
