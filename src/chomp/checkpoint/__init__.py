"""Saving a run's state and finding it again."""

from chomp.checkpoint.checkpointer import CheckpointConfig, Checkpointer
from chomp.checkpoint.layout import (
    CheckpointMetadata,
    StepFolder,
    latest_checkpoint,
    list_checkpoints,
)
from chomp.checkpoint.restore import restore_checkpoint, restore_latest_or_initialize
from chomp.checkpoint.save import save_step_checkpoint, save_temporary_checkpoint

__all__ = [
    "CheckpointConfig",
    "CheckpointMetadata",
    "Checkpointer",
    "StepFolder",
    "latest_checkpoint",
    "list_checkpoints",
    "restore_checkpoint",
    "restore_latest_or_initialize",
    "save_step_checkpoint",
    "save_temporary_checkpoint",
]
