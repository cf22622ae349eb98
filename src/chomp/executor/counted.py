"""Which fields of a versioned config are part of a step's identity, and which are not.

A cosmetic field is not: to log more often must not train anew. One of the schedule is, since
another schedule makes another result. `setting(is_versioned=...)` says otherwise of one field.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from chomp.config.fields import is_config, is_of_one_start, is_unset_addition, is_versioned
from chomp.config.paths import KeyPath
from chomp.executor.class_names import CLASS, class_name
from chomp.executor.step import (
    LEAVES,
    InputName,
    OutputName,
    Versioned,
    children,
    inputs,
    markers,
)


def counted(value: Any, *, is_left_out: bool = False) -> Any:
    """What of a versioned value is part of an identity: configs as mappings, without some fields.

    Each names its class, too. An enum is its value and a path its text, as a file writes them.
    The output of another step counts wherever it stands, in a cosmetic field too: what a step is
    made from is part of what it is. `is_left_out`: nothing else counts here.
    """
    parts = None if isinstance(value, LEAVES) else _parts(value)
    if parts is None:
        return value
    kept = {
        name: counted(child, is_left_out=is_left_out or not counts)
        for name, child, counts in parts
        if (counts and not is_left_out) or any(inputs(child))
    }
    if is_config(value) and not is_left_out:
        return {CLASS: class_name(value), **kept}
    return list(kept.values()) if isinstance(value, list | tuple) else kept


def uncounted(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, bool]]:
    """The paths of fields that no identity counts, and whether each is asked of one start."""
    if isinstance(value, OutputName | InputName):
        return  # another step's fields are that step's business
    if isinstance(value, Versioned):
        yield from uncounted(value.value, path)
        return
    fields = {each.name: each for each in dataclasses.fields(value)} if is_config(value) else {}
    for part, child in children(value):
        field = fields.get(str(part))
        if field is None or is_versioned(field):
            if not isinstance(child, LEAVES):
                yield from uncounted(child, (*path, part))
        # A marker counts by itself, and where outputs lie is no difference.
        elif not any(True for _ in markers(child)):
            yield (*path, part), is_of_one_start(field)


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
