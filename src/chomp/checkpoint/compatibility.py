"""Whether a checkpoint is of this run, told by its metadata before any array is read.

What differs comes as one table. Identity makes another run and is refused. Schedule continues the
same run otherwise, and has to be allowed field by field, by the names people write for them.
Cosmetic changes nothing that is trained.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from chomp.checkpoint.format import CheckpointMetadata, StepFolder
from chomp.config import (
    MISSING,
    Difference,
    config_difference,
    config_from_mapping,
    config_hash,
    unset_additions,
)
from chomp.config.fields import KeyPath, dotted, is_config, mark_of
from chomp.config.messages import did_you_mean, nearest
from chomp.config.overrides import find_field
from chomp.errors import CheckpointError, ConfigError, require
from chomp.storage.secrets import without_secrets

# Of `environment`: what decides the order of sums, and with it the last bits of every result.
_EXACT_WITH = ("devices", "processes", "cores", "device_kind", "jax", "jaxlib")
_HASH_CHARACTERS = 12  # of a fingerprint, in messages
# A cell longer than this is cut: the field's name says where to look.
_MAX_CELL = 48

_log = logging.getLogger(__name__)


def require_same_run(
    found: StepFolder,
    about: CheckpointMetadata,
    *,
    config: Any,
    allowed: Sequence[str] = (),
    data_offset_at: Callable[[int], int] | None = None,
) -> None:
    """Raise `CheckpointError` unless `about` and the typed `config` may go on from a checkpoint.

    `allowed` are the fields of `allowed_changes`. `data_offset_at` gives the examples that the
    present batch sizes take before a step: where it differs, going on would repeat or skip data.
    """
    saved = found.metadata
    changes = _config_changes(saved, about, config)
    for name in ("data_fingerprint", "tokenizer_hash"):
        if getattr(saved, name) != getattr(about, name):
            changes.append(_identity(name, getattr(saved, name), getattr(about, name)))
    if data_offset_at is not None and (now := data_offset_at(saved.step)) != saved.data_offset:
        name = f"examples before step {saved.step}"
        changes.append(Difference(path=name, before=saved.data_offset, after=now, mark="identity"))
    identity, schedule, cosmetic = (
        [change for change in changes if change.mark == mark]
        for mark in ("identity", "schedule", "cosmetic")
    )
    for change in cosmetic:
        _log.debug("%s: %s", found.path, change)
    if identity:
        raise CheckpointError(
            f"{found.path} was saved by another run:\n{_table(identity + schedule)}",
            allowed="the model, data and data order that the run started with",
            fix="undo the changes marked identity, or start a new run in another folder",
        )
    covered = tuple(f"{name}." for name in allowed)
    unnamed = [change.path for change in schedule if not f"{change.path}.".startswith(covered)]
    if unnamed:
        # Each field once, lists as a whole.
        named = dict.fromkeys(re.sub(r"\.\d+(\..*)?$", "", path) for path in unnamed)
        flags = " ".join(f"--allow {name}" for name in named)
        raise CheckpointError(
            f"{found.path} was saved with another schedule:\n{_table(schedule)}",
            allowed="the schedule that the run started with, or changes named by --allow",
            fix=f"undo them, or continue with {flags}",
        )
    if schedule:
        _log.warning("going on from %s with changes:\n%s", found.path, _table(schedule).rstrip())


def require_same_arrays(
    path: str,
    saved: Mapping[str, Mapping[str, Any]],
    wanted: Mapping[str, Any],
    *,
    allowed: str = "a checkpoint of exactly this model and optimizer",
    fix: str = "restore with the template that saved it (the run folder's template/)",
) -> None:
    """Raise `CheckpointError` with one table unless names, shapes and dtypes are equal.

    `saved` is the `arrays` of a checkpoint's metadata; `wanted` has arrays or their abstract forms.
    `allowed` and `fix` go into the message.
    """
    before = {name: f"{tuple(array['shape'])} {array['dtype']}" for name, array in saved.items()}
    now = {name: f"{leaf.shape} {leaf.dtype}" for name, leaf in wanted.items()}
    rows = [
        (name, before.get(name, "(missing)"), now.get(name, "(missing)"))
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
    if rows:
        raise CheckpointError(
            f"{path} holds other arrays:\n{in_columns(('array', 'saved', 'now'), rows)}",
            allowed=allowed,
            fix=fix,
        )


def allowed_changes(config: Any, names: Sequence[str]) -> tuple[str, ...]:
    """The dotted paths that `--allow` names, each spelled as the config spells it.

    Aliases work (`train.steps`). Raises `ConfigError` for a name that is no field, or one that is
    part of the run's identity: no flag makes another run the same one.
    """
    paths = []
    known = [dotted(path) for path in _schedule_paths(config)]
    allowed = f"fields of the schedule: {', '.join(known) or 'this config has none'}"
    for name in names:
        found = find_field(config, name)
        if found is None:
            near = nearest(name, known)
            raise ConfigError(
                f"--allow {name}: this run's config has no such field{did_you_mean(near)}",
                allowed=allowed,
                fix=f"write --allow {near}" if near else f"remove --allow {name}",
            )
        path, mark = found
        # A cosmetic field needs no permission, but others that read the flag may want its name.
        require(
            mark != "identity",
            f"--allow {name}: this field is part of the run's identity",
            allowed=allowed,
            fix="undo the change, or start a new run in another folder",
        )
        paths.append(dotted(path))
    return tuple(paths)


def warn_unless_exact(found: StepFolder, about: CheckpointMetadata) -> None:
    """Say so where the machine is another one than before, so that sums may round otherwise."""
    before, now = found.metadata.environment, about.environment
    rows = [
        (name, before[name], now[name])
        for name in _EXACT_WITH
        if name in before and name in now and before[name] != now[name]
    ]
    meshes = found.metadata.mesh, about.mesh
    if all(meshes) and meshes[0] != meshes[1]:
        texts = [
            ", ".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1) or "one device"
            for mesh in meshes
        ]
        rows.insert(0, ("mesh", texts[0], texts[1]))
    if rows:
        _log.warning(
            "the state of %s is restored to the bit, but what follows is not bit for bit what the "
            "old machine would have computed:\n%s",
            found.path,
            in_columns(("", "saved", "now"), rows).rstrip(),
        )


def in_columns(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of lines that each begin with two spaces; the last ends with a line break."""
    texts = [[v if isinstance(v, str) else repr(v) for v in row] for row in (header, *rows)]
    cells = [
        [t if len(t) <= _MAX_CELL else f"{t[: _MAX_CELL - 3]}..." for t in row] for row in texts
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "".join(f"  {line}\n" for line in lines)


def _config_changes(
    saved: CheckpointMetadata, about: CheckpointMetadata, config: Any
) -> list[Difference]:
    # Both mappings are without secrets, which only the typed config has; that one has the marks.
    marks = {change.path: change.mark for change in config_difference(saved.config, config)}
    added = unset_additions(config)  # a version of chomp that did not have them saved none
    changes = [
        replace(change, mark=marks.get(change.path, "identity"))
        # Redacted again: an earlier version may not have known a secret that this one knows.
        for change in config_difference(without_secrets(saved.config), about.config)
        if change.before is not MISSING or change.path not in added
    ]
    hashes = [saved.config_hash]
    with suppress(ConfigError):  # this version of chomp cannot read it
        # By the present marks: an earlier version may have counted other fields as identity.
        hashes.append(config_hash(config_from_mapping(type(config), saved.config)))
    is_explained = any(change.mark == "identity" for change in changes)
    if about.config_hash not in hashes and not is_explained:
        # A secret, which no mapping holds, or a field that is gone.
        changes.append(_identity("config_hash", saved.config_hash, about.config_hash))
    return changes


def _identity(name: str, saved: str, now: str) -> Difference:
    before, after = (text[:_HASH_CHARACTERS] or "(none)" for text in (saved, now))
    return Difference(path=name, before=before, after=after, mark="identity")


def _table(changes: Iterable[Difference]) -> str:
    rows = [(change.path, change.before, change.after, change.mark) for change in changes]
    return in_columns(("field", "saved", "now", "class"), rows)


def _schedule_paths(config: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    for field in fields(config) if is_config(config) else ():
        inner = (*path, field.name)
        mark = mark_of(field)
        if mark == "schedule":
            yield inner
        elif mark == "identity":  # below a cosmetic field nothing is stricter
            yield from _schedule_paths(getattr(config, field.name), inner)
