"""Questions about declared types: what a field's annotation lets in, and what lies inside it.

Only annotations are looked at here, plus a value's `kind` where a union must be told apart.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from chomp.config.fields import settings_of

# The field that tells the members of a union of configs apart.
KIND = "kind"

_SCALARS = (bool, int, float, str)
# Sets are left out: they have no order, so no one text and no fingerprint.
_LISTS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


def bare(declared: Any) -> Any:
    """The type without its `Annotated` wrapping."""
    while get_origin(declared) is Annotated:
        declared = get_args(declared)[0]
    return declared


def members(declared: Any) -> tuple[Any, ...]:
    """The alternatives of a type, None left out; one for a type that is no union."""
    declared = bare(declared)
    # `A | B` and Union[A, B] are different objects until Python 3.14.
    if get_origin(declared) not in (Union, types.UnionType):
        return () if declared in (None, type(None)) else (declared,)
    return tuple(inner for part in get_args(declared) for inner in members(part))


def allows_none(declared: Any) -> bool:
    """Whether null is among the alternatives of a type."""
    declared = bare(declared)
    if get_origin(declared) in (Union, types.UnionType):
        return any(allows_none(part) for part in get_args(declared))
    return declared in (None, type(None), Any, object)


def is_section(member: Any) -> TypeGuard[type]:
    """Whether a type is a config class, which a mapping of field names fills."""
    return isinstance(member, type) and dataclasses.is_dataclass(member)


def sections(declared: Any) -> tuple[type, ...]:
    """The config classes among the alternatives of a type."""
    return tuple(member for member in members(declared) if is_section(member))


def kinds_of(section: type) -> tuple[Any, ...]:
    """The values of a config class's `kind: Literal[...]`; a union of configs needs that field."""
    for item in settings_of(section):
        if item.name == KIND and get_origin(bare(item.declared)) is Literal:
            return get_args(bare(item.declared))
    raise TypeError(
        f"{section.__name__} is one of several configs a field may hold, so it needs a field "
        f"{KIND}: Literal[...] that tells it from the others"
    )


def section_for(declared: Any, value: Mapping[Any, Any]) -> type | None:
    """The config class a mapping is meant for: the only one, or the one its `kind` names."""
    candidates = sections(declared)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    # A default kind does not decide: every member has one, and a guess would drop fields silently.
    kind = value.get(KIND)
    matching = [section for section in candidates if kind in kinds_of(section)]
    return matching[0] if matching else None


def list_member(declared: Any) -> Any | None:
    """The alternative that a list fills, if there is one."""
    return _with_origin(declared, _LISTS)


def mapping_member(declared: Any) -> Any | None:
    """The alternative that a mapping with free keys fills, if there is one."""
    return _with_origin(declared, _MAPPINGS)


def item_type(member: Any, index: int) -> Any:
    """The type of a list's item; `Any` where the list does not say."""
    arguments = get_args(member)
    if get_origin(member) is tuple and arguments[-1:] != (Ellipsis,):
        # An item too many is complained about as the list's length, not as an item.
        return arguments[index] if index < len(arguments) else Any
    return arguments[0] if arguments else Any


def entry_types(member: Any) -> tuple[Any, Any]:
    """The types of a mapping's keys and values; `Any` where the mapping does not say."""
    arguments = get_args(member)
    return (arguments[0], arguments[1]) if arguments else (Any, Any)


def scalar_types(declared: Any) -> frozenset[type] | None:
    """Which of bool, int, float and str a type lets in; None if it may let in anything.

    A `Literal` or an enum counts as the types of its values, a path as str.
    """
    accepted: set[type] = set()
    for member in members(declared):
        if choices := choices_of(member):
            accepted |= {type(choice) for choice in choices}
        elif isinstance(member, type) and issubclass(member, PurePath):
            accepted.add(str)
        elif member in _SCALARS:
            accepted.add(member)
        elif not is_section(member) and (get_origin(member) or member) not in _LISTS + _MAPPINGS:
            return None  # a type unknown here, which pydantic may well know
    return frozenset(accepted)


def accepts_only_text(declared: Any) -> bool:
    """Whether text is the only scalar, but for null, that a type lets in."""
    return scalar_types(declared) == frozenset({str})


def choices_of(member: Any) -> tuple[Any, ...]:
    """The values a `Literal` or an enum lists, as they are written in a file; else nothing."""
    if get_origin(member) is Literal:
        listed = get_args(member)
    elif isinstance(member, type) and issubclass(member, Enum):
        listed = tuple(member)
    else:
        return ()
    return tuple(choice.value if isinstance(choice, Enum) else choice for choice in listed)


def is_text(declared: Any) -> bool:
    """Whether every alternative but null is written as one piece of text."""
    has_inside = sections(declared) or list_member(declared) or mapping_member(declared)
    return not has_inside and accepts_only_text(declared)


def _with_origin(declared: Any, origins: tuple[Any, ...]) -> Any | None:
    for member in members(declared):
        if (get_origin(member) or member) in origins:
            return member
    return None
