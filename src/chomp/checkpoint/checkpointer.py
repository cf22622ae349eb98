"""When a run saves: by the clock (temporary), by step (permanent), and at the end.

Saving goes on in the background while the run trains: one save at a time, and whoever asks for
another, or for the end, waits for it. What goes wrong there is raised at the next call.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from chomp.checkpoint.layout import step_path
from chomp.checkpoint.metadata import CheckpointMetadata
from chomp.checkpoint.retention import KeepPolicy, clean_up, is_kept, require_ordered
from chomp.checkpoint.save import finish_save, give_memory_back, is_saved, promote, start_save
from chomp.config import Config, setting
from chomp.errors import require
from chomp.mesh.distributed import is_first

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Config):
    """How often a run saves its state. There is always a permanent checkpoint at the end."""

    # Seconds between temporary checkpoints; null: none.
    save_interval_s: float | None = setting(default=600.0, gt=0, le=1e9)
    # Steps between permanent checkpoints; null: as `keep` says, or only the one at the end.
    every: int | None = setting(default=None, ge=1, lt=2**31, aliases=("save_every",))
    # The same for runs that keep more of their beginning: [{every: 100, until: 1000}, …].
    keep: tuple[KeepPolicy, ...] = ()
    # A temporary checkpoint goes when this many newer ones are there.
    keep_temporary: int = setting(default=2, ge=1, lt=2**31)
    # Permanent checkpoints that stay, the newest so many; null: all of them.
    keep_permanent: int | None = setting(default=None, ge=1, lt=2**31, aliases=("max_to_keep",))
    # Host memory for a save; a larger state is saved in parts, and training waits. null: no bound.
    max_staged_bytes: int | None = setting(default=None, ge=1, lt=2**63)

    def __post_init__(self) -> None:
        require(
            self.every is None or not self.keep,
            f"checkpoint.every={self.every} with checkpoint.keep={self.keep}",
            allowed="one of them",
            fix="set checkpoint.every=null, and add a policy with that period to checkpoint.keep",
        )
        require_ordered(self.keep)
        start = 0
        for policy in self.keep:
            require(
                policy.until is None or policy.until // policy.every > start // policy.every,
                f"checkpoint.keep with every={policy.every} after {start}, until={policy.until}",
                allowed="policies that keep at least one step: one that `every` divides",
                fix="lower every, raise until, or remove the policy",
            )
            start = policy.until or start

    @property
    def policies(self) -> tuple[KeepPolicy, ...]:
        """Which steps are kept for good, however it was said."""
        return self.keep if self.every is None else (KeepPolicy(every=self.every),)

    def most_on_disk(self, steps: int) -> tuple[int, int]:
        """How many permanent and temporary checkpoints a run of `steps` has on disk at most.

        At once, with the one that is being written: an old one goes when a new one is complete.
        """
        permanent = 1 + sum(is_kept(self.policies, step) for step in range(1, steps))
        if self.keep_permanent is not None:
            permanent = min(permanent, self.keep_permanent + 1)
        temporary = 0 if self.save_interval_s is None else self.keep_temporary
        return permanent, min(temporary, steps - 1)


@dataclass(frozen=True, kw_only=True)
class SaveReport:
    """What one save cost: the run waited `blocked_seconds` of the `seconds` that it took."""

    step: int
    path: str
    num_bytes: int  # of the arrays; 0 where a temporary checkpoint was made permanent
    blocked_seconds: float
    seconds: float


class Checkpointer:
    """Saves a run's state by its config, in the background. Leave it, or `wait`, to be sure."""

    def __init__(self, folder: str, config: CheckpointConfig, metadata: CheckpointMetadata) -> None:
        self.folder = folder
        self._config = config
        self._metadata = metadata  # of the run; step, offset and tokens are filled in at each save
        self._last_save = time.monotonic()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._newest = folder
        self._reports: list[SaveReport] = []  # appended to in the background

    def is_due(self, step: int) -> bool:
        """Whether the policy asks for a save after `step` completed steps.

        Raises what ended an earlier save in the background, if something did.
        """
        self._raise_failure()
        return self.is_permanent(step) or self._temporary_due()

    def is_permanent(self, step: int) -> bool:
        """Whether the checkpoint of `step` is to be kept: by the step alone, not by the clock."""
        return is_kept(self._config.policies, step)

    def save(
        self,
        state: Any,
        *,
        step: int,
        data_offset: int,
        tokens_seen: int,
        skipped_steps: int = 0,
        stream_states: dict[str, Any] | None = None,
        next_batches: Callable[[], Sequence[str]] = tuple,
        is_final: bool = False,
    ) -> str:
        """Start a save, for good if a permanent checkpoint is due; gives the folder it will have.

        Returns when the state may be donated. `next_batches` is asked for their hashes later, in
        the background and by process 0 only. Raises `NonFiniteError` for a state that is not
        finite, and what ended an earlier save.
        """
        started = time.monotonic()
        self.wait()
        metadata = dataclasses.replace(
            self._metadata,
            step=step,
            data_offset=data_offset,
            tokens_seen=tokens_seen,
            skipped_steps=skipped_steps,
            stream_states=stream_states,
            is_temporary=not (is_final or self.is_permanent(step)),
        )
        work, num_bytes = self._started(state, metadata, next_batches)
        path = self._newest = step_path(self.folder, step)
        self._last_save = time.monotonic()
        blocked = self._last_save - started
        report = SaveReport(
            step=step, path=path, num_bytes=num_bytes, blocked_seconds=blocked, seconds=blocked
        )
        self._run(partial(self._complete, work, report, started))
        return path

    def wait(self) -> str:
        """Where the newest save is, once it is on disk; raises what ended it, if something did.

        The folder of all checkpoints, where this attempt has saved nothing.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_failure()
        return self._newest

    def take_reports(self) -> list[SaveReport]:
        """The reports of saves that were completed since the last call."""
        taken = []
        while self._reports:
            taken.append(self._reports.pop(0))
        return taken

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:
                raise
            log.exception("the last checkpoint failed too")  # and what is passing ends the run

    def _started(
        self, state: Any, metadata: CheckpointMetadata, next_batches: Callable[[], Sequence[str]]
    ) -> tuple[Callable[[], object], int]:
        """What is left to do in the background, and how many bytes it writes."""
        if not is_saved(self.folder, metadata.step):
            bound = self._config.max_staged_bytes
            save = start_save(self.folder, state, metadata, max_staged_bytes=bound)
            return partial(finish_save, save, next_batches), save.num_bytes
        if metadata.is_temporary:
            return lambda: None, 0
        return lambda: promote(self.folder, metadata.step), 0

    def _complete(self, work: Callable[[], object], report: SaveReport, started: float) -> None:
        """What is done in the background: the rest of a save, and what follows from it."""
        work()
        give_memory_back()
        if is_first():
            kept = self._config
            clean_up(
                self.folder,
                keep_temporary=kept.keep_temporary,
                keep_permanent=kept.keep_permanent,
            )
        seconds = time.monotonic() - started
        self._reports.append(dataclasses.replace(report, seconds=seconds))

    def _run(self, work: Callable[[], None]) -> None:
        def watched() -> None:
            try:
                work()
            except Exception as error:
                self._failure = error

        # Not a daemon: an interpreter that ends waits for it.
        self._thread = threading.Thread(target=watched, name="checkpoint")
        self._thread.start()

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:  # otherwise left alone: it may be set at this moment
            self._failure = None
            raise failure

    def _temporary_due(self) -> bool:
        interval = self._config.save_interval_s
        return interval is not None and time.monotonic() - self._last_save >= interval
