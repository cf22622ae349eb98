"""What makes a step that step and no other.

Identity = name, versioned values, and the identities of dependencies, as canonical JSON, hashed.
The prefix, the machine, the order of fields and everything not versioned stay out of it.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from chomp.config import fingerprint
from chomp.config.paths import KeyPath, dotted
from chomp.config.plain import plain_value
from chomp.errors import ConfigError
from chomp.executor.order import in_order
from chomp.executor.step import (
    ExecutorStep,
    InputName,
    OutputName,
    inputs,
    markers,
    replaced,
    unversioned,
)

# 48 bits: a collision among a million versions of one name has a chance of 1 in 500.
HASH_DIGITS = 12


@dataclass(frozen=True)
class Identity:
    """The identity of a step: a hash, and the readable values behind it."""

    hash: str
    values: dict[str, Any]  # dotted path -> versioned value or dependency
    dependencies: tuple[ExecutorStep, ...]


class Identities:
    """Identities of steps, each computed once; finds cycles."""

    def __init__(self) -> None:
        # By the step itself and not its id(), which Python gives to another object later.
        self._known: dict[ExecutorStep, Identity] = {}

    def of(self, step: ExecutorStep) -> Identity:
        """The identity of `step`, computing those of its dependencies first."""
        if step not in self._known:
            for each in in_order([step], dependencies_of):
                if each not in self._known:
                    self._known[each] = self._identity(each)
        return self._known[step]

    def steps(self) -> list[ExecutorStep]:
        """Every step seen so far, dependencies first."""
        return list(self._known)

    def _identity(self, step: ExecutorStep) -> Identity:
        values: dict[str, Any] = {}
        left_out = {dotted(path) for path in unversioned(step.config)}
        for path, marker in markers(step.config):
            # Where a step writes says nothing about what it makes, unless it is marked so.
            if not isinstance(marker, OutputName):
                plain = plain_part(step, replaced(marker, self._meaning), path)
                values |= _flattened(plain, path, left_out)
        hashed = fingerprint({"name": step.name, "config": values})[:HASH_DIGITS]
        return Identity(hashed, values, dependencies_of(step))

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
    """The steps whose output the config of `step` points to, each once."""
    return tuple(dict.fromkeys(name.step for name in inputs(step.config) if name.step is not None))


def plain_part(step: ExecutorStep, value: Any, path: KeyPath = ()) -> Any:
    """A part of a step's config as plain data; `ConfigError` with step and path if it has none."""
    try:
        return plain_value(value, path)
    except ConfigError as error:
        raise ConfigError(f"step {step.name!r}: {error}") from error


def _flattened(plain: Any, path: KeyPath, left_out: Container[str]) -> Iterator[tuple[str, Any]]:
    """A versioned value by dotted paths, so that a plan can name the field that changed."""
    if dotted(path) in left_out:
        return
    # Lists stay whole: by their indexes, [x] and {"0": x} would be the same.
    if not isinstance(plain, dict) or not plain:
        yield dotted(path), plain
        return
    for key, item in plain.items():
        yield from _flattened(item, (*path, key), left_out)
