"""Numbers and booleans that a text spells, for command lines, which have nothing but text.

In a file `"0.1"` is text and no number: a field that wants a number refuses it, and says this.
"""

import math

_BOOLEAN_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def spelled_scalar(accepted: frozenset[type], text: str) -> bool | int | float | None:
    """The boolean or finite number that a text spells, of the types that are wanted; else None."""
    if bool in accepted and text.lower() in _BOOLEAN_WORDS:
        return _BOOLEAN_WORDS[text.lower()]
    return _number(text) if accepted & {int, float} else None


def _number(text: str) -> int | float | None:
    # int first: float would round a long integer.
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        return number if isinstance(number, int) or math.isfinite(number) else None
    return None
