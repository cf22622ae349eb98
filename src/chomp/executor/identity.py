"""What makes a step that step and no other, and pins: identities that count as another one.

Identity = name, versioned values, and the identities of dependencies, as canonical JSON, hashed
with the places where paths and class names stand: a text that only reads like one is another value.
The prefix, the machine, the order of fields and everything not versioned stay out of it.
"""

import dataclasses
import functools
import re
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
from chomp.errors import ConfigError, LaunchError, StorageError
from chomp.executor.status import read_info, read_status
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
from chomp.storage import (
    FileLock,
    exists,
    is_folder,
    join,
    make_folder,
    normalise,
    read_json,
    write_json_atomic,
)

# 48 bits: a collision among a million versions of one name has a chance of 1 in 500.
HASH_DIGITS = 12
# No field can have these names, but a key of a mapping can: `ClassName` tells them apart.
CLASS = "<class>"
MODULE = "<module>"
PINS = ".executor_pins.json"
_PINS_LOCK = ".executor_pins_lock"
_PATIENCE_S = 30.0  # a process that holds the lock writes one small file
_TITLE = re.compile(rf"(?P<name>.+)-(?P<hash>[0-9a-f]{{{HASH_DIGITS}}})")


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

    def _meaning(self, marker: InputName | OutputName) -> list[str]:
        """What a path means, and not where it is: the step that makes it, or its own text."""
        kind = ["output"]
        if isinstance(marker, InputName):
            kind = ["prefix"]
            if marker.step is not None:
                kind = ["step", f"{marker.step.name}-{self._known[marker.step].hash}"]
        return [*kind, marker.sub] if marker.sub else kind

    def _text_of(self, marker: InputName | OutputName) -> str:
        """What a path means, as people read it."""
        kind, *parts = self._meaning(marker)
        return "/".join(parts if kind == "step" else [f"<{kind}>", *parts])

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

    Each names its class: a run of `AdamW(lr=1)` is not one of `Lion(lr=1)`. Cosmetic fields do not
    count (logging more often must not train again), those of the schedule do, and
    `setting(is_versioned=...)` changes this for one field. The output of another step counts
    wherever it stands; `is_left_out`: nothing else counts here.
    """
    parts: list[tuple[Any, Any, bool]]  # name, value, whether it counts
    if isinstance(value, (*LEAVES, OutputName, InputName)):
        return value
    if is_config(value):
        fields = {field.name: field for field in dataclasses.fields(value)}
        parts = [
            (name, each, is_versioned(fields[str(name)]))
            for name, each in children(value)
            if not is_unset_addition(fields[str(name)], each)
        ]
    elif isinstance(value, Mapping):
        # By the keys themselves, which are looked at when they become plain data.
        parts = [(key, each, True) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(index, each, True) for index, each in enumerate(value)]
    else:
        return value
    kept = {
        name: hashed_fields(child, is_left_out=is_left_out or not counts)
        for name, child, counts in parts
        if (counts and not is_left_out) or any(inputs(child))
    }
    if is_config(value) and not is_left_out:
        return {CLASS: ClassName(type(value).__qualname__), **kept}
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
    """The name of a config's class, with those of the classes and functions it is defined in.

    A type of its own: no config holds one by itself.
    """

    __slots__ = ()


def with_class_names(value: Any) -> Any:
    """`value` with each config as a mapping that names class and module; the rest as it is."""
    if isinstance(value, LEAVES):
        return value
    if is_config(value):
        fields = {str(name): with_class_names(each) for name, each in children(value)}
        return {
            CLASS: ClassName(type(value).__qualname__),
            MODULE: _module_name(type(value).__module__),
            **fields,
        }
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


def _module_name(name: str) -> str:
    """What Python calls a module's file inside its package: the same however it was loaded.

    A launch file is `__main__` as a command, and has a made-up name where another one loaded it.
    """
    file = getattr(sys.modules.get(name), "__file__", None)
    return name if file is None else _dotted_name(file)


@functools.cache  # asked for each config of each step, and there are few files
def _dotted_name(file: str) -> str:
    path = Path(file).resolve()
    parts = [] if path.stem == "__init__" else [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").is_file():
            break
        parts.insert(0, folder.name)
    return ".".join(parts) or path.stem


# ---- Pins -------------------------------------------------------------------------------------
#
# For a change that a hash sees and that does not matter: a renamed field, a default written out.
# `<prefix>/.executor_pins.json` maps the title (name and hash) of the identity that would be made
# anew to that of the result that is used instead, for every plan below the prefix.


def identities_at(prefix: str) -> Identities:
    """Identities of steps whose results are below the prefix: with its pins."""
    pins = read_pins(prefix)
    return Identities({title: _end_of(title, pins) for title in pins})


def read_pins(prefix: str) -> dict[str, str]:
    """What was pinned: titles, and the title that each counts as."""
    path = join(prefix, PINS)
    if not exists(path):
        return {}
    found = read_json(path)
    is_fine = isinstance(found, dict) and all(
        isinstance(title, str) and _TITLE.fullmatch(title) for title in [*found, *found.values()]
    )
    # A cycle, which can only have been written by hand, would be followed for ever.
    if not is_fine or any(_end_of(title, found) == title for title in found):
        raise StorageError(
            f"{path}, which does not hold pins",
            allowed='a JSON mapping such as {"tokens-<hash>": "tokens-<hash>"}, without cycles',
            fix="correct the file, or remove it: then nothing is pinned",
        )
    pins: dict[str, str] = found
    return pins


def add_pin(prefix: str, kept: str, other: str) -> tuple[str, str]:
    """From now on the identity `other` counts as `kept`, whose result is there; both titles.

    Each is a title or an output folder. Raises `LaunchError` for a pair that cannot be one result.
    """
    kept_title, other_title = title_of(prefix, kept), title_of(prefix, other)
    folder = kept if is_folder(kept) else join(prefix, kept_title)
    status = read_status(folder)
    if status is None or status.state != "SUCCESS" or not kept_title.endswith(status.identity):
        found = "nothing is there" if status is None else f"it is {status.state}"
        raise LaunchError(
            f"{kept_title} as the result that is kept, but in {folder} {found}",
            allowed="a step that is done: SUCCESS",
            fix="run it first, or give the two the other way round",
        )
    make_folder(prefix)
    with FileLock.acquire(join(prefix, _PINS_LOCK), timeout_s=_PATIENCE_S):
        pins = read_pins(prefix)
        new = {**pins, other_title: kept_title}
        fault, fix = "", "see chomp pin --list"
        if kept_title[: -HASH_DIGITS - 1] != other_title[: -HASH_DIGITS - 1]:
            fault, fix = "two steps of different names", "pin versions of one step"
        elif pins.get(other_title, kept_title) != kept_title:
            fault = f"{other_title} counts as {pins[other_title]} already"
            fix = f"chomp pin --remove {other_title} first"
        elif _end_of(other_title, new) == other_title:
            fault = "it would count as itself, or in a circle"
        if fault:
            raise LaunchError(
                f"{other_title} is to count as {kept_title}, but: {fault}",
                allowed="two identities of one name, of which one is kept",
                fix=fix,
            )
        write_json_atomic(join(prefix, PINS), new)
    return kept_title, other_title


def remove_pin(prefix: str, other: str) -> str:
    """Let the identity `other` count as itself again; its title. `LaunchError` if it does."""
    title = title_of(prefix, other)
    make_folder(prefix)
    with FileLock.acquire(join(prefix, _PINS_LOCK), timeout_s=_PATIENCE_S):
        pins = read_pins(prefix)
        if title not in pins:
            raise LaunchError(
                f"{title}, which counts as itself",
                allowed=f"one of {', '.join(sorted(pins)) or 'none: nothing is pinned'}",
                fix="see chomp pin --list",
            )
        del pins[title]
        write_json_atomic(join(prefix, PINS), pins)
    return title


def title_of(prefix: str, text: str) -> str:
    """Name and hash of what was given: a title, or the output folder of a step, made or not."""
    info = read_info(text) if is_folder(text) else None
    if info is not None:
        return f"{info.name}-{info.identity}"
    # As a plan shows the folder of a step that has not run.
    title = normalise(text).removeprefix(f"{normalise(prefix)}/")
    if _TITLE.fullmatch(title) is None:
        raise LaunchError(
            f"{text}, which names no step",
            allowed=f"name-hash with {HASH_DIGITS} hexadecimal digits, or an output folder",
            fix="copy the path that --plan shows, or the folder's name below the prefix",
        )
    return title


def _end_of(title: str, pins: Mapping[str, str]) -> str:
    """Where the pins lead from a title; the title itself where they lead in a circle."""
    here, seen = pins[title], {title}
    while here in pins and here not in seen:
        seen.add(here)
        here = pins[here]
    return title if here in seen else here
