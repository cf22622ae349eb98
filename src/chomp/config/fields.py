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
    TypeGuard,
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
_SCALARS = (bool, int, float, str)
# Sets are left out: they have no order, so no one text and no fingerprint.
_LISTS = (list, tuple, Sequence)
_MAPPINGS = (dict, Mapping)


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
        return ConfigError(
            f"{dotted(path)}={number}",
            allowed=f"{self.bounds}" + (", or null" if allows_none(self.declared) else ""),
            fix=f"set {dotted(path)} to a number in that range"
            + (f", such as {usual}" if isinstance(usual, int | float) else ""),
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
    # pydantic puts the second into the JSON schema.
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
        "json_schema_extra": {**{key: list(value) for key, value in names.items()}, "mark": mark},
    }
    made: Any = dataclasses.field(
        default=default, default_factory=default_factory, metadata=metadata
    )  # type: ignore[call-overload]
    return cast(T, made)


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
    if not _setting_of(field).is_added:
        return False
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    return bool(value == default)


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
        if item.bounds != Bounds():
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
    for name, field, item in _declared_also(cls):
        path = _section_path(cls, name)
        if path is None:
            continue
        section = tuple(each.name for each in path)
        other = found.get((section, name[-1]))
        # The members of a union may share a field, and its other name with it.
        if other is not None and other.field != field:
            both = f"{dotted(other.field)} and {dotted(field)}"
            raise TypeError(f"{cls.__name__}: {dotted(name)!r} means both {both}")
        found[section, name[-1]] = AlsoName(
            name=name,
            route=(*(frozenset(each.spellings) for each in path), frozenset({name[-1]})),
            section=section,
            field=field,
            zero_is_null=item.zero_is_null,
        )
    return tuple(found.values())


def _declared_also(
    cls: type, around: frozenset[type] = frozenset()
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], Setting]]:
    """Every `also` name of a field in or below a class that starts no lower than that class.

    With the path of the field. Lists and mappings are not entered: their items have no one path.
    """
    around |= {cls}
    for item in settings_of(cls):
        for name in item.also:
            yield tuple(name.split(".")), (item.name,), item
        for section in sections(item.declared):
            if section in around:  # a config that may hold its like
                continue
            for parts, field, inner in _declared_also(section, around):
                if _section_path(section, parts) is None:
                    yield parts, (item.name, *field), inner


def _section_path(cls: type, name: tuple[str, ...]) -> list[Setting] | None:
    """The fields that lead from a class to the section of a name; None if it has none."""
    path = []
    for end in range(1, len(name)):
        found = fields_at(cls, name[:end])
        if not found:
            return None
        path.append(found[0][1])
    for owner, _ in fields_at(cls, name):
        raise TypeError(f"{cls.__name__}: {dotted(name)!r} is a field of {owner.__name__}")
    return path


# ---- Declared types --------------------------------------------------------------------------


def is_config(value: object) -> bool:
    """Whether a value is a dataclass instance (not a dataclass type)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@cache
def members(declared: Any) -> tuple[Any, ...]:
    """The alternatives of a type, None left out; one for a type that is no union."""
    return tuple(each for each in _alternatives(declared) if each not in (None, type(None)))


@cache
def allows_none(declared: Any) -> bool:
    """Whether null is among the alternatives of a type."""
    return any(each in (None, type(None), Any, object) for each in _alternatives(declared))


def is_section(member: Any) -> TypeGuard[type]:
    """Whether a type is a config class, which a mapping of field names fills."""
    return isinstance(member, type) and dataclasses.is_dataclass(member)


@cache
def sections(declared: Any) -> tuple[type, ...]:
    """The config classes among the alternatives of a type."""
    return tuple(member for member in members(declared) if is_section(member))


def kinds_of(section: type) -> tuple[Any, ...]:
    """The values of a config class's `kind: Literal[...]`; a union of configs needs that field."""
    item = settings_by_spelling(section).get(KIND)
    kinds = () if item is None else members(item.declared)
    if len(kinds) != 1 or get_origin(kinds[0]) is not Literal:
        raise TypeError(
            f"{section.__name__} is one of several configs a field may hold, so it needs a field "
            f"{KIND}: Literal[...] that tells it from the others"
        )
    return get_args(kinds[0])


def section_for(declared: Any, value: Mapping[Any, Any]) -> type | None:
    """The config class a mapping is meant for: the only one, or the one its `kind` names."""
    candidates = sections(declared)
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    # A default kind does not decide: every member has one, and a wrong guess would drop fields.
    kind = value.get(KIND)
    return next((section for section in candidates if kind in kinds_of(section)), None)


@cache
def list_member(declared: Any) -> Any | None:
    """The alternative that a list fills, if there is one."""
    return next((each for each in members(declared) if (get_origin(each) or each) in _LISTS), None)


@cache
def mapping_member(declared: Any) -> Any | None:
    """The alternative that a mapping with free keys fills, if there is one."""
    return next(
        (each for each in members(declared) if (get_origin(each) or each) in _MAPPINGS), None
    )


def fixed_length(member: Any) -> int | None:
    """The number of items a list must have: `tuple[float, float]`; None if any will do."""
    is_fixed = get_origin(member) is tuple and get_args(member)[-1:] != (Ellipsis,)
    return len(get_args(member)) if is_fixed else None


def item_type(member: Any, index: int) -> Any:
    """The type of a list's item; `Any` where the list does not say."""
    arguments = get_args(member)
    if fixed_length(member) is not None:
        # An item too many is refused as the list's length, not as an item.
        return arguments[index] if index < len(arguments) else Any
    return arguments[0] if arguments else Any


def entry_types(member: Any) -> tuple[Any, Any]:
    """The types of a mapping's keys and values; `Any` where the mapping does not say."""
    arguments = get_args(member)
    return (arguments[0], arguments[1]) if arguments else (Any, Any)


def choices_of(member: Any) -> tuple[Any, ...]:
    """The values a `Literal` or an enum lists, as they are written in a file; else nothing."""
    listed: Iterable[Any] = get_args(member) if get_origin(member) is Literal else ()
    if isinstance(member, type) and issubclass(member, Enum):
        listed = member
    return tuple(choice.value if isinstance(choice, Enum) else choice for choice in listed)


@cache
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


@cache
def is_text(declared: Any) -> bool:
    """Whether every alternative but null is written as one piece of text."""
    has_inside = sections(declared) or list_member(declared) or mapping_member(declared)
    return not has_inside and scalar_types(declared) == frozenset({str})


def _alternatives(declared: Any) -> list[Any]:
    """The members of a union, at any depth and without `Annotated`; None among them."""
    while get_origin(declared) is Annotated:
        declared = get_args(declared)[0]
    # `A | B` and Union[A, B] are different objects until Python 3.14.
    if get_origin(declared) in (Union, types.UnionType):
        return [inner for part in get_args(declared) for inner in _alternatives(part)]
    return [declared]


def _holds_numbers(declared: Any) -> bool:
    return declared in (int, float) or any(map(_holds_numbers, get_args(declared)))


# ---- Settings of fields ----------------------------------------------------------------------


def _setting_of(field: "dataclasses.Field[Any]") -> Setting:
    """What `setting` was given for a field; the defaults of `setting` for a plain one."""
    found: Setting = field.metadata.get(_METADATA_KEY, _PLAIN)
    return found


@cache
def _bounded(cls: Any) -> tuple[Setting, ...]:
    """The fields of a config class that have bounds."""
    # Annotations are resolved only for these: nothing else needs them where an instance is made.
    if all(_setting_of(field).bounds == Bounds() for field in dataclasses.fields(cls)):
        return ()
    return tuple(item for item in settings_of(cls) if item.bounds != Bounds())
