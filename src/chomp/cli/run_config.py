"""The typed config of a run that is there already, and what may still be changed about it."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from chomp.cli.run_template import RunTemplate
from chomp.errors import ConfigError, message
from chomp.tracking.run_files import DERIVED, RESOLVED_CONFIG

if TYPE_CHECKING:  # for annotations alone
    from chomp.checkpoint.places import CheckpointPlace
    from chomp.config import Difference

# Sections that say what is done beside training. Another value of theirs is no other model.
_BESIDE_TRAINING = ("eval", "samples", "logging", "checkpoint", "mesh")


class RunConfig(NamedTuple):
    """A run's config after overrides, and as it was recorded."""

    config: Any  # the template's GrugRunConfig
    changed: dict[str, Any]  # the fields that overrides have changed, and their values
    own: Any  # the same config without overrides
    content: dict[str, Any]  # the mapping that it was read from


def run_config(
    template: RunTemplate,
    place: CheckpointPlace,
    overrides: Sequence[str],
    may_change: Sequence[str],
) -> RunConfig:
    """The config of a run with overrides.

    Its `output_path` is where the run folder is now. Raises `ConfigError` for an override of
    anything that no pattern of `may_change` names, or of a whole section to null.
    """
    from chomp.config import apply_overrides, config_difference, config_from_mapping

    content, source = _recorded(place)
    own = config_from_mapping(template.part("GrugRunConfig"), content, source=source)
    if place.run is not None:
        # Where it was trained may be another machine.
        own = replace(own, output_path=place.run)
    config = apply_overrides(own, overrides)
    differences = config_difference(own, config)
    # By what has changed and not by what was typed: an alias or a whole section says it too.
    for item in differences:
        is_known = any(fnmatchcase(item.path, pattern) for pattern in may_change)
        # A command that is given turns nothing off: what it does was asked for.
        is_turned_off = item.after is None and isinstance(item.before, dict)
        if is_turned_off or not is_known:
            raise _refusal(item, may_change)
    return RunConfig(config, {item.path: item.after for item in differences}, own, content)


def config_changes(saved: dict[str, Any], recorded: RunConfig) -> list[Difference]:
    """What differs between a checkpoint's config and the one that its run folder has now.

    Without what the run's place decides, and what only redaction has made different.
    """
    from chomp.config import config_difference
    from chomp.storage.secrets import without_secrets

    # In the mapping too: a field that an older version did not write has a default in both.
    written = {item.path for item in config_difference(saved, recorded.content)}
    return [
        item
        for item in config_difference(saved, recorded.own)
        if item.path in written
        and item.path != "output_path"
        # Checkpoints have a path below the output prefix relative to it.
        and not (
            isinstance(item.before, str)
            and item.before.startswith("<prefix>")
            and str(item.after).endswith(item.before.removeprefix("<prefix>"))
        )
        and without_secrets(item.before) != without_secrets(item.after)
    ]


def _recorded(place: CheckpointPlace) -> tuple[dict[str, Any], str]:
    """The config as the run folder has it, or else the checkpoint, and where that was."""
    from chomp.checkpoint import StepFolder
    from chomp.checkpoint.layout import unreadable_error
    from chomp.checkpoint.places import some_at
    from chomp.storage import exists, join, read_json

    location = None if place.run is None else join(place.run, RESOLVED_CONFIG)
    if location is not None and exists(location):
        content = read_json(location)
        if not isinstance(content, dict):
            raise ConfigError(
                message(
                    given=f"{location}, which holds a {type(content).__name__}",
                    allowed="the config of a run, as training wrote it",
                    fix="bring back a copy of the file, or remove it: checkpoints have one too",
                )
            )
        return {key: value for key, value in content.items() if key != DERIVED}, location
    # A checkpoint that was copied out of its run: its metadata has the config it was saved under.
    found = some_at(place)
    readable = [item for item in found if isinstance(item, StepFolder)]
    if not readable:
        raise unreadable_error(found[0])  # type: ignore[arg-type]  # the others are unreadable
    return readable[0].metadata.config, readable[0].path


def _refusal(item: Difference, may_change: Sequence[str]) -> ConfigError:
    is_trained = item.mark == "identity" and item.path.split(".")[0] not in _BESIDE_TRAINING
    why = "part of what was trained" if is_trained else "without effect on this command"
    return ConfigError(
        message(
            given=f"-o {item.path}={item.after}, which is {why}",
            allowed=f"changes of {', '.join(may_change)}",
            fix=f"leave it out: the run has {item.before}"
            + (", and another value needs another run" if is_trained else ""),
        )
    )
