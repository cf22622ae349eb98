"""What makes a step that step and no other.

Identity = name, versioned values, and the identities of dependencies, as canonical JSON, hashed.
The prefix, the machine, the order of fields and everything not versioned stay out of it. A pin
lets one identity count as another, for the step itself and for all that is made from it.

A path is hashed as what it means, and a text that only reads like one ("tokens-0123456789ab") is
another value: the hash also takes where paths and class names stand.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chomp.config import fingerprint
from chomp.config.paths import KeyPath, dotted
from chomp.config.plain import plain_value
from chomp.errors import ConfigError
from chomp.executor.class_names import ClassName
from chomp.executor.counted import counted
from chomp.executor.order import in_order
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


@dataclass(frozen=True)
class Identity:
    """The identity of a step: a hash, and the readable values behind it."""

    hash: str
    values: dict[str, Any]  # dotted path -> versioned value or dependency
    dependencies: tuple[ExecutorStep, ...]  # that have to be there before the step runs
    own_hash: str  # of the values; another than `hash` where a pin lets it count as that


class Identities:
    """Identities of steps, each computed once; finds cycles.

    `pins`: titles (name and hash) of identities that count as another, which is theirs then.
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
            value = counted(marker.value) if isinstance(marker, Versioned) else marker
            plain = plain_part(step, replaced(value, self._told), path)
            for place, item in _flattened(plain, path):
                told, pointer = _names_of(place)
                values[told] = config[pointer] = item
            marks |= {_pointer(place): mark for place, mark in self._marks(value, path)}
        hashed = {"name": step.name, "config": config, "marks": marks}
        own = fingerprint(hashed)[:HASH_DIGITS]
        title = self._pins.get(f"{step.name}-{own}", own)
        return Identity(title[-HASH_DIGITS:], values, _needed(self._inputs[step]), own)

    def _named_by(self, step: ExecutorStep) -> list[ExecutorStep]:
        """The steps that the config of `step` points to, those too that it does not wait for."""
        self._inputs[step] = list(inputs(step.config))
        return [name.step for name in self._inputs[step] if name.step is not None]

    def _told(self, marker: InputName | OutputName) -> str:
        """What a path means, in a text for people."""
        kind, *parts = self._meaning(marker)
        return "/".join(parts if kind == "step" else [f"<{kind}>", *parts])

    def _meaning(self, marker: InputName | OutputName) -> list[str]:
        """What a path means, never where it is: the step that makes it, or its own text."""
        sub = [marker.sub] if marker.sub else []
        if isinstance(marker, OutputName):
            return ["output", *sub]
        if marker.step is None:
            return ["prefix", *sub]
        return ["step", f"{marker.step.name}-{self._known[marker.step].hash}", *sub]

    def _marks(self, value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, list[str]]]:
        """Where in a value that counts a text is more than that, and what it is."""
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
    """A part of a step's config as plain data; `ConfigError` with step and path if it has none."""
    try:
        return plain_value(value, path)
    except ConfigError as error:
        error.within(f"step {step.name!r}")
        raise


def _needed(names: Iterable[InputName]) -> tuple[ExecutorStep, ...]:
    needed = (name.step for name in names if name.is_needed)
    return tuple(dict.fromkeys(each for each in needed if each is not None))


def _pointer(path: KeyPath) -> str:
    """The path as a JSON pointer (RFC 6901): each has one, and no two the same.

    A key of digits has `~2` in front, which no pointer has: it is not the index of a list. A dotted
    path is for people: "the config" is the whole of it, or a key of that name.
    """
    return "".join(f"/{_token(part)}" for part in path)


def _token(part: str | int) -> str:
    if isinstance(part, int):
        return str(part)
    is_like_an_index = part.isascii() and part.isdigit()
    return f"~2{part}" if is_like_an_index else part.replace("~", "~0").replace("/", "~1")


@lru_cache(maxsize=10_000)  # the steps of a sweep have the same few paths, each a thousand times
def _names_of(path: KeyPath) -> tuple[str, str]:
    """A path as people read it, and as it is hashed."""
    return dotted(path), _pointer(path)


def _flattened(plain: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """A versioned value by its fields, so that a plan can name the one that changed."""
    # Lists stay whole: by their indexes, [x] and {"0": x} would be the same.
    if not isinstance(plain, dict) or not plain:
        yield path, plain
        return
    for key, item in plain.items():
        yield from _flattened(item, (*path, key))
