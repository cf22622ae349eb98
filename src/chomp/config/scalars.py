"""Scalars as the type that a field wants, where what is given says the same thing.

`1.0` for an integer, `1` for a number; on command lines `yes` for a boolean. What says something
else, as text does for a number in a file, is left as it is, for pydantic to refuse.
"""

import math
from typing import Any

from chomp.config.declared import scalar_types
from chomp.config.plain import Unquoted
from chomp.config.spelled_text import spelled_scalar

# Beyond this a float no longer tells neighbouring whole numbers apart, so it is not taken for one.
_MAX_EXACT_INTEGER = 2**53


def as_meant(value: Unquoted, declared: Any) -> Any:
    """The text or its YAML meaning, whichever the declared type can take; null only as null."""
    accepted = scalar_types(declared)
    meaning = value.meaning
    if isinstance(meaning, str) and accepted is not None and str not in accepted:
        found = spelled_scalar(accepted, meaning)  # `no`, `007`: text to YAML
        return meaning if found is None else found
    # A null that is not allowed stays null and is refused; as text it would name a run "null".
    if accepted is None or meaning is None or str not in accepted:
        return meaning
    fits = type(spelled_for(accepted, meaning)) in accepted
    return meaning if fits else str(value)


def spelled_for(accepted: frozenset[type], value: Any) -> Any:
    """A scalar as the type that is wanted, where it says the same thing; else as it is."""
    if isinstance(value, bool):  # an int to Python, never to a config
        return value
    if isinstance(value, float) and int in accepted and float not in accepted:
        is_exact = value.is_integer() and abs(value) <= _MAX_EXACT_INTEGER
        return int(value) if is_exact else value
    if type(value) is int and float in accepted and int not in accepted:
        return _float(value)
    return value


def _float(value: int) -> float:
    """The nearest float; infinity, which is refused later, for what no float can hold."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
