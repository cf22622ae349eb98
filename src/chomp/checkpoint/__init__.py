"""Saving a run's state and finding it again."""

from chomp.checkpoint.checkpointer import CheckpointConfig, Checkpointer, SaveReport
from chomp.checkpoint.layout import (
    CHECKPOINTS,
    DamagedCheckpoint,
    StepFolder,
    Unreadable,
    latest_checkpoint,
    list_checkpoints,
    look,
    step_path,
)
from chomp.checkpoint.metadata import CheckpointMetadata
from chomp.checkpoint.receipt import receipt_of
from chomp.checkpoint.restore import (
    Beginning,
    LoadOptions,
    restore_checkpoint,
    restore_latest_or_initialize,
)
from chomp.checkpoint.retention import KeepPolicy
from chomp.checkpoint.save import (
    require_space,
    save_step_checkpoint,
    save_temporary_checkpoint,
)
from chomp.checkpoint.weights_alone import require_weights

__all__ = [
    "CHECKPOINTS",
    "Beginning",
    "CheckpointConfig",
    "CheckpointMetadata",
    "Checkpointer",
    "DamagedCheckpoint",
    "KeepPolicy",
    "LoadOptions",
    "SaveReport",
    "StepFolder",
    "Unreadable",
    "latest_checkpoint",
    "list_checkpoints",
    "look",
    "receipt_of",
    "require_space",
    "require_weights",
    "restore_checkpoint",
    "restore_latest_or_initialize",
    "save_step_checkpoint",
    "save_temporary_checkpoint",
    "step_path",
]
