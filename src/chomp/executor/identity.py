"""What makes a step that step and no other.

Identity = name, versioned values, and the identities of dependencies, as canonical JSON, hashed.
The prefix, the machine, the order of fields and everything not versioned stay out of it. A pin
lets one identity count as another, for the step itself and for all that is made from it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chomp.config import fingerprint
from chomp.config.paths import KeyPath, dotted
from chomp.config.plain import plain_value
from chomp.errors import ConfigError
from chomp.executor.counted import counted
from chomp.executor.order import in_order
from chomp.executor.step import (
    ExecutorStep,
    InputName,
    OutputName,
    Versioned,
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
        values: dict[str, Any] = {}
        for path, marker in markers(step.config):
            # Where a step writes says nothing about what it makes, unless it is marked so.
            if not isinstance(marker, OutputName):
                value = counted(marker.value) if isinstance(marker, Versioned) else marker
                values |= _flattened(plain_part(step, replaced(value, self._meaning), path), path)
        own = fingerprint({"name": step.name, "config": values})[:HASH_DIGITS]
        title = self._pins.get(f"{step.name}-{own}", own)
        return Identity(title[-HASH_DIGITS:], values, _needed(self._inputs[step]), own)

    def _named_by(self, step: ExecutorStep) -> list[ExecutorStep]:
        """The steps that the config of `step` points to, those too that it does not wait for."""
        self._inputs[step] = list(inputs(step.config))
        return [name.step for name in self._inputs[step] if name.step is not None]

    def _meaning(self, marker: InputName | OutputName) -> str:
        """What a path means, never where it is: the step that makes it, or its own text."""
        if isinstance(marker, OutputName):
            base = "<output>"
        elif marker.step is None:
            base = "<prefix>"
        else:
            base = f"{marker.step.name}-{self._known[marker.step].hash}"
        return f"{base}/{marker.sub}" if marker.sub else base


def dependencies_of(step: ExecutorStep) -> tuple[ExecutorStep, ...]:
    """The steps whose output has to be there for `step`, each once."""
    return _needed(inputs(step.config))


def plain_part(step: ExecutorStep, value: Any, path: KeyPath = ()) -> Any:
    """A part of a step's config as plain data; `ConfigError` with step and path if it has none."""
    try:
        return plain_value(value, path)
    except ConfigError as error:
        raise ConfigError(f"step {step.name!r}: {error}") from error


def _needed(names: Iterable[InputName]) -> tuple[ExecutorStep, ...]:
    needed = (name.step for name in names if name.is_needed)
    return tuple(dict.fromkeys(each for each in needed if each is not None))


def _flattened(plain: Any, path: KeyPath) -> Iterator[tuple[str, Any]]:
    """A versioned value by dotted paths, so that a plan can name the field that changed."""
    # Lists stay whole: by their indexes, [x] and {"0": x} would be the same.
    if not isinstance(plain, dict) or not plain:
        yield dotted(path), plain
        return
    for key, item in plain.items():
        yield from _flattened(item, (*path, key))
