"""When a run saves: by the clock (temporary), by step (permanent), and at the end."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

from chomp.checkpoint.layout import (
    CheckpointMetadata,
    list_checkpoints,
    remove_checkpoint,
    remove_leftovers,
)
from chomp.checkpoint.save import save_step_checkpoint, save_temporary_checkpoint
from chomp.config import Config, setting
from chomp.errors import require


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """How often a run saves its state. There is always a permanent checkpoint at the end."""

    # Seconds between temporary checkpoints, of which the newest is kept; null: none.
    save_interval_s: float | None = 600.0
    # Steps between permanent checkpoints; null: only the one at the end.
    every: int | None = setting(default=None, aliases=("save_every",))

    def __post_init__(self) -> None:
        for name, value in (("save_interval_s", self.save_interval_s), ("every", self.every)):
            require(
                value is None or value > 0,
                given=f"checkpoint.{name}={value}",
                allowed="above 0, or null for none",
                fix=f"set checkpoint.{name}=null",
            )


class Checkpointer:
    """Saves a run's state by its config; knows what was saved last."""

    def __init__(self, folder: str, config: CheckpointConfig, metadata: CheckpointMetadata) -> None:
        self.folder = folder
        self._config = config
        self._metadata = metadata  # of the run; step, offset and tokens are filled in at each save
        self._last_save = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether the policy asks for a save after `step` completed steps."""
        return self._permanent_due(step) or self._temporary_due()

    def save(
        self,
        state: Any,
        *,
        step: int,
        data_offset: int,
        tokens_seen: int,
        skipped_steps: int = 0,
        stream_states: dict[str, Any] | None = None,
        is_final: bool = False,
    ) -> str:
        """Save now, for good if a permanent checkpoint is due; gives the folder."""
        metadata = dataclasses.replace(
            self._metadata,
            step=step,
            data_offset=data_offset,
            tokens_seen=tokens_seen,
            skipped_steps=skipped_steps,
            stream_states=stream_states,
        )
        is_permanent = is_final or self._permanent_due(step)
        save = save_step_checkpoint if is_permanent else save_temporary_checkpoint
        path = save(self.folder, state, metadata)
        self._last_save = time.monotonic()
        self._remove_older_temporaries(step)
        return path

    def _permanent_due(self, step: int) -> bool:
        return self._config.every is not None and step % self._config.every == 0

    def _temporary_due(self) -> bool:
        interval = self._config.save_interval_s
        return interval is not None and time.monotonic() - self._last_save >= interval

    def _remove_older_temporaries(self, step: int) -> None:
        # Only after the new one is complete, and by what is on disk now, not by memory.
        for found in list_checkpoints(self.folder):
            if found.metadata.is_temporary and found.metadata.step < step:
                remove_checkpoint(found.path)
        remove_leftovers(self.folder)
