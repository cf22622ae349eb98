"""Which fields of a run a resume may change, by the names people write for them."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from chomp.config.fields import KeyPath, dotted, is_config, mark_of
from chomp.config.messages import did_you_mean, nearest
from chomp.config.overrides import find_field
from chomp.errors import require


def allowed_changes(config: Any, names: Sequence[str]) -> tuple[str, ...]:
    """The dotted paths that `--allow` names, each spelled as the config spells it.

    Aliases work (`train.steps`). Raises `ConfigError` for a name that is no field, or one that is
    part of the run's identity: no flag makes another run the same one.
    """
    return tuple(_field(config, name) for name in names)


def _field(config: Any, name: str) -> str:
    found = find_field(config, name)
    known = [dotted(path) for path in _schedule_paths(config)]
    near = None if found else nearest(name, known)
    require(
        found is not None,
        f"--allow {name}: this run's config has no such field{did_you_mean(near)}",
        allowed=f"fields of the schedule: {', '.join(known) or 'this config has none'}",
        fix=f"write --allow {near}" if near else f"remove --allow {name}",
    )
    assert found is not None, "as was just required"
    path, mark = found
    # A cosmetic field needs no permission here, but others that read the flag may want its name.
    require(
        mark != "identity",
        f"--allow {name}: this field is part of the run's identity",
        allowed=f"fields of the schedule: {', '.join(known) or 'this config has none'}",
        fix="undo the change, or start a new run in another folder",
    )
    return dotted(path)


def _schedule_paths(config: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    for field in fields(config) if is_config(config) else ():
        inner = (*path, field.name)
        mark = mark_of(field)
        if mark == "schedule":
            yield inner
        elif mark == "identity":  # below a cosmetic field nothing is stricter
            yield from _schedule_paths(getattr(config, field.name), inner)
