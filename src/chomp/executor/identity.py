"""What makes a step that step and no other.

Identity = name, versioned values, and the identities of dependencies, as canonical JSON, hashed.
The prefix, the machine, the order of fields and everything not versioned stay out of it. A pin
lets one identity count as another, for the step itself and for all that is made from it.

Of a versioned config, cosmetic fields do not count: logging more often must not train again. Fields
of the schedule do, since another schedule makes another result. `setting(is_versioned=...)` changes
this for one field. The class of a config counts by its name: a run of `AdamW(lr=1)` is not one of
`Lion(lr=1)`, though their fields are equal.

A path is hashed as what it means, and a text that only reads like one ("tokens-0123456789ab") is
another value: the hash also takes where paths and class names stand.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chomp.config import fingerprint
from chomp.config.fields import (
    KeyPath,
    dotted,
    is_config,
    is_of_one_start,
    is_unset_addition,
    is_versioned,
)
from chomp.config.parse import plain_value
from chomp.errors import ConfigError, LaunchError
from chomp.executor.step import (
    LEAVES,
    ExecutorStep,
    InputName,
    OutputName,
    Versioned,
    children,
    inputs,
    markers,
    replaced,
)

# 48 bits: a collision among a million versions of one name has a chance of 1 in 500.
HASH_DIGITS = 12
# No field can have these names, but a key of a mapping can: `ClassName` tells them apart.
CLASS = "<class>"
MODULE = "<module>"


@dataclass(frozen=True)
class Identity:
    """The identity of a step: a hash, and the readable values behind it."""

    hash: str
    values: dict[str, Any]  # dotted path -> versioned value or dependency
    dependencies: tuple[ExecutorStep, ...]  # that have to be there before the step runs
    own_hash: str  # of the values; differs from `hash` if a pin lets it count as another


class Identities:
    """Identities of steps, each computed once; finds cycles.

    `pins`: titles (name and hash) of identities, and the title that each counts as.
    """

    def __init__(self, pins: Mapping[str, str] | None = None) -> None:
        # By the step itself and not its id(), which Python gives to another object later.
        self._known: dict[ExecutorStep, Identity] = {}
        self._inputs: dict[ExecutorStep, list[InputName]] = {}
        self._pins = pins or {}

    def of(self, step: ExecutorStep) -> Identity:
        """The identity of `step`, computing those of its dependencies first."""
        if step not in self._known:
            for each in in_order([step], self._named_by):
                if each not in self._known:
                    self._known[each] = self._identity(each)
        return self._known[step]

    def _identity(self, step: ExecutorStep) -> Identity:
        values: dict[str, Any] = {}  # as people read them
        config: dict[str, Any] = {}  # the same as it is hashed
        marks: dict[str, list[str]] = {}
        for path, marker in markers(step.config):
            # Where a step writes says nothing about what it makes, unless it is marked so.
            if isinstance(marker, OutputName):
                continue
            value = hashed_fields(marker.value) if isinstance(marker, Versioned) else marker
            plain = plain_part(step, replaced(value, self._text_of), path)
            for place, item in _flatten(plain, path):
                name, pointer = _names_of(place)
                values[name] = config[pointer] = item
            marks |= {_pointer(place): mark for place, mark in self._marks(value, path)}
        hashed = {"name": step.name, "config": config, "marks": marks}
        own = fingerprint(hashed)[:HASH_DIGITS]
        title = self._pins.get(f"{step.name}-{own}", own)
        return Identity(title[-HASH_DIGITS:], values, _needed(self._inputs[step]), own)

    def _named_by(self, step: ExecutorStep) -> list[ExecutorStep]:
        """The steps that the config of `step` points to, those too that it does not wait for."""
        self._inputs[step] = list(inputs(step.config))
        return [name.step for name in self._inputs[step] if name.step is not None]

    def _text_of(self, marker: InputName | OutputName) -> str:
        """What a path means, as people read it."""
        kind, *parts = self._meaning(marker)
        return "/".join(parts if kind == "step" else [f"<{kind}>", *parts])

    def _meaning(self, marker: InputName | OutputName) -> list[str]:
        """What a path means, and not where it is: the step that makes it, or its own text."""
        sub = [marker.sub] if marker.sub else []
        if isinstance(marker, OutputName):
            return ["output", *sub]
        if marker.step is None:
            return ["prefix", *sub]
        return ["step", f"{marker.step.name}-{self._known[marker.step].hash}", *sub]

    def _marks(self, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, list[str]]]:
        """The places where a text is a class name or a path, and what it means there."""
        if isinstance(value, ClassName):
            yield path, ["class"]
        elif isinstance(value, OutputName | InputName):
            yield path, self._meaning(value)
        else:
            for part, child in children(value):
                if isinstance(child, ClassName) or not isinstance(child, LEAVES):
                    yield from self._marks(child, (*path, part))


def dependencies_of(step: ExecutorStep) -> tuple[ExecutorStep, ...]:
    """The steps whose output has to be there for `step`, each once."""
    return _needed(inputs(step.config))


def plain_part(step: ExecutorStep, value: Any, path: KeyPath = ()) -> Any:
    """A part of a step's config as plain data; `ConfigError` with step and path if that fails."""
    try:
        return plain_value(value, path)
    except ConfigError as error:
        error.within(f"step {step.name!r}")
        raise


def in_order(
    roots: Iterable[ExecutorStep], needs: Callable[[ExecutorStep], Iterable[ExecutorStep]]
) -> Iterator[ExecutorStep]:
    """The roots and all they need, each object once and after what it needs itself.

    `needs` is asked once for each step, before it is given out. Raises `LaunchError` on a cycle.
    """
    done: set[ExecutorStep] = set()
    for root in roots:
        # The steps from a root down to the current one, each with the needs not yet visited.
        path = {} if root in done else {root: iter(needs(root))}
        while path:
            here, rest = next(reversed(path.items()))
            below = next((step for step in rest if step not in done), None)
            if below is None:
                del path[here]
                done.add(here)
                yield here
            elif below in path:
                steps = list(path)
                names = " -> ".join(step.name for step in [*steps[steps.index(below) :], below])
                raise LaunchError(
                    f"steps that wait for each other: {names}",
                    allowed="dependencies without a cycle",
                    fix="take one of those dependencies out",
                )
            else:
                path[below] = iter(needs(below))


def hashed_fields(value: Any, *, is_left_out: bool = False) -> Any:
    """The part of a versioned value that is hashed: configs as mappings, without some fields.

    Each names its class, too. An enum is its value and a path its text, as a file writes them.
    The output of another step counts wherever it stands, in a cosmetic field too: what a step is
    made from is part of what it is. `is_left_out`: nothing else counts here.
    """
    parts = None if isinstance(value, LEAVES) else _parts(value)
    if parts is None:
        return value
    kept = {
        name: hashed_fields(child, is_left_out=is_left_out or not counts)
        for name, child, counts in parts
        if (counts and not is_left_out) or any(inputs(child))
    }
    if is_config(value) and not is_left_out:
        return {CLASS: class_name(value), **kept}
    return list(kept.values()) if isinstance(value, list | tuple) else kept


def unhashed_fields(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, bool]]:
    """The paths of fields that are not hashed, and whether each is for one start of a run only."""
    if isinstance(value, OutputName | InputName):
        return  # another step's fields are that step's business
    if isinstance(value, Versioned):
        yield from unhashed_fields(value.value, path)
        return
    fields = {each.name: each for each in dataclasses.fields(value)} if is_config(value) else {}
    for part, child in children(value):
        field = fields.get(str(part))
        if field is None or is_versioned(field):
            if not isinstance(child, LEAVES):
                yield from unhashed_fields(child, (*path, part))
        # A marker counts by itself, and where outputs lie is no difference.
        elif not any(True for _ in markers(child)):
            yield (*path, part), is_of_one_start(field)


class ClassName(str):
    """The name of a config's class, as a type of its own: no config holds one by itself."""

    __slots__ = ()


def class_name(config: object) -> ClassName:
    """The name of a config's class, with those of the classes and functions it is defined in."""
    return ClassName(type(config).__qualname__)


def module_name(config: object) -> str:
    """The module of a config's class, by its file: the same however that was loaded.

    A launch file is `__main__` as a command, and has a made-up name where another one loaded it.
    """
    name = type(config).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return name if file is None else _dotted_name(file)


def with_class_names(value: Any) -> Any:
    """`value` with each config as a mapping that names class and module; the rest as it is."""
    if isinstance(value, LEAVES):
        return value
    if is_config(value):
        fields = {str(name): with_class_names(each) for name, each in children(value)}
        return {CLASS: class_name(value), MODULE: module_name(value), **fields}
    if isinstance(value, Mapping):
        # By the keys themselves, which are looked at when they become plain data.
        return {key: with_class_names(each) for key, each in value.items()}
    return [with_class_names(each) for each in value] if isinstance(value, list | tuple) else value


def _needed(names: Iterable[InputName]) -> tuple[ExecutorStep, ...]:
    needed = (name.step for name in names if name.is_needed)
    return tuple(dict.fromkeys(each for each in needed if each is not None))


def _pointer(path: KeyPath) -> str:
    """The path as a JSON pointer (RFC 6901): each has one, and no two the same.

    A key of digits has `~2` in front, which no pointer has: it is not the index of a list. A dotted
    path is for people, and ambiguous: "the config" is the whole of it, or a key of that name.
    """
    tokens = []
    for part in path:
        if isinstance(part, str) and part.isascii() and part.isdigit():
            tokens.append(f"~2{part}")
        else:
            tokens.append(str(part).replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{token}" for token in tokens)


# The steps of a sweep have the same few paths, each a thousand times.
@functools.lru_cache(maxsize=10_000)
def _names_of(path: KeyPath) -> tuple[str, str]:
    """A path as people read it, and as it is hashed."""
    return dotted(path), _pointer(path)


def _flatten(plain: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The fields of a versioned value, so that a plan can name the one that changed."""
    # Lists stay whole: by their indexes, [x] and {"0": x} would be the same.
    if not isinstance(plain, dict) or not plain:
        yield path, plain
        return
    for key, item in plain.items():
        yield from _flatten(item, (*path, key))


def _parts(value: Any) -> list[tuple[Any, Any, bool]] | None:
    """What a value consists of: name, value, whether it counts. None for a leaf or a marker."""
    if isinstance(value, OutputName | InputName):
        return None
    if is_config(value):
        fields = {field.name: field for field in dataclasses.fields(value)}
        return [
            (name, each, is_versioned(fields[str(name)]))
            for name, each in children(value)
            if not is_unset_addition(fields[str(name)], each)
        ]
    if isinstance(value, Mapping):
        # By the keys themselves, which are looked at when they become plain data.
        return [(key, each, True) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [(index, each, True) for index, each in enumerate(value)]
    return None


@functools.cache  # asked for each config of each step, and there are few files
def _dotted_name(file: str) -> str:
    """What Python calls a file inside its package: only what travels with a copy of that."""
    path = Path(file).resolve()
    parts = [] if path.stem == "__init__" else [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").is_file():
            break
        parts.insert(0, folder.name)
    return ".".join(parts) or path.stem
