"""Names that fields have in other sections: `train.eval_every` for `eval.steps_per_eval`.

A field declares them beside itself, by `setting(also=...)`. They start from the nearest config
around the field that has their first part, so a section need not know where it is used; where no
config around has it, they mean nothing. What is given by such a name becomes the field's own value:
nothing is ever written out by it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from chomp.config.declared import sections
from chomp.config.fields import Setting, settings_by_spelling, settings_of
from chomp.config.paths import KeyPath, dotted

Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A field's name in another section, seen from the config class that holds both.

    `section` and `field` are paths by canonical names; `route` has all spellings of each part of
    the name.
    """

    name: Names
    route: tuple[frozenset[str], ...]
    section: Names
    field: Names
    zero_is_null: bool

    def meant(self, value: Any) -> Any:
        """What a shaped value that was given by this name means to the field."""
        is_zero = not isinstance(value, bool) and value == 0
        return None if is_zero and self.zero_is_null else value


@dataclass(frozen=True, kw_only=True)
class GivenElsewhere:
    """A value that was given by a field's name in another section, and its path as written."""

    by: Elsewhere
    path: KeyPath
    value: Any


@cache  # of every section that is shaped it is asked, and classes do not change
def elsewhere_in(cls: type) -> tuple[Elsewhere, ...]:
    """The names that start from a config class itself; those of configs inside it are theirs.

    Raises `TypeError` for a name that is a field's own, or that two fields claim.
    """
    found: dict[tuple[Names, str], Elsewhere] = {}
    for name, field, item in _declared_inside(cls):
        led = _led(cls, name)
        if led is None:
            continue
        section, route = led
        other = found.get((section, name[-1]))
        # The members of a union may share a field, and its other name with it.
        if other is not None and other.field != field:
            raise TypeError(
                f"{cls.__name__}: {dotted(name)!r} means both {dotted(other.field)} and "
                f"{dotted(field)}"
            )
        found[section, name[-1]] = Elsewhere(
            name=name, route=route, section=section, field=field, zero_is_null=item.zero_is_null
        )
    return tuple(found.values())


def names_elsewhere(cls: type, at: KeyPath) -> dict[KeyPath, list[str]]:
    """The keys that sections inside a config at `at` take for fields outside of them, by path."""
    keys: dict[KeyPath, list[str]] = {}
    for item in elsewhere_in(cls):
        keys.setdefault((*at, *item.section), []).append(item.name[-1])
    return keys


def rerouted(cls: type, parts: Names) -> tuple[Names, Elsewhere | None]:
    """A path from a config class with the field's own path in place of another name of it."""
    for item in elsewhere_in(cls):
        end = len(item.route)
        if len(parts) >= end and all(map(frozenset.__contains__, item.route, parts)):
            return (*item.field, *parts[end:]), item
    return parts, None


def taken_elsewhere(
    cls: type, value: Mapping[Any, Any], path: KeyPath
) -> tuple[Mapping[Any, Any], list[GivenElsewhere]]:
    """A mapping for a config class without what is given by names elsewhere, and all of that."""
    taken: list[GivenElsewhere] = []
    for item in elsewhere_in(cls):
        value, found = _without(value, item.route)
        taken += [
            GivenElsewhere(by=item, path=(*path, *written), value=inner)
            for written, inner in found.items()
        ]
    return value, taken


def _declared_inside(
    cls: type, around: frozenset[type] = frozenset()
) -> Iterator[tuple[Names, Names, Setting]]:
    """Every other name of a field in or below a class that starts no lower than that class.

    With the path of the field. Lists and mappings are not entered: their items have no one path.
    """
    around |= {cls}
    for item in settings_of(cls):
        for name in item.also:
            yield tuple(name.split(".")), (item.name,), item
        for section in sections(item.declared):
            if section in around:  # a config that may hold its like
                continue
            for parts, field, inner in _declared_inside(section, around):
                if _led(section, parts) is None:
                    yield parts, (item.name, *field), inner


def _led(cls: type, name: Names) -> tuple[Names, tuple[frozenset[str], ...]] | None:
    """The section a name leads to from a class, and the spellings of each part; None if nowhere."""
    classes: tuple[type, ...] = (cls,)
    section: list[str] = []
    route: list[frozenset[str]] = []
    for part in name[:-1]:
        known = [settings_by_spelling(member) for member in classes]
        item = next((spelled[part] for spelled in known if part in spelled), None)
        if item is None:
            return None
        classes = sections(item.declared)
        section.append(item.name)
        route.append(frozenset(item.spellings))
    for member in classes:
        if name[-1] in settings_by_spelling(member):
            raise TypeError(f"{cls.__name__}: {dotted(name)!r} is a field of {member.__name__}")
    return tuple(section), (*route, frozenset(name[-1:]))


def _without(
    value: Mapping[Any, Any], route: tuple[frozenset[str], ...]
) -> tuple[Mapping[Any, Any], dict[KeyPath, Any]]:
    """A mapping without what lies at the end of a route, and what lay there, by path."""
    left, found = dict(value), dict[KeyPath, Any]()
    for key in value:
        if key not in route[0]:
            continue
        if len(route) == 1:
            found[(key,)] = left.pop(key)
        elif isinstance(value[key], Mapping):
            left[key], below = _without(value[key], route[1:])
            found |= {(key, *rest): inner for rest, inner in below.items()}
    return left, found
