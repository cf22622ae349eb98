"""Input laid over a config class, before pydantic judges it.

The walk gives every field its canonical name and its default, spells numbers the way JSON does, and
picks the member of a union of configs. What only this walk can see (unknown keys, two spellings of
a field, an unknown kind, a boolean where a number belongs) it notes as a problem; every other
mistake it leaves in place for pydantic. It remembers where each value came from, so a complaint
about the shaped data can be told in terms of what the user wrote.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, NamedTuple

from chomp.config.declared import (
    KIND,
    accepts_only_text,
    allows_none,
    entry_types,
    is_text,
    item_type,
    kinds_of,
    list_member,
    mapping_member,
    members,
    scalar_types,
    section_for,
    sections,
)
from chomp.config.elsewhere import GivenElsewhere, names_elsewhere, taken_elsewhere
from chomp.config.fields import Setting, is_config, settings_by_spelling, settings_of
from chomp.config.paths import KeyPath, dotted
from chomp.config.plain import Unquoted, plain_items, plain_value
from chomp.config.scalars import as_meant, spelled_for
from chomp.config.words import (
    allowed_values,
    missing_value,
    no_such_field,
    two_spellings,
    unknown_key,
    wrong_class,
    wrong_key,
    wrong_value,
)
from chomp.errors import ConfigError

# For a Literal made of values found at run time, which a type checker cannot follow.
_LITERAL: Any = Literal


class Place(NamedTuple):
    """One value of the input: its path as the user spelled it, itself, its declared type."""

    path: KeyPath
    value: Any
    declared: Any


class Shaping:
    """The walk over one input, and what it found.

    `places` and `problems` are keyed by canonical path; `tags` holds, for each place where a union
    was decided, the names under which pydantic may report the chosen member. `names_around` are
    keys of sections for fields elsewhere that start above this input (see `names_elsewhere`);
    `written`, the paths that the user spelled another way than this input does.
    """

    def __init__(
        self,
        names_around: Mapping[KeyPath, list[str]] | None = None,
        written: Mapping[KeyPath, KeyPath] | None = None,
    ) -> None:
        self.places: dict[KeyPath, Place] = {}
        self.tags: dict[KeyPath, tuple[Any, ...]] = {}
        self.problems: dict[KeyPath, ConfigError] = {}
        self._names: dict[KeyPath, list[str]] = dict(names_around or {})
        self._written: Mapping[KeyPath, KeyPath] = written or {}
        # By the path of the field, until the walk comes to it.
        self._elsewhere: dict[KeyPath, GivenElsewhere] = {}

    def shaped(
        self, declared: Any, value: Any, at: KeyPath = (), path: KeyPath = (), before: Any = None
    ) -> Any:
        """The value as plain data in the form pydantic checks strictly.

        `before` is what the field has if no value is given: a mapping for a config changes only
        the fields of it that it names. Entries of mappings and items of lists have no `before`.
        A value with a problem becomes None, which a type either refuses (that second complaint is
        dropped) or must cope with anyway.
        """
        path = self._written.get(at, path)
        if isinstance(value, Unquoted):
            value = as_meant(value, declared)
        # Noted before anything is converted: messages quote what was given.
        self.places[at] = Place(path, value, declared)
        if value is None:
            return None
        if is_config(value) and sections(declared):
            return self._shaped_instance(declared, value, at, path)
        if isinstance(value, Mapping) and sections(declared):
            return self._shaped_section(declared, value, at, path, before)
        if isinstance(value, Mapping) and (member := mapping_member(declared)) is not None:
            return self._shaped_entries(member, value, at, path)
        if isinstance(value, list | tuple) and (member := list_member(declared)) is not None:
            return [
                self.shaped(item_type(member, index), item, (*at, index), (*path, index))
                for index, item in enumerate(value)
            ]
        return self._shaped_scalar(declared, value, at, path)

    def _shaped_instance(self, declared: Any, value: Any, at: KeyPath, path: KeyPath) -> Any:
        """A dataclass instance; a subclass is refused, since no file could say which one it was."""
        section: type = type(value)
        if section not in sections(declared):
            self.problems[at] = wrong_class(path, value, sections(declared))
            return None
        fields = {item.name: getattr(value, item.name) for item in settings_of(section)}
        return self._shaped_fields(declared, section, fields, at, path)

    def _shaped_section(
        self, declared: Any, value: Mapping[Any, Any], at: KeyPath, path: KeyPath, before: Any
    ) -> Any:
        section = section_for(declared, value)
        if section is not None:
            # The fields of another class or another kind mean nothing here.
            kind = getattr(before, KIND, None)
            is_kept = type(before) is section and value.get(KIND, kind) == kind
            return self._shaped_fields(
                declared, section, value, at, path, before if is_kept else None
            )
        kind_type = _LITERAL[tuple(kind for cls in sections(declared) for kind in kinds_of(cls))]
        kind_path = (*path, KIND)
        if KIND in value:
            self.problems[at] = wrong_value(kind_path, value[KIND], kind_type)
        else:
            self.problems[at] = missing_value(kind_path, kind_type)
        return None

    def _shaped_fields(
        self,
        declared: Any,
        section: type,
        value: Mapping[Any, Any],
        at: KeyPath,
        path: KeyPath,
        kept: Any = None,
    ) -> dict[str, Any]:
        """Every field of a config class: as given, else as in `kept`, else its default.

        All are checked alike.
        """

        def before(item: Setting) -> Any:
            if kept is not None:
                return getattr(kept, item.name)
            return None if item.is_required else item.default()

        # pydantic names a plain union's member by its class, a discriminated one's by its kind, and
        # the only member of `X | None` not at all.
        if len(members(declared)) > 1:
            self.tags[at] = (section.__name__, value.get(KIND))
        value, waiting = self._noted_elsewhere(section, value, at, path)
        spelled = self._spellings_used(section, value, at, path)
        shaped = {}
        for item in settings_of(section):
            inner = (*at, item.name)
            written = (*path, spelled.get(item.name, item.name))
            if (given := self._elsewhere.pop(inner, None)) is not None:
                if item.name in spelled:
                    self.problems[inner] = two_spellings(written, given.path)
                found = self.shaped(item.declared, given.value, inner, given.path)
                shaped[item.name] = given.by.meant(found)
            elif item.name in spelled:
                found = value[written[-1]]
                shaped[item.name] = self.shaped(item.declared, found, inner, written, before(item))
            elif self._is_given_elsewhere(inner):
                # As if the section were there and empty.
                shaped[item.name] = self.shaped(item.declared, {}, inner, written, before(item))
            elif item.is_required and kept is None:
                self.problems[inner] = missing_value(written, item.declared)
            else:
                shaped[item.name] = self.shaped(item.declared, before(item), inner, written)
            for rest, number in item.bounds.outside(shaped.get(item.name)):
                # A list or a mapping where none belongs has no places inside.
                if (place := self.places.get((*inner, *rest))) is not None:
                    error = item.out_of_bounds(place.path, number)
                    self.problems.setdefault((*inner, *rest), error)
        self._refuse_left(waiting)
        return shaped

    def _noted_elsewhere(
        self, section: type, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
    ) -> tuple[Mapping[Any, Any], list[KeyPath]]:
        """The mapping less the values that belong to other sections, and the fields they are for.

        The values wait under their fields, which the walk has yet to come to.
        """
        for where, names in names_elsewhere(section, at).items():
            self._names.setdefault(where, []).extend(names)
        left, taken = taken_elsewhere(section, value, path)
        waiting: list[KeyPath] = []
        for given in taken:
            field = (*at, *given.by.field)
            # Not in `waiting` alone: a name may start from a config further out, too.
            if field in self._elsewhere:
                self.problems[field] = two_spellings(self._elsewhere[field].path, given.path)
                continue
            waiting.append(field)
            self._elsewhere[field] = given
        return left, waiting

    def _is_given_elsewhere(self, at: KeyPath) -> bool:
        """Whether some field inside of a place is given by its name in another section."""
        return any(field[: len(at)] == at for field in self._elsewhere)

    def _refuse_left(self, waiting: list[KeyPath]) -> None:
        """Note a problem for each value whose field the walk did not come to."""
        for field in waiting:
            given = self._elsewhere.pop(field, None)
            around = [field[:length] for length in range(len(field) - 1, -1, -1)]
            # A section that is missing, or of no known kind, has been complained about.
            if given is not None and not any(at in self.problems for at in around):
                place = next(self.places[at] for at in around if at in self.places)
                if place.value is None and given.by.meant(given.value) is None:
                    continue  # a section that is none, and a period that is none
                self.problems[field] = no_such_field(given.path, field, place.path, place.value)

    def _spellings_used(
        self, section: type, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
    ) -> dict[str, str]:
        """The key under which each field was given, by the field's name."""
        known = settings_by_spelling(section)
        used: dict[str, str] = {}
        for key in value:
            item = known.get(key) if isinstance(key, str) else None
            if item is None:
                # Not handed on, so that the known fields beside it are still checked.
                names = self._names.get(at, ())
                self.problems[(*at, str(key))] = unknown_key((*path, str(key)), section, names)
            elif item.name in used:
                first = (*path, used[item.name])
                self.problems[(*at, item.name)] = two_spellings(first, (*path, key))
            else:
                used[item.name] = key
        return used

    def _shaped_entries(
        self, member: Any, value: Mapping[Any, Any], at: KeyPath, path: KeyPath
    ) -> Any:
        key_type, value_type = entry_types(member)
        if accepts_only_text(key_type):
            # JSON would turn a number into text here without a word.
            for key in value:
                if not isinstance(key.value if isinstance(key, Enum) else key, str):
                    self.problems[(*at, str(key))] = wrong_key(path, key, key_type)
        try:
            entries = dict(plain_items(value, path))
        except ConfigError as error:
            self.problems.setdefault(at, error)
            return None
        return {
            key: self.shaped(value_type, item, (*at, key), (*path, key))
            for key, item in entries.items()
        }

    def _shaped_scalar(self, declared: Any, value: Any, at: KeyPath, path: KeyPath) -> Any:
        accepted = scalar_types(declared)
        if accepted is not None:
            value = spelled_for(accepted, value)
            # pydantic takes true for Literal[1] and for an enum's 1, even when strict.
            if isinstance(value, bool) and bool not in accepted:
                self.problems[at] = wrong_value(path, value, declared)
                return None
            # A blank name or path would be found out much later.
            is_item = is_text(declared) and isinstance(at[-1] if at else "", int)
            is_blank = isinstance(value, str) and not value.strip() and str in accepted
            if is_blank and (is_item or allows_none(declared)):
                self.problems[at] = ConfigError(
                    f"{dotted(path)}={value!r}, which is blank",
                    allowed=f"{allowed_values(declared)}, and text that says something",
                    fix=f"leave {dotted(path)} out" if is_item else f"set {dotted(path)} to null",
                )
        try:
            return plain_value(value, path)
        except ConfigError as error:
            # A value of the right type is refused for what it holds, in words of its own.
            is_own_type = accepted is None or type(value) in accepted
            self.problems[at] = error if is_own_type else wrong_value(path, value, declared)
            return None
