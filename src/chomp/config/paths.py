"""Dotted paths: how a place in a config is written, in messages and on the command line.

A list item is its index (`stages.0.weight`). A key that holds a dot, an equals sign, a quote or
nothing at all is quoted (`components."web.edu".weight`), so every path a message shows can be
pasted into an override.
"""

import re
from collections.abc import Iterable

KeyPath = tuple[str | int, ...]

_PART = r"""(?:"[^"]*"|'[^']*'|[^.='"]+)"""
# The first "=" outside quotes ends the path; the value may hold more of them, and line ends.
_OVERRIDE = re.compile(rf"\s*({_PART}(?:\.{_PART})*)\s*=(.*)", re.DOTALL)


def dotted(path: Iterable[str | int]) -> str:
    """The path as text; the empty path is the config itself."""
    return ".".join(_quoted(str(part)) for part in path) or "the config"


def split_override(text: str) -> tuple[tuple[str, ...], str] | None:
    """The path and the value of `path=value`; None if the text has no such form."""
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        return None
    parts = [part.strip() for part in re.findall(_PART, match[1])]
    if "" in parts:  # a name of blanks alone; one that is meant to be empty is quoted
        return None
    return tuple(part[1:-1] if part[0] in "\"'" else part for part in parts), match[2].strip()


def _quoted(part: str) -> str:
    if part and not set(part) & set(".='\""):
        return part
    return f"'{part}'" if '"' in part else f'"{part}"'
