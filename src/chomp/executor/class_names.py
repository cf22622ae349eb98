"""The classes of configs, among their fields: two of equal fields are still two things.

Without it, a run of `AdamW(lr=1)` would be taken for one of `Lion(lr=1)`. By the name alone and
never the module, which is `__main__` where a launch file is the command, and another elsewhere.
"""

from collections.abc import Mapping
from typing import Any

from chomp.config.fields import is_config
from chomp.executor.step import LEAVES, children

# No field can have this name. A key of a mapping can, so what stands there has a type of its own.
CLASS = "<class>"


class ClassName(str):
    """The name of a config's class: a text that no config holds by itself."""

    __slots__ = ()


def class_name(config: object) -> ClassName:
    """The name of a config's class, with those of the classes and functions it is defined in."""
    return ClassName(type(config).__qualname__)


def with_class_names(value: Any) -> Any:
    """`value` with each config as a mapping that names its class first; the rest as it is."""
    if isinstance(value, LEAVES):
        return value
    if is_config(value):
        fields = {str(name): with_class_names(each) for name, each in children(value)}
        return {CLASS: class_name(value), **fields}
    if isinstance(value, Mapping):
        # By the keys themselves, which are looked at when they become plain data.
        return {key: with_class_names(each) for key, each in value.items()}
    return [with_class_names(each) for each in value] if isinstance(value, list | tuple) else value
