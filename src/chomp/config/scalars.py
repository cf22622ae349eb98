"""Scalars as the type that a field wants, where the text or number given says the same thing.

`"3e-4"` for a number, `1.0` for an integer, `yes` for a boolean. What says something else is left
as it is, for pydantic to refuse.
"""

import math
from typing import Any

from chomp.config.declared import scalar_types
from chomp.config.plain import Unquoted

# Beyond this a float no longer tells neighbouring whole numbers apart, so it is not taken for one.
_MAX_EXACT_INTEGER = 2**53

_BOOLEAN_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def as_meant(value: Unquoted, declared: Any) -> Any:
    """The text or its YAML meaning, whichever the declared type can take; null only as null."""
    accepted = scalar_types(declared)
    meaning = value.meaning
    # A null that is not allowed stays null and is refused; as text it would name a run "null".
    if accepted is None or meaning is None or str not in accepted:
        return meaning
    fits = type(spelled_for(accepted, meaning)) in accepted
    return meaning if fits else str(value)


def spelled_for(accepted: frozenset[type], value: Any) -> Any:
    """A scalar as the type that is wanted, where it says the same thing; else as it is."""
    if isinstance(value, bool):  # an int to Python, never to a config
        return value
    if isinstance(value, str) and str not in accepted:
        if bool in accepted and value.lower() in _BOOLEAN_WORDS:
            return _BOOLEAN_WORDS[value.lower()]
        number = _number(value) if accepted & {int, float} else None
        value = value if number is None else number
    if isinstance(value, float) and int in accepted and float not in accepted:
        is_exact = value.is_integer() and abs(value) <= _MAX_EXACT_INTEGER
        return int(value) if is_exact else value
    if type(value) is int and float in accepted and int not in accepted:
        return _float(value)
    return value


def _number(text: str) -> int | float | None:
    """The finite number a text spells, if it spells one."""
    # int first: float would round a long integer.
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        return number if isinstance(number, int) or math.isfinite(number) else None
    return None


def _float(value: int) -> float:
    """The nearest float; infinity, which is refused later, for what no float can hold."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
