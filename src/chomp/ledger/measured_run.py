"""A run folder as one side of a comparison: its seeds, its data, what it was made with.

Everything is told by files that the run itself left. What a file does not tell is None here, and
whoever compares says so rather than guessing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from chomp.config.fingerprint import fingerprint
from chomp.errors import StorageError
from chomp.executor import read_status
from chomp.executor.status import StepInfo, read_info
from chomp.report.record import RunRecord, read_record
from chomp.storage import exists, is_folder, join, list_folder, name_of, read_bytes, read_json
from chomp.storage.files import MAX_TEXT_BYTES
from chomp.tracking import metrics
from chomp.tracking.run_files import DERIVED, TEMPLATE
from chomp.variants.last_run import variant_of

# As `chomp.checkpoint` lays them out; that room imports JAX, which reading one file does not need.
_CHECKPOINTS, _METADATA = "checkpoints", "metadata.json"
_STEP_FOLDER = re.compile(r"step-(\d+)")
# Parts of a config that say which of several equal runs it is, where things lie, and what is
# looked at on the way.
_NO_SETTINGS = ("run_id", "output_path", "logging", "checkpoint", "samples", "eval", DERIVED)
_NO_TRAINER_SETTINGS = (
    *("seed", "data_seed", "log_every", "watch", "profiler", "log_dir"),
    *("load_checkpoint", "allow_changes", "allow_fresh_start"),
)
# Of what was built the last name says what it is. Of what somebody chose it does not (`*.txt`,
# `step-100`), so a mark of the whole goes with it: other places stay other settings.
_BUILT = ("path", "train_store", "validation_store")
_CHOSEN = ("paths", "data_files", "file", "initialize_from", "load_checkpoint_path")
_HUB = "hf"  # the kind of source whose `path` is a name, such as allenai/c4


@dataclass(frozen=True)
class MeasuredRun:
    """One run, read once."""

    record: RunRecord
    info: StepInfo | None  # None: not made by the executor
    host: str | None
    checkpoint: Mapping[str, Any]  # metadata of the newest checkpoint; empty where none is left

    @property
    def folder(self) -> str:
        """Where it is."""
        return self.record.folder

    @property
    def name(self) -> str:
        """What its folder is called, which is all that a result file may say of a place."""
        return name_of(self.folder)

    @property
    def config(self) -> Mapping[str, Any]:
        """Its resolved config; empty where there is none."""
        return self.record.config or {}

    @property
    def variant(self) -> str:
        """The template it was made with, by what the executor recorded; else the run's own id."""
        return self.record.name if self.info is None else variant_of(self.info)

    @property
    def seeds(self) -> tuple[int, int] | None:
        """The seed of the weights and that of the data's order; None where none is recorded."""
        seed = self.config.get("trainer", {}).get("seed")
        data_seed = self.derived("train", "data_seed_effective")
        return None if seed is None else (seed, seed if data_seed is None else data_seed)

    @property
    def outcome(self) -> str | None:
        """How its last attempt ended; None: it runs still, or was killed."""
        return self.record.attempts[-1].outcome if self.record.attempts else None

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions, devices and commit, by its newest checkpoint and its record, which is newer."""
        found = self.checkpoint.get("environment")
        kept = found if isinstance(found, Mapping) else {}
        start = metrics.name_from(metrics.ENVIRONMENT, "x").removesuffix("x")
        told = self.record.summary.items()
        return {**kept, **{key[len(start) :]: each for key, each in told if key.startswith(start)}}

    @property
    def commit(self) -> str | None:
        """The commit it ran, `-dirty` where files were not as in it; None where it told none."""
        found = self.environment.get("commit")
        return found if isinstance(found, str) else None

    @property
    def device(self) -> str | None:
        """What its seconds are seconds of. Of CPUs the host tells more than the kind."""
        kind = self.record.summary.get(metrics.DEVICE_KIND)
        if not isinstance(kind, str):
            return None
        count = self.environment.get("devices")
        times = f"{count} x " if isinstance(count, int) and count > 1 else ""
        return f"{times}{kind}" + (f" of {self.host}" if kind == "cpu" and self.host else "")

    @cached_property
    def template_hash(self) -> str | None:
        """Fingerprint of the template's own files, as the run kept them."""
        if self.info is not None and self.info.sources:
            return fingerprint(self.info.sources)
        folder = join(self.folder, TEMPLATE)
        kept = list_folder(folder) if is_folder(folder) else []
        files = [name for name in kept if name.endswith(".py")]
        # As the executor has them, so that both ways to run a template give one hash.
        sources = {
            name: sha256(read_bytes(join(folder, name), max_bytes=MAX_TEXT_BYTES)).hexdigest()
            for name in files
        }
        return fingerprint(sources) if sources else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its config without seeds and places: equal for the runs of one side."""
        kept = {key: value for key, value in self.config.items() if key not in _NO_SETTINGS}
        trainer = kept.get("trainer", {})
        kept["trainer"] = _without_places(
            {key: value for key, value in trainer.items() if key not in _NO_TRAINER_SETTINGS}
        )
        # Stores and tokenizers lie wherever they were built; their names say what they are.
        kept["data"] = _without_places(kept.get("data", {}))
        return kept

    @cached_property
    def settings_hash(self) -> str:
        """One text for runs that differ by their seed alone."""
        return fingerprint({"settings": self.settings, "template": self.template_hash})

    def derived(self, *keys: str) -> Any:
        """A value that follows from the config; None where this run has not recorded it."""
        found: Any = self.config.get(DERIVED)
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def measured_run(folder: str) -> MeasuredRun:
    """A run folder read. What is half written is left out, and in the record's `problems`."""
    record = read_record(folder, has_begun=False)
    try:
        info, status = read_info(record.folder), read_status(record.folder)
    except StorageError:  # not the run's own files: it can be compared without them
        info = status = None
    host = None if status is None else status.host
    return MeasuredRun(record, info, host, _newest_checkpoint(record.folder))


def _newest_checkpoint(folder: str) -> Mapping[str, Any]:
    """What the newest checkpoint says of itself; empty where none can be read."""
    place = join(folder, _CHECKPOINTS)
    found = {
        int(match[1]): match[0]
        for match in map(_STEP_FOLDER.fullmatch, list_folder(place) if is_folder(place) else ())
        if match
    }
    for step in sorted(found, reverse=True):
        location = join(place, found[step], _METADATA)
        try:
            content = read_json(location) if exists(location) else None
        except StorageError:
            continue  # a damaged one; an older one says the same
        if isinstance(content, dict):
            return content
    return {}


def _without_places(value: Any) -> Any:
    """Plain data with every path cut to its last name."""
    if isinstance(value, Mapping):
        is_hub = value.get("kind") == _HUB
        return {
            key: item if is_hub and key == "path" and not _is_place(item) else _cut(key, item)
            for key, item in value.items()
        }
    return [_without_places(item) for item in value] if isinstance(value, list) else value


def _cut(key: str, item: Any) -> Any:
    if key in _CHOSEN and isinstance(item, list):
        return [_cut(key, each) for each in item]
    if key in _CHOSEN and isinstance(item, str):
        return f"{name_of(item)} ({fingerprint(item)[:6]})"
    return name_of(item) if key in _BUILT and isinstance(item, str) else _without_places(item)


def _is_place(item: Any) -> bool:
    """Whether a dataset's name is a folder of this machine or an address."""
    return not isinstance(item, str) or item.startswith(("/", ".", "~")) or "://" in item
