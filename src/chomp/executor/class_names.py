"""The classes of configs, among their fields: two of equal fields are still two things.

Without it, a run of `AdamW(lr=1)` would be taken for one of `Lion(lr=1)`. An identity counts the
name alone, so that a class may move to another file. A record also has the module, by which two
classes of one name are told apart when a result is reused.
"""

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chomp.config.fields import is_config
from chomp.executor.step import LEAVES, children

# No field can have these names. A key of a mapping can, so what an identity reads at the first has
# a type of its own.
CLASS = "<class>"
MODULE = "<module>"


class ClassName(str):
    """The name of a config's class: a text that no config holds by itself."""

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
