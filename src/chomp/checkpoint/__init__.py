"""Saving a run's state and finding it again.

`Checkpointer` saves as a run's config says; `restore_latest_or_initialize` gives the state a run
begins with; `load_weights` reads the weights alone. `inspect` and `export` look from outside.
"""

from chomp.checkpoint.arrays import AVERAGE, WEIGHTS, checked_arrays, named_leaves, within
from chomp.checkpoint.compatibility import in_columns
from chomp.checkpoint.format import (
    CheckpointMetadata,
    CheckpointPlace,
    DamagedCheckpoint,
    StepFolder,
    latest_checkpoint,
    list_checkpoints,
    place_of,
    problem_with_files,
    read_step_folder,
    require_checkpoints_at,
)
from chomp.checkpoint.resume import (
    LoadedWeights,
    LoadOptions,
    WeightsName,
    all_weights,
    best_weights,
    described,
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
from chomp.tracking.run_files import CHECKPOINTS

__all__ = [
    "AVERAGE",
    "CHECKPOINTS",
    "WEIGHTS",
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
    "checked_arrays",
    "described",
    "in_columns",
    "latest_checkpoint",
    "list_checkpoints",
    "load_weights",
    "named_leaves",
    "place_of",
    "problem_with_files",
    "read_step_folder",
    "require_checkpoints_at",
    "restore_checkpoint",
    "restore_latest_or_initialize",
    "save_step_checkpoint",
    "save_temporary_checkpoint",
    "these_weights",
    "within",
]
