"""Saving: when a run saves, how a checkpoint is written, and which old ones are deleted.

A checkpoint is written into an unfinished folder and gets its name by one rename. `start_save`
returns when the state may be changed or donated; `finish_save` waits until Orbax has written it.
Every process writes its own shards; process 0 alone makes folders, writes metadata, renames and
deletes, and all of them succeed or fail together. `Checkpointer` does this in the background, one
save at a time; what goes wrong there is raised at the next call.
"""

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import jax

from chomp.checkpoint.arrays import is_caused_by, named_leaves, problem_with_arrays
from chomp.checkpoint.checksums import receipt_of
from chomp.checkpoint.format import (
    UNFINISHED,
    CheckpointMetadata,
    StepFolder,
    leftovers,
    list_checkpoints,
    open_checkpoint,
    problem_with_files,
    read_step_folder,
    remove_checkpoint,
    run_around,
    state_file_sizes,
    state_path,
    step_path,
    write_metadata,
)
from chomp.config import Config, setting
from chomp.errors import ChompError, StorageError, private_names, require
from chomp.mesh.distributed import broadcast, is_first, raise_together
from chomp.storage import (
    exists,
    is_local,
    make_folder,
    parent_of,
    remove_tree,
    rename_folder,
    sync_tree,
)
from chomp.storage.files import require_inside

_TIMEOUT_S = 600
# Longer than Orbax's own barriers take to give up, so that their error is the one that is told.
_FINISH_TIMEOUT_S = 900.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAFE = "earlier checkpoints are untouched and the same command continues"
_log = logging.getLogger(__name__)


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

    def is_permanent(self, step: int) -> bool:
        """Whether the checkpoint of `step` is kept: the first policy that reaches it says."""
        if self.every is not None:
            return step % self.every == 0
        for policy in self.keep:
            if policy.until is None or step <= policy.until:
                return step % policy.every == 0
        return False

    def most_on_disk(self, steps: int) -> tuple[int, int]:
        """How many permanent and temporary checkpoints a run of `steps` has on disk at most.

        At once, with the one that is being written: an old one goes when a new one is complete.
        """
        permanent = 1 + sum(map(self.is_permanent, range(1, steps)))
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
        # An interpreter that ends waits for it.
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[None] | None = None
        self._newest = folder
        self._reports: list[SaveReport] = []  # appended to in the background

    def is_due(self, step: int) -> bool:
        """Whether the policy asks for a save after `step` completed steps.

        Raises what ended an earlier save in the background, if something did.
        """
        if self._saving is not None and self._saving.done():
            self.wait()
        interval = self._config.save_interval_s
        is_time = interval is not None and time.monotonic() - self._last_save >= interval
        return is_time or self.is_permanent(step)

    def is_permanent(self, step: int) -> bool:
        """Whether the checkpoint of `step` is to be kept: by the step alone, not by the clock."""
        return self._config.is_permanent(step)

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
        metadata = replace(
            self._metadata,
            step=step,
            data_offset=data_offset,
            tokens_seen=tokens_seen,
            skipped_steps=skipped_steps,
            stream_states=stream_states,
            is_temporary=not (is_final or self.is_permanent(step)),
        )
        finish: Callable[[], object] | None = None
        num_bytes = 0
        if not _is_saved(self.folder, step):
            bound = self._config.max_staged_bytes
            save = start_save(self.folder, state, metadata, max_staged_bytes=bound)
            finish, num_bytes = partial(finish_save, save, next_batches), save.num_bytes
        elif not metadata.is_temporary:
            finish = partial(_promote, self.folder, step)
        path = self._newest = step_path(self.folder, step)
        self._last_save = time.monotonic()
        blocked = self._last_save - started

        def complete() -> None:
            if finish is not None:
                finish()
            # What a save freed goes back to the system, where the C library keeps it (glibc): else
            # its holes pile up to several times the state. Takes milliseconds.
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
            if is_first():
                clean_up(
                    self.folder,
                    keep_temporary=self._config.keep_temporary,
                    keep_permanent=self._config.keep_permanent,
                )
            report = SaveReport(
                step=step,
                path=path,
                num_bytes=num_bytes,
                blocked_seconds=blocked,
                seconds=time.monotonic() - started,
            )
            self._reports.append(report)

        self._saving = self._background.submit(complete)
        return path

    def wait(self) -> str:
        """Where the newest save is, once it is on disk; raises what ended it, if something did.

        The folder of all checkpoints, where this attempt has saved nothing.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()
        return self._newest

    def take_reports(self) -> list[SaveReport]:
        """The reports of saves that were completed since the last call."""
        return [self._reports.pop(0) for _ in range(len(self._reports))]

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
            _log.exception("the last checkpoint failed too")  # and what is passing ends the run
        finally:
            self._background.shutdown()


# ---- One save ------------------------------------------------------------------------------------


def save_step_checkpoint(folder: str, state: Any, metadata: CheckpointMetadata) -> str:
    """Save `state` for good as step `metadata.step`; gives its folder, which is complete then.

    Refuses a state with NaN or infinity. A temporary checkpoint of that step is made permanent
    instead of being written again.
    """
    if _is_saved(folder, metadata.step):
        return _promote(folder, metadata.step)
    return finish_save(start_save(folder, state, replace(metadata, is_temporary=False)))


def save_temporary_checkpoint(folder: str, state: Any, metadata: CheckpointMetadata) -> str:
    """Save `state` until a later checkpoint replaces it; gives its folder, complete then."""
    if _is_saved(folder, metadata.step):
        return step_path(folder, metadata.step)
    return finish_save(start_save(folder, state, replace(metadata, is_temporary=True)))


def _is_saved(folder: str, step: int) -> bool:
    """Whether the checkpoint of `step` is there, as process 0 sees it."""
    path = step_path(folder, step)
    return bool(broadcast("checkpoint is there", is_first() and exists(path)))


def _promote(folder: str, step: int) -> str:
    """Make the temporary checkpoint of `step` permanent; gives its folder."""
    path = step_path(folder, step)
    with raise_together("promotion of a checkpoint"):
        if is_first():
            _require_inside(path)
            saved = read_step_folder(path).metadata
            if saved.is_temporary:
                write_metadata(path, replace(saved, is_temporary=False))
    return path


@dataclass(frozen=True)
class UnfinishedSave:
    """A checkpoint whose arrays are being written."""

    path: str
    metadata: CheckpointMetadata
    num_bytes: int  # of all arrays
    writer: Any  # Orbax's `AsyncCheckpointer`


def start_save(
    folder: str, state: Any, metadata: CheckpointMetadata, *, max_staged_bytes: int | None = None
) -> UnfinishedSave:
    """Start writing `state`. When this returns, the state may be changed or donated.

    Refuses a state with NaN or infinity before anything is written. A state larger than
    `max_staged_bytes` is written before this returns, that many bytes at a time.
    """
    leaves = named_leaves(state)
    metadata = replace(
        metadata,
        receipt=receipt_of(leaves, must_be_finite=True),
        arrays={
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
            for name, leaf in leaves.items()
        },
        time=time.time(),
    )
    num_bytes = sum(leaf.nbytes for leaf in leaves.values())
    path = step_path(folder, metadata.step)
    unfinished = path + UNFINISHED
    with raise_together("start of a checkpoint"):
        if is_first():
            _require_inside(path)
            if exists(unfinished):
                remove_tree(unfinished)  # left by a process that was killed
            make_folder(unfinished)
            require_space(path, num_bytes)  # Orbax's threads fail late and noisily
    distinct = {  # what this process's devices hold alike is copied once
        (name, str(shard.index)): shard.data.nbytes
        for name, leaf in leaves.items()
        for shard in leaf.addressable_shards
    }
    import orbax.checkpoint as ocp  # noqa: PLC0415  # 0.3 s that a plan does not need

    try:
        bounds = {}
        # A writer with a bound copies after its `save` has returned. So the bound goes to it only
        # where it is needed, and there the save is waited for.
        if max_staged_bytes is not None and sum(distinct.values()) > max_staged_bytes:
            bounds = _bounds(leaves, max_staged_bytes)
        # Weights are noise in most of their bits: compressed they take a twelfth less of the disk,
        # and a second copy of the state in memory until the save is done (November 2026).
        handler = ocp.BasePyTreeCheckpointHandler(use_compression=False, **bounds)
        writer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(handler_impl=handler),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=_TIMEOUT_S,
                # In the background a folder that cannot be made is an error only after that time.
                create_directories_asynchronously=False,
            ),
        )
        writer.save(state_path(unfinished), args=ocp.args.PyTreeSave(leaves))
        if bounds:
            writer.wait_until_finished()
    except Exception as error:
        raise _not_written(path, error) from error
    return UnfinishedSave(path, metadata, num_bytes, writer)


def finish_save(save: UnfinishedSave, next_batches: Callable[[], Sequence[str]] = tuple) -> str:
    """Wait until the arrays are on disk, and give the checkpoint its name; that is its folder.

    `next_batches` is asked by process 0 for what the metadata has under that name.
    """
    with raise_together("end of a checkpoint", timeout_s=_FINISH_TIMEOUT_S):
        try:
            save.writer.close()  # waits, and raises what went wrong in Orbax's threads
            if is_first():
                unfinished = save.path + UNFINISHED
                metadata = replace(
                    save.metadata,
                    state_files=state_file_sizes(unfinished),
                    next_batches=list(next_batches()) or save.metadata.next_batches,
                )
                write_metadata(unfinished, metadata)
                # Orbax has returned without an error and without a manifest before: where nothing
                # of what it wrote is found again, it warns and goes on.
                problem = problem_with_arrays(StepFolder(unfinished, metadata))
                if problem is not None:
                    raise OSError(f"what was written cannot be read back: {problem}")
                if is_local(unfinished):
                    sync_tree(unfinished)  # TensorStore has synced its own files, Orbax has not
                rename_folder(unfinished, save.path)
        except Exception as error:
            raise _not_written(save.path, error) from error
    return save.path


def require_space(path: str, num_bytes: int) -> int | None:
    """Bytes that are free on the disk of `path`, which need not be there; None for a remote one.

    Raises `StorageError` if a checkpoint of that many bytes does not fit.
    """
    if not is_local(path):
        return None
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        folder = parent_of(folder)
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise StorageError(
            f"checkpoint {path} needs {num_bytes:,} bytes of space, and {free:,} are free",
            allowed="enough free space for the state",
            fix=f"free space; {_SAFE}",
        )
    return free


def _bounds(leaves: dict[str, Any], max_staged_bytes: int) -> dict[str, Any]:
    """Options of Orbax's handler that bound the host memory of a save."""
    import orbax.checkpoint as ocp  # noqa: PLC0415

    with private_names("orbax-checkpoint"):
        from orbax.checkpoint._src.serialization import types  # noqa: PLC0415 (no public name)

        late = types.TransferPriority.ASYNCHRONOUS_DEPRIORITIZED

        class CopiedLate(types.DefaultSerializationStatusCallback):  # type: ignore[misc]
            """Tells Orbax to copy arrays to the host as others are done, not all at the start."""

            def key_priority(self, _: Any) -> types.TransferPriority:
                return late

    arrays = ocp.type_handlers.ArrayHandler(callback=CopiedLate())
    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
    # Orbax refuses to write an array that alone is as large as the bound.
    largest = 1 + max((leaf.nbytes for leaf in leaves.values()), default=0)
    return {
        "save_concurrent_bytes": max(largest, max_staged_bytes),
        "save_device_host_concurrent_bytes": max_staged_bytes,
        "type_handler_registry": registry,
    }


def _require_inside(path: str) -> None:
    """Raise `StorageError` if a link leads a checkpoint out of its run, or of its own folder."""
    folder = parent_of(path)
    require_inside(path, run_around(folder) or folder)


def _not_written(path: str, error: Exception) -> ChompError:
    """The error to raise for a save that failed, after what it wrote has been taken away."""
    # Half a checkpoint should not fill the disk. Orbax's threads may still be writing into it;
    # what they leave is never read, and goes with the next save.
    with contextlib.suppress(ChompError):
        if is_first():
            remove_tree(path + UNFINISHED)
    if isinstance(error, ChompError):
        return error  # has the path and the reason already
    # TensorStore's errors have only the words.
    is_disk_full = is_caused_by(error, _NO_SPACE, [os.strerror(code) for code in _NO_SPACE])
    return StorageError(
        f"checkpoint {path} could not be written: {error}",
        allowed="a writable folder with space for the state",
        fix=f"{'free space' if is_disk_full else 'see the cause'}; {_SAFE}",
    )


# ---- Deleting ------------------------------------------------------------------------------------


def clean_up(folder: str, *, keep_temporary: int, keep_permanent: int | None = None) -> None:
    """Delete superseded checkpoints and what killed processes left. Only a run's one writer may.

    Superseded are temporary ones that are not among the newest `keep_temporary` of all, and
    permanent ones not among the newest `keep_permanent` of theirs (None: all stay). What is damaged
    or moved aside is never touched. Not to be called while the run saves: its own unfinished
    checkpoint counts as left over. What cannot be deleted is logged and tried again after the next
    save: it costs space, and should not cost the run.
    """
    try:
        found = list_checkpoints(folder)
        # Nothing goes while the newest is not whole: an older one may be needed yet.
        if found and problem_with_files(found[-1]) is None:
            doomed = [item for item in found[:-keep_temporary] if item.metadata.is_temporary]
            if keep_permanent is not None:
                permanent = [item for item in found if not item.metadata.is_temporary]
                doomed += permanent[:-keep_permanent]
            for item in doomed:
                # Only if it is on disk as it was listed: by now it may be permanent, or gone.
                if open_checkpoint(item.path) == item and problem_with_files(item) is None:
                    remove_checkpoint(item.path)
        for path in leftovers(folder):
            remove_tree(path)
    except StorageError as error:
        _log.warning("an old checkpoint could not be deleted: %s", error)
