"""What a config class says about its fields: spellings, marks, documentation, defaults.

A field written plainly (`steps: int = 100`) has one spelling and is part of the run's identity.
`setting(...)` says more, beside the field it is about. Nothing here looks at values.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, get_type_hints, overload

from pydantic import ConfigDict

Mark = Literal["identity", "schedule", "cosmetic"]
"""What a changed field means for a run that is resumed.

`identity`: another run. `schedule`: the same run, continued otherwise. `cosmetic`: nothing.
"""

# From strict to loose. A mark covers everything below its field and can only be loosened there.
MARKS: tuple[Mark, ...] = ("identity", "schedule", "cosmetic")

T = TypeVar("T")

# pydantic hands known metadata keys on to its own Field and leaves the others alone.
_METADATA_KEY = "chomp.setting"


class _Said(NamedTuple):
    """What `setting` says about a field; the defaults are what a plain field means."""

    aliases: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    zero_is_null: bool = False
    mark: Mark = "identity"
    is_versioned: bool | None = None
    is_added: bool = False


_PLAIN_FIELD = _Said()


class ConfigClass(Protocol):
    """Any dataclass instance; what the functions of this room take for a config."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Config:
    """Optional base of config dataclasses: the rules pydantic itself applies to them.

    `config_from_mapping` and its kin apply the same rules to any dataclass. The base carries them
    to whoever gives the class to pydantic directly, and into the JSON schema.
    """

    # A base with a __dict__ would undo `slots=True` in the classes below it.
    __slots__ = ()

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",  # without it pydantic drops unknown nested keys silently
        revalidate_instances="always",  # without it an instance built in Python is not looked into
        allow_inf_nan=False,  # JSON has no word for either, and no knob means one
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a config class, with its type resolved and its default at hand."""

    name: str
    declared: Any
    field: "dataclasses.Field[Any]"

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its other names in its own section."""
        return _said(self.field).aliases

    @property
    def also(self) -> tuple[str, ...]:
        """Its dotted names in other sections."""
        return _said(self.field).also

    @property
    def zero_is_null(self) -> bool:
        """Whether 0, given by one of its names in other sections, means null."""
        return _said(self.field).zero_is_null

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


@overload
def setting(
    *,
    default: T,
    aliases: tuple[str, ...] = ...,
    also: tuple[str, ...] = ...,
    zero_is_null: bool = ...,
    mark: Mark = ...,
    doc: str = ...,
    is_versioned: bool | None = ...,
    is_added: bool = ...,
) -> T: ...


@overload
def setting(
    *,
    default_factory: Callable[[], T],
    aliases: tuple[str, ...] = ...,
    also: tuple[str, ...] = ...,
    zero_is_null: bool = ...,
    mark: Mark = ...,
    doc: str = ...,
    is_versioned: bool | None = ...,
    is_added: bool = ...,
) -> T: ...


@overload
def setting(
    *,
    aliases: tuple[str, ...] = ...,
    also: tuple[str, ...] = ...,
    zero_is_null: bool = ...,
    mark: Mark = ...,
    doc: str = ...,
    is_versioned: bool | None = ...,
    is_added: bool = ...,
) -> Any: ...


def setting(
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    aliases: Any = (),
    also: Any = (),
    zero_is_null: bool = False,
    mark: Mark = "identity",
    doc: str = "",
    is_versioned: bool | None = None,
    is_added: bool = False,
) -> Any:
    """A dataclass field with alternative spellings, a mark and a line of documentation.

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
    # Mistakes in a class are bugs, so they are TypeErrors and keep their traceback.
    if mark not in MARKS:
        raise TypeError(f"mark={mark!r} is none of {', '.join(map(repr, MARKS))}")
    for name, value in (("aliases", aliases), ("also", also)):
        if isinstance(value, str):  # a tuple of one without its comma; its letters would be names
            raise TypeError(f"{name}={value!r} is one string; write {name}=({value!r},)")
    if any("." not in name for name in also):
        raise TypeError(f"also={also!r} holds a name of this section; that is an alias")
    said = _Said(tuple(aliases), tuple(also), zero_is_null, mark, is_versioned, is_added)
    # pydantic puts the second and the third into the JSON schema.
    metadata: dict[str, Any] = {
        _METADATA_KEY: said,
        "json_schema_extra": {"aliases": list(aliases), "also": list(also), "mark": mark},
    }
    if doc:
        metadata["description"] = doc
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


def mark_of(field: "dataclasses.Field[Any]") -> Mark:
    """The mark of a dataclass field; a plain field is identity."""
    return _said(field).mark


def is_versioned(field: "dataclasses.Field[Any]") -> bool:
    """Whether a dataclass field counts where its config is versioned; a plain one does."""
    counts = _said(field).is_versioned
    return mark_of(field) != "cosmetic" if counts is None else counts


def is_of_one_start(field: "dataclasses.Field[Any]") -> bool:
    """Whether a dataclass field is asked of one start of a run: `is_versioned=False`."""
    return _said(field).is_versioned is False


def is_unset_addition(field: "dataclasses.Field[Any]", value: Any) -> bool:
    """Whether a field that was added later has its default, which is what runs had before it."""
    return _said(field).is_added and bool(value == field.default)


@cache  # resolving string annotations evaluates them, which is slow
def settings_of(cls: type) -> tuple[Setting, ...]:
    """The fields of a config class that its constructor takes, in declared order.

    Annotations may be strings (`from __future__ import annotations`). A class in which one spelling
    means two fields is refused.
    """
    # The extras are bounds in `Annotated`, which messages about a field mention.
    declared = get_type_hints(cls, include_extras=True)
    settings = [
        Setting(name=field.name, declared=declared[field.name], field=field)
        for field in dataclasses.fields(cls)
        if field.init
    ]
    _refuse_shared_spellings(cls, settings)
    return tuple(settings)


def settings_by_spelling(cls: type) -> dict[str, Setting]:
    """Every name and alias of a config class, with the field it means."""
    return {spelling: item for item in settings_of(cls) for spelling in item.spellings}


def is_config(value: object) -> bool:
    """Whether a value is a dataclass instance (not a dataclass type)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _said(field: "dataclasses.Field[Any]") -> _Said:
    said: _Said = field.metadata.get(_METADATA_KEY, _PLAIN_FIELD)
    return said


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
