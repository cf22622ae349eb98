"""The field that a dotted name means, by any of its spellings."""

from collections.abc import Mapping
from typing import Any

from chomp.config.elsewhere import rerouted
from chomp.config.fields import MARKS, Mark, is_config, mark_of, settings_by_spelling
from chomp.config.paths import KeyPath, split_override


def named_field(config: Any, name: str) -> tuple[KeyPath, Mark] | None:
    """The path of a field as its config spells it, and the loosest mark on the way to it.

    Aliases and names in other sections work (`train.steps`, `train.eval_every`), and a key with a
    dot in it is quoted, as in overrides. None if the config has no such field.
    """
    split = split_override(f"{name}=")
    here: Any = config
    path: KeyPath = ()
    mark: Mark = "identity"
    parts = split[0] if split else ("",)
    while parts:
        if is_config(here):
            parts, _ = rerouted(type(here), parts)
        part, parts = parts[0], parts[1:]
        if is_config(here):
            item = settings_by_spelling(type(here)).get(part)
            if item is None:
                return None
            mark = max(mark, mark_of(item.field), key=MARKS.index)
            path, here = (*path, item.name), getattr(here, item.name)
        elif isinstance(here, Mapping) and part in here:
            path, here = (*path, part), here[part]
        elif isinstance(here, list | tuple) and part.isdecimal() and int(part) < len(here):
            path, here = (*path, int(part)), here[int(part)]
        else:
            return None
    return path, mark
