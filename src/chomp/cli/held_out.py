"""A run's own held-out stores: opened, and compared with what they held when it was trained."""

# ruff: noqa: PLC0415
# What is imported inside functions is what `chomp --help` does not need: it must answer at once.

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from chomp.cli.opened_run import OpenedRun
from chomp.errors import DataError, message
from chomp.tracking.run_files import DERIVED, RESOLVED_CONFIG

if TYPE_CHECKING:  # for annotations alone
    from chomp.data import EvalDataset, RowLimits

_log = logging.getLogger(__name__)


def held_out_datasets(run: OpenedRun, limits: RowLimits | None = None) -> list[EvalDataset]:
    """The run's held-out rows in the order of names; `DataError` for a store that is not there."""
    from chomp.data import build_eval_datasets

    for name, path in held_out_stores(run).items():
        _require_store(name, path)
    data, seq_len = run.config.data, run.config.trainer.seq_len
    return build_eval_datasets(data, run.tokenizer, seq_len=seq_len, limits=limits)


def held_out_stores(run: OpenedRun) -> dict[str, str]:
    """The folder of each component's held-out store, by name; one that has none is left out."""
    parts = run.config.data.components
    stores = {name: parts[name].validation_store for name in sorted(parts)}
    return {name: path for name, path in stores.items() if path is not None}


def known_stores(run: OpenedRun) -> dict[str, bool]:
    """Whether each store holds what it held when the run was trained; what differs is said.

    A run that did not write down what its stores held has nothing to compare: none is in it.
    """
    from chomp.data.store.token_store import read_manifest

    recorded, stores = _recorded_hashes(run), held_out_stores(run)
    known = {
        name: read_manifest(path).fingerprint() == recorded[name]
        for name, path in stores.items()
        if name in recorded
    }
    for name in (name for name, is_same in known.items() if not is_same):
        _log.warning(
            "the held-out store of %s at %s holds other data than when the run was trained: the "
            "numbers are not the run's own, and do not go into its record",
            *(name, stores[name]),
        )
    return known


def _require_store(name: str, path: str) -> None:
    from chomp.data.store.token_store import MANIFEST
    from chomp.storage import exists, is_local, join

    if exists(join(path, MANIFEST)):
        return
    is_relative = is_local(path) and not os.path.isabs(path)
    where = ", seen from the folder that the run was started in" if is_relative else ""
    raise DataError(
        message(
            given=f"component {name!r}, whose held-out store is at {path}{where}: there is none"
            + (" from here" if is_relative else ""),
            allowed="a run whose stores are where they were, or the place they are at now",
            fix=("run the command in that folder, or " if is_relative else "")
            + f"pass -o data.components.{name}.validation_store=PATH",
        )
    )


def _recorded_hashes(run: OpenedRun) -> dict[str, str]:
    """What the run wrote of its stores when it began, beside its config."""
    from chomp.storage import exists, join, read_json

    location = None if run.folder is None else join(run.folder, RESOLVED_CONFIG)
    content = read_json(location) if location is not None and exists(location) else {}
    for key in (DERIVED, "data", "held_out_hashes"):  # an older run has none of it
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}
