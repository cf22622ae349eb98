"""What a config class declares about its fields: types, bounds, names, marks, defaults.

A field written plainly (`steps: int = 100`) has one name and is part of the run's identity.
`setting(...)` says more, beside the field it is about. Only bounds are checked here, when an
instance is made; `chomp.config.parse` checks everything else.
"""

import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, wraps
from operator import ge, gt, le, lt
from pathlib import PurePath
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict

from chomp.errors import ConfigError, require

Mark = Literal["identity", "schedule", "cosmetic"]
"""What a changed field means for a run that is resumed.

`identity`: another run. `schedule`: the same run, continued otherwise. `cosmetic`: nothing.
"""

# From strict to loose. A mark covers everything below its field and can only be loosened there.
MARKS: tuple[Mark, ...] = ("identity", "schedule", "cosmetic")

# The field that tells the members of a union of configs apart.
KIND = "kind"

KeyPath = tuple[str | int, ...]
"""A place in a config: field names, keys of mappings, indexes of lists."""

T = TypeVar("T")

# pydantic hands known metadata keys on to its own Field and leaves the others alone.
_METADATA_KEY = "chomp.setting"


def dotted(path: Iterable[str | int]) -> str:
    """A path as text that can be pasted into an override; the empty path is the config itself.

    A key that holds a dot, an equals sign, a quote or nothing at all is quoted.
    """
    parts = []
    for part in map(str, path):
        if not part or set(part) & set(".='\""):
            part = f"'{part}'" if '"' in part else f'"{part}"'
        parts.append(part)
    return ".".join(parts) or "the config"


class Bounds(NamedTuple):
    """The ends of a range of numbers; None: no end of that kind."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __str__(self) -> str:
        """The range in words, which say whether its ends are allowed."""
        # 1e+12 is easier to read than 1000000000000.0.
        ends = [f"{end:g}" if isinstance(end, float) else end for end in self]
        if self.ge is not None and self.le is not None:
            return f"from {ends[1]} to {ends[3]}, both allowed"
        words = zip(("above", "at least", "below", "at most"), ends, strict=True)
        return " and ".join(f"{word} {end}" for word, end in words if end is not None)

    def outside(self, value: Any) -> Iterator[tuple[KeyPath, float]]:
        """The numbers out of range: the value itself, or items and entries by index and key."""
        if self == Bounds():
            return
        held: Iterable[tuple[Any, Any]] = [((), value)]
        if isinstance(value, list | tuple):
            held = [((index,), item) for index, item in enumerate(value)]
        elif isinstance(value, Mapping):
            held = [((key,), item) for key, item in value.items()]
        for place, number in held:
            if isinstance(number, int | float) and not isinstance(number, bool):
                ends = zip((gt, ge, lt, le), self, strict=True)
                if not all(end is None or holds(number, end) for holds, end in ends):
                    yield place, number


class ConfigClass(Protocol):
    """Any dataclass instance; what the functions of this room take for a config."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Config:
    """Base of config dataclasses: checks the bounds of their fields when an instance is made.

    The check comes before a class's own `__post_init__`. The base also carries our rules into the
    JSON schema. `config_from_mapping` and its kin apply the same rules to any dataclass.
    """

    # A base with a __dict__ would undo `slots=True` in the classes below it.
    __slots__ = ()

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Put the check of bounds before a class's own `__post_init__`."""
        super().__init_subclass__(**kwargs)
        if (own := cls.__dict__.get("__post_init__")) is not None:

            @wraps(own)
            def checked(self: Config, *init_only: Any) -> None:
                Config.__post_init__(self)
                own(self, *init_only)

            cls.__post_init__ = checked  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Raise `ConfigError` for the first number that is out of its field's bounds."""
        cls: Any = type(self)  # to mypy a class with slots is not hashable
        for item in _bounded(cls):
            for place, number in item.bounds.outside(getattr(self, item.name)):
                raise item.out_of_bounds((item.name, *place), number)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a config class says about one field; `setting` tells what each part means."""

    # `settings_of` fills in these three.
    name: str = ""
    declared: Any = Any
    field: "dataclasses.Field[Any]" = dataclasses.field(default_factory=dataclasses.field)
    aliases: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    zero_is_null: bool = False
    mark: Mark = "identity"
    is_versioned: bool | None = None
    is_added: bool = False
    bounds: Bounds = dataclasses.field(default_factory=Bounds)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its name first, then its aliases."""
        return (self.name, *self.aliases)

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        missing = dataclasses.MISSING
        return self.field.default is missing and self.field.default_factory is missing

    def default(self) -> Any:
        """The default value, fresh if a factory makes it; None for a required field."""
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return None if self.is_required else self.field.default

    def out_of_bounds(self, path: KeyPath, number: float) -> ConfigError:
        """The error for a number at a path that is not within the bounds."""
        usual = self.default()
        example = f", such as {usual}" if isinstance(usual, int | float) else ""
        return ConfigError(
            f"{dotted(path)}={number}",
            allowed=f"{self.bounds}" + ", or null" * type_info(self.declared).allows_none,
            fix=f"set {dotted(path)} to a number in that range{example}",
        )


_PLAIN = Setting()


def setting(
    *,
    default: T = dataclasses.MISSING,  # type: ignore[assignment]
    default_factory: Callable[[], T] = dataclasses.MISSING,  # type: ignore[assignment]
    aliases: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    zero_is_null: bool = False,
    mark: Mark = "identity",
    is_versioned: bool | None = None,
    is_added: bool = False,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    **unknown: Any,
) -> T:
    """A dataclass field with bounds, other names and a mark; the comment beside it describes it.

    Other names are accepted in mappings, files and overrides, never as Python arguments; what is
    written out uses the field's own name.

    - `aliases`: other names in its own section.
    - `also`: names in other sections, as dotted paths from the nearest config around the field that
      has the first part (`also=("train.eval_every",)`). With `zero_is_null`, a 0 under such a name
      means null.
    - `mark`: what a change means for a run that is resumed; covers everything inside the field.
    - `is_versioned`: whether the field is part of the identity of an executor's step. None: unless
      it is cosmetic. True: even if it is cosmetic, such as the path of data. False: never; for what
      is asked of one start and says nothing about the run.
    - `is_added`: the field was added after runs had been made without it. At its default it is in
      no hash and no difference, so that those runs keep their identity.
    - `gt`, `ge`, `lt`, `le`: bounds of a number, or of each number in a list or mapping.
    """
    if unknown:
        given = ", ".join(f"{name}={value!r}" for name, value in unknown.items())
        raise ConfigError(
            f"setting({given})",
            allowed="default, default_factory, aliases, also, zero_is_null, mark, is_versioned, "
            "is_added, and the bounds gt, ge, lt, le",
            fix="write gt (above), ge (at least), lt (below) or le (at most) for a bound",
        )
    # Other mistakes in a class are bugs, so they are TypeErrors and keep their traceback.
    if mark not in MARKS:
        raise TypeError(f"mark={mark!r} is none of {', '.join(map(repr, MARKS))}")
    names: dict[str, Any] = {"aliases": aliases, "also": also}
    for name, value in names.items():
        if isinstance(value, str):  # a tuple of one without its comma; its letters would be names
            raise TypeError(f"{name}={value!r} is one string; write {name}=({value!r},)")
    if any("." not in name for name in also):
        raise TypeError(f"also={also!r} holds a name of this section; that is an alias")
    metadata: dict[str, Any] = {
        _METADATA_KEY: Setting(
            aliases=aliases,
            also=also,
            zero_is_null=zero_is_null,
            mark=mark,
            is_versioned=is_versioned,
            is_added=is_added,
            bounds=Bounds(gt, ge, lt, le),
        ),
        # pydantic puts this into the JSON schema.
        "json_schema_extra": {"aliases": list(aliases), "also": list(also), "mark": mark},
    }
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)  # type: ignore[call-overload]


# ---- Fields of a class -----------------------------------------------------------------------


def _setting_of(field: "dataclasses.Field[Any]") -> Setting:
    """What `setting` was given for a field; the defaults of `setting` for a plain one."""
    found: Setting = field.metadata.get(_METADATA_KEY, _PLAIN)
    return found


def mark_of(field: "dataclasses.Field[Any]") -> Mark:
    """The mark of a dataclass field; a plain field is identity."""
    return _setting_of(field).mark


def is_versioned(field: "dataclasses.Field[Any]") -> bool:
    """Whether a dataclass field counts where its config is versioned; a plain one does."""
    found = _setting_of(field)
    return found.mark != "cosmetic" if found.is_versioned is None else found.is_versioned


def is_of_one_start(field: "dataclasses.Field[Any]") -> bool:
    """Whether a dataclass field is about one start of a run only: `is_versioned=False`."""
    return _setting_of(field).is_versioned is False


def is_unset_addition(field: "dataclasses.Field[Any]", value: Any) -> bool:
    """Whether a field that was added later has its default, which is what runs had before it."""
    found = _setting_of(field)
    return found.is_added and bool(value == replace(found, field=field).default())


def is_config(value: object) -> bool:
    """Whether a value is a dataclass instance (not a dataclass type)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@cache
def _bounded(cls: Any) -> tuple[Setting, ...]:
    """The fields of a config class that have bounds."""
    # Annotations are resolved only for these: nothing else needs them where an instance is made.
    if all(_setting_of(field).bounds == Bounds() for field in dataclasses.fields(cls)):
        return ()
    return tuple(item for item in settings_of(cls) if item.bounds != Bounds())


@cache  # resolving string annotations evaluates them, which is slow
def settings_of(cls: type) -> tuple[Setting, ...]:
    """The fields of a config class that its constructor takes, in declared order.

    Raises `TypeError` for a class in which one spelling means two fields, and `ConfigError` for
    bounds of no number and for a default that is out of bounds.
    """
    # The extras are validators in `Annotated`, which messages about a field mention.
    declared = get_type_hints(cls, include_extras=True)
    settings = [
        replace(_setting_of(field), name=field.name, declared=declared[field.name], field=field)
        for field in dataclasses.fields(cls)
        if field.init
    ]
    owner: dict[str, str] = {}
    for item in settings:
        for name in item.spellings:
            if name in owner:
                raise TypeError(
                    f"{cls.__name__}: {name!r} means both {owner[name]} and {item.name}"
                )
            owner[name] = item.name
        if item.bounds == Bounds():
            continue
        require(
            _holds_numbers(item.declared),
            f"{cls.__name__}.{item.name} is {item.declared} with bounds: {item.bounds}",
            allowed="bounds of numbers, and of lists and mappings of numbers",
            fix="leave the bounds out",
        )
        require(
            not any(item.bounds.outside(item.default())),
            f"{cls.__name__}.{item.name} has the default {item.default()}",
            allowed=f"a default in its bounds: {item.bounds}",
            fix="change the default or the bounds",
        )
    return tuple(settings)


def _holds_numbers(declared: Any) -> bool:
    return declared in (int, float) or any(map(_holds_numbers, get_args(declared)))


@cache
def settings_by_spelling(cls: type) -> Mapping[str, Setting]:
    """Every name and alias of a config class, with the field it means."""
    return {spelling: item for item in settings_of(cls) for spelling in item.spellings}


def fields_at(cls: type, path: Iterable[str]) -> list[tuple[type, Setting]]:
    """The fields that a path leads to from a config class, each with the class that has it.

    Any spelling will do. Several where a union of configs is on the way, none where nothing is.
    """
    found: list[tuple[type, Setting]] = []
    classes: tuple[type, ...] = (cls,)
    for part in path:
        known = [(each, settings_by_spelling(each)) for each in classes]
        found = [(each, settings[part]) for each, settings in known if part in settings]
        classes = tuple(inner for _, item in found for inner in sections(item.declared))
    return found


# ---- Names in other sections -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AlsoName:
    """A field's name in another section, seen from the config class that holds both.

    `section` and `field` are paths by field names; `route` has all spellings of each part of the
    name.
    """

    name: tuple[str, ...]
    route: tuple[frozenset[str], ...]
    section: tuple[str, ...]
    field: tuple[str, ...]
    zero_is_null: bool

    def meaning(self, value: Any) -> Any:
        """What a value that was given by this name means to the field."""
        is_zero = not isinstance(value, bool) and value == 0
        return None if is_zero and self.zero_is_null else value


@cache  # called for every section that is parsed
def also_names(cls: type) -> tuple[AlsoName, ...]:
    """The `also` names that start from a config class; those that start from one inside are its.

    If no config around a field has the first part of its name, the name has no effect. Raises
    `TypeError` for a name that is a field's own, or that two fields claim.
    """
    found: dict[tuple[tuple[str, ...], str], AlsoName] = {}

    def visit(classes: tuple[type, ...], path: tuple[str, ...]) -> None:
        """Look at the last of these classes, each inside the one before, and at all below it.

        Lists and mappings are not entered: their items have no one path.
        """
        for item in settings_of(classes[-1]):
            field = (*path, item.name)
            for name in (tuple(name.split(".")) for name in item.also):
                inner = any(_section_path(each, name) is not None for each in classes[1:])
                route = None if inner else _section_path(cls, name)
                if route is None:
                    continue
                section = tuple(each.name for each in route)
                other = found.get((section, name[-1]))
                # The members of a union may share a field, and its other name with it.
                if other is not None and other.field != field:
                    both = f"{dotted(other.field)} and {dotted(field)}"
                    raise TypeError(f"{cls.__name__}: {dotted(name)!r} means both {both}")
                found[section, name[-1]] = AlsoName(
                    name=name,
                    route=(*(frozenset(each.spellings) for each in route), frozenset({name[-1]})),
                    section=section,
                    field=field,
                    zero_is_null=item.zero_is_null,
                )
            for section_cls in sections(item.declared):
                if section_cls not in classes:  # else a config that may hold its like
                    visit((*classes, section_cls), field)

    visit((cls,), ())
    return tuple(found.values())


def _section_path(cls: type, name: tuple[str, ...]) -> list[Setting] | None:
    """The fields that lead from a class to the section of a name; None if it has none."""
    path = [fields_at(cls, name[:end]) for end in range(1, len(name))]
    if not all(path):
        return None
    for owner, _ in fields_at(cls, name):
        raise TypeError(f"{cls.__name__}: {dotted(name)!r} is a field of {owner.__name__}")
    return [found[0][1] for found in path]


# ---- Declared types --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TypeInfo:
    """A declared type taken apart: its alternatives, without `Annotated`, and what fills them."""

    members: tuple[Any, ...]  # the alternatives, null left out
    allows_none: bool
    sections: tuple[type, ...]  # config classes, which a mapping of field names fills
    choices: tuple[Any, ...]  # what literals and enums list, as it is written in a file
    list_type: Any  # the alternative that a list fills; None if there is none
    item_types: tuple[Any, ...]  # of that list: one for each item if its length is fixed
    fixed_length: int | None
    entry_types: tuple[Any, Any] | None  # of a mapping with free keys: its keys and values
    scalars: frozenset[type] | None  # of bool, int, float, str; None: it may let in anything

    def item_type(self, index: int) -> Any:
        """The type of a list's item; `Any` where the list does not say."""
        if self.fixed_length is None:
            return self.item_types[0] if self.item_types else Any
        # An item too many is refused as the list's length, not as an item.
        return self.item_types[index] if index < self.fixed_length else Any

    @property
    def is_text(self) -> bool:
        """Whether every alternative but null is written as one piece of text."""
        has_inside = self.sections or self.list_type or self.entry_types
        return not has_inside and self.scalars == frozenset({str})


@cache
def type_info(declared: Any) -> TypeInfo:
    """What a declared type lets in."""
    left, members = [declared], list[Any]()
    while left:
        member = left.pop(0)
        if get_origin(member) is Annotated:
            left.insert(0, get_args(member)[0])
        # `A | B` and Union[A, B] are different objects until Python 3.14.
        elif get_origin(member) in (Union, types.UnionType):
            left[:0] = get_args(member)
        else:
            members.append(member)
    allows_none = any(member in (None, type(None), Any, object) for member in members)
    members = [member for member in members if member not in (None, type(None))]
    configs: list[type] = []
    choices: list[Any] = []
    list_type, entry_types = None, None
    scalars: set[type] = set()
    takes_anything = False  # or a type unknown here, which pydantic may well know
    for member in members:
        origin = get_origin(member) or member
        cls = member if isinstance(member, type) else type(None)
        if origin is Literal or issubclass(cls, Enum):
            listed: Iterable[Any] = cls if issubclass(cls, Enum) else get_args(member)
            listed = [each.value if isinstance(each, Enum) else each for each in listed]
            choices += listed
            scalars |= set(map(type, listed))
        elif dataclasses.is_dataclass(cls):
            configs.append(cls)
        # Sets are left out: they have no order, so no one text and no fingerprint.
        elif origin in (list, tuple, Sequence):
            list_type = list_type or member
        elif origin in (dict, Mapping):
            entry_types = entry_types or get_args(member) or (Any, Any)
        elif member in (bool, int, float, str) or issubclass(cls, PurePath):
            scalars.add(str if issubclass(cls, PurePath) else member)
        else:
            takes_anything = True
    items = get_args(list_type)
    is_fixed = get_origin(list_type) is tuple and items[-1:] != (Ellipsis,)
    return TypeInfo(
        members=tuple(members),
        allows_none=allows_none,
        sections=tuple(configs),
        choices=tuple(choices),
        list_type=list_type,
        item_types=items,
        fixed_length=len(items) if is_fixed else None,
        entry_types=cast(tuple[Any, Any] | None, entry_types),
        scalars=None if takes_anything else frozenset(scalars),
    )


def sections(declared: Any) -> tuple[type, ...]:
    """The config classes among the alternatives of a type."""
    return type_info(declared).sections


def kinds_of(section: type) -> tuple[Any, ...]:
    """The values of a config class's `kind: Literal[...]`; a union of configs needs that field."""
    item = settings_by_spelling(section).get(KIND)
    members = () if item is None else type_info(item.declared).members
    if len(members) != 1 or get_origin(members[0]) is not Literal:
        raise TypeError(
            f"{section.__name__} is one of several configs a field may hold, so it needs a field "
            f"{KIND}: Literal[...] that tells it from the others"
        )
    return get_args(members[0])


def section_for(declared: Any, value: Mapping[Any, Any]) -> type | None:
    """The config class a mapping is meant for: the only one, or the one its `kind` names."""
    candidates = sections(declared)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    # A default kind does not decide: every member has one, and a wrong guess would drop fields.
    kind = value.get(KIND)
    return next((section for section in candidates if kind in kinds_of(section)), None)
