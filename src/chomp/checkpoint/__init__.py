"""Saving a run's state and finding it again.

`Checkpointer` saves as a run's config says; `restore_latest_or_initialize` gives the state a run
begins with; `load_weights` reads the weights alone. `inspect` and `export` look from outside.
"""

from chomp.checkpoint.format import (
    CheckpointMetadata,
    CheckpointPlace,
    DamagedCheckpoint,
    StepFolder,
    latest_checkpoint,
    list_checkpoints,
    place_of,
    read_step_folder,
    require_checkpoints_at,
)
from chomp.checkpoint.resume import (
    LoadedWeights,
    LoadOptions,
    WeightsName,
    all_weights,
    best_weights,
    load_weights,
    restore_checkpoint,
    restore_latest_or_initialize,
    these_weights,
)
from chomp.checkpoint.save import (
    CheckpointConfig,
    Checkpointer,
    KeepPolicy,
    SaveReport,
    save_step_checkpoint,
    save_temporary_checkpoint,
)

__all__ = [
    "CheckpointConfig",
    "CheckpointMetadata",
    "CheckpointPlace",
    "Checkpointer",
    "DamagedCheckpoint",
    "KeepPolicy",
    "LoadOptions",
    "LoadedWeights",
    "SaveReport",
    "StepFolder",
    "WeightsName",
    "all_weights",
    "best_weights",
    "latest_checkpoint",
    "list_checkpoints",
    "load_weights",
    "place_of",
    "read_step_folder",
    "require_checkpoints_at",
    "restore_checkpoint",
    "restore_latest_or_initialize",
    "save_step_checkpoint",
    "save_temporary_checkpoint",
    "these_weights",
]
