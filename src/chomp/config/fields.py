"""What a config class says about its fields: bounds, spellings, marks, documentation, defaults.

A field written plainly (`steps: int = 100`) has one spelling and is part of the run's identity.
`setting(...)` says more, beside the field it is about. Of values only bounds are checked here.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from operator import ge, gt, le, lt
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_type_hints,
    overload,
)

from pydantic import ConfigDict

from chomp.config.paths import KeyPath, dotted
from chomp.errors import ConfigError, require

Mark = Literal["identity", "schedule", "cosmetic"]
"""What a changed field means for a run that is resumed.

`identity`: another run. `schedule`: the same run, continued otherwise. `cosmetic`: nothing.
"""

# From strict to loose. A mark covers everything below its field and can only be loosened there.
MARKS: tuple[Mark, ...] = ("identity", "schedule", "cosmetic")

T = TypeVar("T")

# pydantic hands known metadata keys on to its own Field and leaves the others alone.
_METADATA_KEY = "chomp.setting"


class _Words(TypedDict, total=False):
    """What `setting` takes beside a default."""

    aliases: tuple[str, ...]
    also: tuple[str, ...]
    zero_is_null: bool
    mark: Mark
    doc: str
    is_versioned: bool | None
    is_added: bool
    gt: float
    ge: float
    lt: float
    le: float


class Bounds(NamedTuple):
    """The ends of a range of numbers; None: no end of that kind."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __str__(self) -> str:
        """The range in words that tell whether its ends are allowed."""
        # 1e+12 is easier to read than 1000000000000.0.
        ends = [f"{end:g}" if isinstance(end, float) else end for end in self]
        if self.ge is not None and self.le is not None:
            return f"from {ends[1]} to {ends[3]}, both allowed"
        words = zip(("above", "at least", "below", "at most"), ends, strict=True)
        return " and ".join(f"{word} {end}" for word, end in words if end is not None)

    def outside(self, value: Any) -> Iterator[tuple[KeyPath, float]]:
        """The numbers out of range: the value itself, or items and entries by index and key."""
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
    """Optional base of config dataclasses: the rules pydantic itself applies to them.

    `config_from_mapping` and its kin apply the same rules to any dataclass. The base carries them
    to whoever gives the class to pydantic directly, and into the JSON schema. It also checks the
    bounds of fields when an instance is made, before the class's own `__post_init__`.
    """

    # A base with a __dict__ would undo `slots=True` in the classes below it.
    __slots__ = ()

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",  # without it pydantic drops unknown nested keys silently
        revalidate_instances="always",  # without it an instance built in Python is not looked into
        allow_inf_nan=False,  # JSON has no word for either, and no knob means one
    )

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
    """One field of a config class, with its type resolved and its default at hand."""

    name: str
    declared: Any
    field: "dataclasses.Field[Any]"

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its other names in its own section."""
        return _said(self.field).get("aliases", ())

    @property
    def also(self) -> tuple[str, ...]:
        """Its dotted names in other sections."""
        return _said(self.field).get("also", ())

    @property
    def zero_is_null(self) -> bool:
        """Whether 0, given by one of its names in other sections, means null."""
        return _said(self.field).get("zero_is_null", False)

    @property
    def bounds(self) -> Bounds:
        """The range of its number, or of each number in its list or mapping."""
        return _bounds(self.field)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The canonical name first, then the aliases."""
        return (self.name, *self.aliases)

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        missing = dataclasses.MISSING
        return self.field.default is missing and self.field.default_factory is missing

    def default(self) -> Any:
        """The default value, made anew if a factory makes it; only for a field that has one."""
        if self.field.default_factory is not dataclasses.MISSING:
            return self.field.default_factory()
        return self.field.default

    def out_of_bounds(self, path: KeyPath, number: float) -> ConfigError:
        """The error for a number at a path that is not within the bounds."""
        usual = None if self.is_required else self.default()
        is_number = isinstance(usual, int | float)
        return ConfigError(
            f"{dotted(path)}={number}",
            allowed=f"{self.bounds}" + (", or null" if NoneType in get_args(self.declared) else ""),
            fix=f"set {dotted(path)} to a number in that range"
            + (f", such as {usual}" if is_number else ""),
        )


@overload
def setting(*, default: T, **words: Unpack[_Words]) -> T: ...


@overload
def setting(*, default_factory: Callable[[], T], **words: Unpack[_Words]) -> T: ...


@overload
def setting(**words: Unpack[_Words]) -> Any: ...


def setting(
    *, default: Any = dataclasses.MISSING, default_factory: Any = dataclasses.MISSING, **words: Any
) -> Any:
    """A dataclass field with bounds, alternative spellings, a mark and a line of documentation.

    `gt`, `ge`, `lt` and `le` bound a number, or each number in a list or mapping of them.

    Aliases are accepted in mappings, files and overrides, never as Python arguments; everything
    written out uses the field's name. `also` holds names in other sections, as dotted paths from
    the nearest config around that has the first part (`also=("train.eval_every",)`); where
    `zero_is_null`, a 0 under such a name is null, for a seed in which 0 turns a thing off.
    A mark on a nested config or a container covers all of it.
    `is_versioned` says whether the field counts in the identity of an executor's step where its
    config is versioned. By default all but cosmetic ones do. True: a cosmetic one too, such as the
    path of data. False: not even another, which was asked of one start and says nothing of the run.
    `is_added`: the field came after runs were made without it. At its default it is in no hash and
    makes no difference, so that those runs keep their identity and continue.
    """
    unknown = [name for name in words if name not in _Words.__annotations__]
    require(
        not unknown,
        f"setting({', '.join(f'{name}={words[name]!r}' for name in unknown)})",
        allowed=", ".join(_Words.__annotations__),
        fix="write one of these; bounds are gt (above), ge (at least), lt (below), le (at most)",
    )
    aliases, also, mark = (
        words.get(name, kept) for name, kept in (("aliases", ()), ("also", ()), ("mark", MARKS[0]))
    )
    # Mistakes in a class are bugs, so they are TypeErrors and keep their traceback.
    if mark not in MARKS:
        raise TypeError(f"mark={mark!r} is none of {', '.join(map(repr, MARKS))}")
    for name, value in (("aliases", aliases), ("also", also)):
        if isinstance(value, str):  # a tuple of one without its comma; its letters would be names
            raise TypeError(f"{name}={value!r} is one string; write {name}=({value!r},)")
    if any("." not in name for name in also):
        raise TypeError(f"also={also!r} holds a name of this section; that is an alias")
    # pydantic puts the second and the third into the JSON schema.
    metadata: dict[str, Any] = {
        _METADATA_KEY: words,
        "json_schema_extra": {"aliases": list(aliases), "also": list(also), "mark": mark},
    }
    if words.get("doc"):
        metadata["description"] = words["doc"]
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


def mark_of(field: "dataclasses.Field[Any]") -> Mark:
    """The mark of a dataclass field; a plain field is identity."""
    return _said(field).get("mark", MARKS[0])


def is_versioned(field: "dataclasses.Field[Any]") -> bool:
    """Whether a dataclass field counts where its config is versioned; a plain one does."""
    counts = _said(field).get("is_versioned")
    return mark_of(field) != "cosmetic" if counts is None else counts


def is_of_one_start(field: "dataclasses.Field[Any]") -> bool:
    """Whether a dataclass field is asked of one start of a run: `is_versioned=False`."""
    return _said(field).get("is_versioned") is False


def is_unset_addition(field: "dataclasses.Field[Any]", value: Any) -> bool:
    """Whether a field that was added later has its default, which is what runs had before it."""
    return _said(field).get("is_added", False) and bool(value == field.default)


@cache  # resolving string annotations evaluates them, which is slow
def settings_of(cls: type) -> tuple[Setting, ...]:
    """The fields of a config class that its constructor takes, in declared order.

    Annotations may be strings (`from __future__ import annotations`). A class in which one spelling
    means two fields is refused, and bounds that do not fit their field.
    """
    # The extras are bounds in `Annotated`, which messages about a field mention.
    declared = get_type_hints(cls, include_extras=True)
    settings = [
        Setting(name=field.name, declared=declared[field.name], field=field)
        for field in dataclasses.fields(cls)
        if field.init
    ]
    _refuse_shared_spellings(cls, settings)
    for item in settings:
        _refuse_wrong_bounds(cls, item)
    return tuple(settings)


def settings_by_spelling(cls: type) -> dict[str, Setting]:
    """Every name and alias of a config class, with the field it means."""
    return {spelling: item for item in settings_of(cls) for spelling in item.spellings}


def is_config(value: object) -> bool:
    """Whether a value is a dataclass instance (not a dataclass type)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@cache
def _bounded(cls: Any) -> tuple[Setting, ...]:
    """The fields of a config class that have bounds."""
    # Annotations are resolved only for these: nothing else needs them where an instance is made.
    if all(_bounds(field) == Bounds() for field in dataclasses.fields(cls)):
        return ()
    return tuple(item for item in settings_of(cls) if item.bounds != Bounds())


def _said(field: "dataclasses.Field[Any]") -> _Words:
    words: _Words = field.metadata.get(_METADATA_KEY, {})
    return words


def _bounds(field: "dataclasses.Field[Any]") -> Bounds:
    words = _said(field)
    return Bounds(words.get("gt"), words.get("ge"), words.get("lt"), words.get("le"))


def _refuse_wrong_bounds(cls: type, item: Setting) -> None:
    """Raise `ConfigError` for bounds where there is no number, or that its default is out of."""
    if item.bounds == Bounds():
        return
    require(
        any(part in (int, float) for part in _parts(item.declared)),
        f"{cls.__name__}.{item.name} is {item.declared} with bounds: {item.bounds}",
        allowed="bounds of numbers, and of lists and mappings of numbers",
        fix="leave the bounds out",
    )
    default = None if item.is_required else item.default()
    require(
        not any(item.bounds.outside(default)),
        f"{cls.__name__}.{item.name} has the default {default}",
        allowed=f"a default in its bounds: {item.bounds}",
        fix="change the default or the bounds",
    )


def _parts(declared: Any) -> Iterator[Any]:
    """A type and all types that it is made of."""
    yield declared
    for part in get_args(declared):
        yield from _parts(part)


def _refuse_shared_spellings(cls: type, settings: list[Setting]) -> None:
    """Raise for a spelling that two fields claim: a mistake in the class, not in anyone's input."""
    owner: dict[str, str] = {}
    for item in settings:
        for spelling in item.spellings:
            if spelling in owner:
                raise TypeError(
                    f"{cls.__name__}: {spelling!r} means both {owner[spelling]} and {item.name}"
                )
            owner[spelling] = item.name
