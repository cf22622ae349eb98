"""A step, what it asks of a machine, and the markers its config may hold until it runs.

A marker stands where its value will be: `versioned(x)` for x itself, and part of the step's
identity; `this_output_path()` for the step's own folder; `output_path_of(step)` for another's, and
`pseudo_dependency_of(step)` for one that need not be there.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from chomp.config import Config, setting, validated
from chomp.config.fields import KeyPath, dotted
from chomp.errors import ConfigError, require
from chomp.storage import read_bytes

T = TypeVar("T")

# Most of a config. Tested for first: plans of a thousand steps walk over configs often.
LEAVES = (str, int, float, type(None))
_LIBRARY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Resources(Config):
    """What each process of a step needs; `processes` of them work on it together (a gang).

    Never part of its identity: the result is the same. Runners that place processes read it; the
    one that runs steps in its own process uses what that has.
    """

    processes: int = setting(default=1, ge=1, le=2**16)  # 1: an ordinary step
    # 0 is fine for a step that waits for another machine.
    cpus: float = setting(default=1.0, ge=0, le=2**16)
    # None: all GPUs of this machine, for one such step at a time; on a Ray cluster none, where a
    # step that asks for nothing gets nothing. 0: no GPU is shown to it.
    gpus: int | None = setting(default=None, ge=0, le=2**16)
    memory_gb: float | None = setting(default=None, gt=0, le=1e9)  # None: whatever there is
    # By the names that a cluster gives its resources, such as {"TPU": 4}.
    custom: Mapping[str, float] = setting(default_factory=dict, gt=0, le=1e9)
    # How often a gang, or a step on another machine, is started again after it was lost.
    restarts: int = setting(default=3, ge=0, lt=2**31)

    def __post_init__(self) -> None:
        blank = [name for name in self.custom if not str(name).strip()]
        require(
            not blank,
            f"resources.custom with the name {blank}",
            allowed="the names that a cluster gives its resources",
            fix="correct custom in the resources of the step",
        )


@dataclass(frozen=True, eq=False)
class ExecutorStep:
    """One unit of work: `fn(config)` fills the step's output folder.

    The folder is `<prefix>/<name>-<hash of what is versioned>`, or `override_output_path`.
    """

    name: str
    fn: Callable[[Any], Any]
    config: Any
    description: str = ""
    override_output_path: str | None = None
    resources: Resources | None = None  # None: those of an ordinary step
    # `check(config, is_here)` is called before any step of the plan runs, and raises what `fn`
    # would fail with later. `is_here` says whether `fn` will run in this process.
    check: Callable[[Any, bool], None] | None = None

    def __post_init__(self) -> None:
        require(
            # Paths leave such parts out or refuse them; two names would mean one folder.
            isinstance(self.name, str)
            and not {"", ".", ".."} & {part.strip() for part in self.name.split("/")},
            f"a step with the name {self.name!r}",
            allowed="text such as 'tokens' or 'grug/base', with something between the slashes",
            fix="name the step for what it makes",
        )
        require(
            callable(self.fn),
            f"step {self.name!r} with fn={self.fn!r}",
            allowed="a function of one argument, the config",
            fix="pass the function itself, not its result",
        )
        require(
            self.resources is None or isinstance(self.resources, Resources),
            f"step {self.name!r} with resources={self.resources!r}",
            allowed="Resources(...), or None for those of an ordinary step",
            fix="write for example resources=Resources(gpus=1)",
        )
        if self.resources is not None:
            validated(self.resources)

    def __truediv__(self, sub: str) -> str:
        """A path inside this step's output, for another step's config."""
        return output_path_of(self, sub)


@dataclass(frozen=True)
class Versioned:
    """A value that is part of its step's identity."""

    value: Any

    def __post_init__(self) -> None:
        for path, found in markers(self.value):
            require(
                not isinstance(found, Versioned),
                "versioned(...) inside versioned(...)" + (f", at {dotted(path)}" if path else ""),
                allowed="one mark around a value",
                fix="mark the outer value only: everything in it counts",
            )


@dataclass(frozen=True)
class OutputName:
    """A path inside the output folder of the step whose config holds it."""

    sub: str | None


@dataclass(frozen=True)
class InputName:
    """A path inside the output of another step, or (no step) one relative to the prefix."""

    step: ExecutorStep | None
    sub: str | None
    is_needed: bool = True  # False: a pseudo-dependency, which is not waited for

    @staticmethod
    def hardcoded(path: str) -> str:
        """A path below the prefix that no step of this plan makes. Its text enters the identity."""
        return cast(str, InputName(None, path))


def versioned(value: T) -> T:
    """`value`, marked as part of the step's identity: if it changes, the output folder does.

    Typed as the value it stands for; the executor puts that value back before the step runs.
    """
    return cast(T, Versioned(value))


def this_output_path(sub: str | None = None) -> str:
    """The output folder of the step whose config this stands in, or a path inside it."""
    return cast(str, OutputName(sub))


def output_path_of(step: ExecutorStep, sub: str | None = None) -> str:
    """The output folder of `step`, or a path inside it; makes `step` a dependency."""
    return cast(str, InputName(step, sub))


def pseudo_dependency_of(step: ExecutorStep, sub: str | None = None) -> str:
    """The same path as `output_path_of`, in the identity too; but `step` need not have run.

    It is neither planned nor waited for: for a result that is used only if it is there.
    """
    return cast(str, InputName(step, sub, is_needed=False))


def markers(
    value: Any, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, Versioned | OutputName | InputName]]:
    """Every marker in a config with its path; a versioned value is not looked into."""
    if isinstance(value, Versioned | OutputName | InputName):
        yield path, value
        return
    if isinstance(value, ExecutorStep):
        raise ConfigError(
            f"{dotted(path)} is the step {value.name!r} itself",
            allowed="the path of what a step makes",
            fix="write output_path_of(step), or step / 'a path inside it'",
        )
    for part, child in children(value):
        if not isinstance(child, LEAVES):
            yield from markers(child, (*path, part))


def inputs(value: Any) -> Iterator[InputName]:
    """Every path in a config that leads outside its step, those inside versioned values too."""
    for _, marker in markers(value):
        if isinstance(marker, InputName):
            yield marker
        elif isinstance(marker, Versioned):
            yield from inputs(marker.value)


def replaced(value: Any, replacement: Callable[[InputName | OutputName], Any]) -> Any:
    """`value` with every path marker put through `replacement` and versions unwrapped.

    What holds no marker comes back as it is; the rest is rebuilt, mappings as dicts.
    """
    if isinstance(value, LEAVES):
        return value
    if isinstance(value, Versioned):
        return replaced(value.value, replacement)
    if isinstance(value, OutputName | InputName):
        return replacement(value)
    old = list(children(value))
    new = [(part, replaced(child, replacement)) for part, child in old]
    if all(after is before for (_, before), (_, after) in zip(old, new, strict=True)):
        return value
    items = [item for _, item in new]
    if isinstance(value, Mapping):
        return dict(zip(value, items, strict=True))
    if isinstance(value, list):
        return items
    if isinstance(value, tuple):
        # A NamedTuple takes its items one by one.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return dataclasses.replace(value, **{str(part): item for part, item in new})


def children(value: Any) -> Iterator[tuple[str | int, Any]]:
    """The parts of a config value, each with its name; nothing for a leaf."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Derived fields are left out: their class computes them from the others.
        for field in dataclasses.fields(value):
            if field.init:
                yield field.name, getattr(value, field.name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key.value if isinstance(key, Enum) else key), item
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def function_name(fn: Callable[[Any], Any]) -> str:
    """Module and name of a step's function."""
    named = _named(fn)
    return f"{named.__module__}.{named.__qualname__}"


def template_folder(fn: Callable[[Any], Any]) -> Path | None:
    """The folder of the template that holds a step's function; None if that is no template.

    The library's own functions are not: chomp's version names them, and nobody edits a copy.
    """
    try:
        found = inspect.getsourcefile(_named(fn))
    except TypeError:  # built into the interpreter
        return None
    if found is None:
        return None
    folder = Path(found).resolve().parent
    return None if _LIBRARY in [folder, *folder.parents] else folder


def source_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each Python file in a folder, by file name."""
    return {
        path.name: hashlib.sha256(read_bytes(path)).hexdigest()
        for path in sorted(folder.glob("*.py"))
        if path.is_file()
    }


def _named(fn: Callable[[Any], Any]) -> Any:
    """The function or class behind partials, decorators and callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return fn if hasattr(fn, "__qualname__") else type(fn)
