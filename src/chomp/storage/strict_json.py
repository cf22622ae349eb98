"""Strict JSON text: what another language can read, and what reads back as it was.

Python's own writer lets NaN through and turns the key 1 into "1"; its reader takes NaN, lets the
last of two equal keys win, and gives up at deep nesting with an error of its own. Here all of that
is an error that says what is wrong.
"""

import json
import math
from typing import Any, NoReturn

from chomp.errors import StorageError, message

# Far more than any file of ours has, and little enough for whoever walks the value recursively.
MAX_DEPTH = 100


def parse_json(text: str | bytes) -> Any:
    """The value of a strict JSON text; a `ValueError` says what is wrong with it.

    NaN, infinity, numbers too large to be finite, a key given twice, and nesting deeper than
    `MAX_DEPTH` are errors.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise _too_deep() from None
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        inside: list[Any] = []
        for box in level:
            for item in box.values() if isinstance(box, dict) else box:
                if isinstance(item, dict | list):
                    inside.append(item)
                elif isinstance(item, float) and math.isinf(item):
                    raise ValueError("it holds a number that is too large to be finite")
        if not inside:
            return value
        level = inside
    raise _too_deep()


def json_text(
    value: object, *, name: str, indent: int | None = None, sort_keys: bool = False
) -> str:
    """The value as strict JSON; `name` says in an error what was being written.

    Dicts with str keys, lists, tuples (which read back as lists), str, int, finite float, bool and
    None are allowed.
    """
    fault = _first_fault(value, at="", inside=())
    if fault is not None:
        where, what = fault
        raise StorageError(
            message(
                given=f"cannot write {name} as JSON: {where or 'the value itself'} is {what}",
                allowed="dicts with str keys, lists, str, int, finite float, bool and None",
                fix="write null or a string in its place, or leave the key out",
            )
        )
    return json.dumps(value, allow_nan=False, indent=indent, sort_keys=sort_keys)


def _first_fault(value: object, *, at: str, inside: tuple[int, ...]) -> tuple[str, str] | None:
    """Where the first value that is not JSON stands (`config.lr[2]`), and what it is."""
    if value is None or isinstance(value, str | int):  # bool is an int
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else (at, repr(float(value)))
    if id(value) in inside:
        return at, "a container that holds itself"
    if isinstance(value, dict):
        entries = [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
        odd_keys = [key for key in value if not isinstance(key, str)]
        if odd_keys:
            return at, f"a dict with the key {odd_keys[0]!r} of type {type(odd_keys[0]).__name__}"
    elif isinstance(value, list | tuple):
        entries = [(f"{at}[{index}]", item) for index, item in enumerate(value)]
    else:
        return at, f"of type {type(value).__module__}.{type(value).__qualname__}"
    faults = (_first_fault(item, at=where, inside=(*inside, id(value))) for where, item in entries)
    return next((fault for fault in faults if fault is not None), None)


def _too_deep() -> ValueError:
    return ValueError(f"it is nested deeper than {MAX_DEPTH} lists and objects")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"it holds the key {twice[:40]!r} twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds the bare word {name}")
