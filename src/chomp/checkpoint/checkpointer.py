"""When a run saves, and what it deletes: temporary saves by the clock, permanent ones by step.

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

from chomp.checkpoint.format import (
    CheckpointMetadata,
    StepFolder,
    leftovers,
    list_checkpoints,
    problem_with_files,
    read_step_folder,
    remove_checkpoint,
    step_path,
)
from chomp.checkpoint.save import finish_save, give_memory_back, is_saved, promote, start_save
from chomp.config import Config, setting
from chomp.errors import CheckpointError, StorageError, require
from chomp.mesh.distributed import is_first
from chomp.storage import remove_tree

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KeepPolicy(Config):
    """Checkpoints of every so many steps are kept for good, up to and with step `until`."""

    every: int = setting(ge=1, lt=2**31)
    until: int | None = setting(default=None, ge=1, lt=2**31)  # null: to the end of the run


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
        ends = [policy.until for policy in self.keep]
        bounds = [end for end in ends if end is not None]
        require(
            bounds == sorted(set(bounds)) and None not in ends[:-1],
            f"checkpoint.keep with until={ends}",
            allowed="increasing ends; the last may be null",
            fix="sort the policies by until, one for each value",
        )
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
        interval = self._config.save_interval_s
        is_time = interval is not None and time.monotonic() - self._last_save >= interval
        return is_time or self.is_permanent(step)

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
        rest: Callable[[], object] | None = None
        num_bytes = 0
        if not is_saved(self.folder, step):
            bound = self._config.max_staged_bytes
            save = start_save(self.folder, state, metadata, max_staged_bytes=bound)
            rest, num_bytes = partial(finish_save, save, next_batches), save.num_bytes
        elif not metadata.is_temporary:
            rest = partial(promote, self.folder, step)
        path = self._newest = step_path(self.folder, step)
        self._last_save = time.monotonic()
        blocked = self._last_save - started
        report = SaveReport(
            step=step, path=path, num_bytes=num_bytes, blocked_seconds=blocked, seconds=blocked
        )
        # Not a daemon: an interpreter that ends waits for it.
        self._thread = threading.Thread(
            target=self._complete, args=(rest, report, started), name="checkpoint"
        )
        self._thread.start()
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

    def _complete(
        self, rest: Callable[[], object] | None, report: SaveReport, started: float
    ) -> None:
        """Do in the background the rest of a save, if there is any, and what follows from it."""
        try:
            if rest is not None:
                rest()
            give_memory_back()
            if is_first():
                clean_up(
                    self.folder,
                    keep_temporary=self._config.keep_temporary,
                    keep_permanent=self._config.keep_permanent,
                )
            seconds = time.monotonic() - started
            self._reports.append(dataclasses.replace(report, seconds=seconds))
        except Exception as error:
            self._failure = error

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is not None:  # otherwise left alone: it may be set at this moment
            self._failure = None
            raise failure


def is_kept(policies: tuple[KeepPolicy, ...], step: int) -> bool:
    """Whether the checkpoint of `step` is permanent: the first policy that reaches it says."""
    for policy in policies:
        if policy.until is None or step <= policy.until:
            return step % policy.every == 0
    return False


def clean_up(folder: str, *, keep_temporary: int, keep_permanent: int | None = None) -> None:
    """Delete superseded checkpoints and what killed processes left. Only a run's one writer may.

    Not while it saves: its own unfinished checkpoint counts as left over. What is damaged or moved
    aside is never touched. What cannot be deleted is logged and tried again after the next save:
    it costs space, and should not cost the run.
    """
    try:
        doomed = superseded(folder, keep_temporary=keep_temporary, keep_permanent=keep_permanent)
        for item in doomed:
            remove_if_unchanged(item)
        for path in leftovers(folder):
            remove_tree(path)
    except StorageError as error:
        log.warning("an old checkpoint could not be deleted: %s", error)


def superseded(
    folder: str, *, keep_temporary: int, keep_permanent: int | None = None
) -> list[StepFolder]:
    """Temporary checkpoints that are not among the newest `keep_temporary` of all, and permanent
    ones that are not among the newest `keep_permanent` of theirs (None: all stay).

    Nothing is superseded while the newest is not whole: an older one may be needed yet.
    """
    found = list_checkpoints(folder)
    if not found or problem_with_files(found[-1]) is not None:
        return []
    temporary = [item for item in found[:-keep_temporary] if item.metadata.is_temporary]
    permanent = [item for item in found if not item.metadata.is_temporary]
    return temporary + ([] if keep_permanent is None else permanent[:-keep_permanent])


def remove_if_unchanged(item: StepFolder) -> bool:
    """Delete a checkpoint if it is whole and still temporary, or permanent, as it was; or leave it.

    By what is on disk now, never by memory: its metadata is read again.
    """
    try:
        now = read_step_folder(item.path)
    except CheckpointError:  # gone, or damaged: not ours to judge
        return False
    if now.metadata.is_temporary != item.metadata.is_temporary or problem_with_files(now):
        return False
    remove_checkpoint(item.path)
    return True
