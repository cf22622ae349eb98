"""A lock file held by one process, kept alive by a heartbeat and fenced by a token.

Whoever creates the file holds the lease. A thread rewrites it with a growing beat; a holder that
dies on this machine is replaced at once, one that falls silent elsewhere after `stale_after_s`, one
that is silent here and can be seen to run after ten times that. No lock can stop a process that was
paused and wakes up late, so ask `still_held()` right before anything that must not happen twice,
and let `watched()` end what goes on for long. Nobody ever changes a file that carries another's
token.
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType

from chomp.errors import StorageError, message, require
from chomp.storage.atomic import create_exclusive
from chomp.storage.guarded import (
    Outcome,
    Snapshot,
    remove_if,
    replace_if,
    require_guardable,
    snapshot_of,
    touch_if,
)
from chomp.storage.lease_aside import Aside
from chomp.storage.lease_holder import LeaseHolder, LeaseWatch
from chomp.storage.locations import StrPath, normalise
from chomp.storage.process_identity import this_process

_log = logging.getLogger(__name__)
# How long a release or a heartbeat waits for a contender that is looking at the file; it holds
# the file for well under a millisecond unless it was stopped there.
_PATIENCE_S = 2.0


class Lease:
    """One acquired lock file. Made by `try_acquire` or `acquire`; best used in a `with`.

    Belongs to the process that acquired it: in a forked child it counts as not held. Without
    `release` it is held until the process ends.
    """

    def __init__(self, path: str, holder: LeaseHolder) -> None:
        """Start the heartbeat of a lock file that was just created for `holder`."""
        self.path = path
        self._holder = holder
        self._lost = threading.Event()
        self._ended = threading.Event()
        self._on_loss: Callable[[], None] | None = None
        self._is_loss_told = False
        self._aside = Aside(_log)
        self._heartbeat = threading.Thread(
            target=self._beat_until_ended, name=f"lease {path}", daemon=True
        )
        self._heartbeat.start()

    @classmethod
    def try_acquire(
        cls,
        path: StrPath,
        *,
        heartbeat_s: float = 10.0,
        watch: LeaseWatch | None = None,
    ) -> "Lease | None":
        """The lease, or None if another process has it; never waits.

        A holder that is dead on this machine is replaced. One that is silent can only be known by
        looking twice: pass the same `watch` to every try to replace it too.
        """
        _require_positive("heartbeat_s", heartbeat_s)
        text = normalise(path)
        require_guardable(text)
        holder = _new_holder(heartbeat_s)
        if create_exclusive(text, holder.to_bytes()):
            return cls(text, holder)
        seen = snapshot_of(text)
        if seen is not None and not _removed_if_stale(text, seen, watch or LeaseWatch()):
            return None
        # The way is free for everyone now, so this too may be won by another.
        return cls(text, holder) if create_exclusive(text, holder.to_bytes()) else None

    @classmethod
    def acquire(
        cls,
        path: StrPath,
        *,
        timeout_s: float | None,
        on_wait: Callable[[LeaseHolder, float], None] | None = None,
        heartbeat_s: float = 10.0,
        stale_after_s: float = 60.0,
        poll_s: float = 0.5,
    ) -> "Lease":
        """The lease, after waiting for it; `StorageError` naming the holder after `timeout_s`.

        `timeout_s=None` waits for ever. `on_wait` is called after every failed try with the
        holder and the seconds waited so far.
        """
        _require_positive("stale_after_s", stale_after_s)
        start = time.monotonic()
        watch = LeaseWatch(stale_after_s)
        while True:
            lease = cls.try_acquire(path, heartbeat_s=heartbeat_s, watch=watch)
            if lease is not None:
                return lease
            holder = cls.holder(path)
            waited_s = time.monotonic() - start
            if timeout_s is not None and waited_s >= timeout_s:
                raise _timed_out(normalise(path), holder, waited_s)
            if holder is not None and on_wait is not None:
                on_wait(holder, waited_s)
            time.sleep(poll_s if timeout_s is None else min(poll_s, max(0, timeout_s - waited_s)))

    @staticmethod
    def holder(path: StrPath) -> LeaseHolder | None:
        """Who is named in the lock file, dead or alive; None when there is none."""
        seen = snapshot_of(path)
        return None if seen is None else LeaseHolder.from_bytes(seen.content)

    @staticmethod
    def live_holder(path: StrPath) -> LeaseHolder | None:
        """Who holds the lock, as far as can be told; None also for one known to be dead here."""
        holder = Lease.holder(path)
        return None if holder is None or holder.process.is_surely_dead() else holder

    @property
    def token(self) -> str:
        """The random text that marks the file as ours."""
        return self._holder.token

    @property
    def is_lost(self) -> bool:
        """Whether another process took the lease, as far as noticed; costs no look at the file."""
        return self._lost.is_set()

    def still_held(self) -> bool:
        """Whether the file carries our token at this moment. Once False, it stays False."""
        if self._ended.is_set() or self.is_lost or not self._is_own_process():
            return False
        seen = snapshot_of(self.path)
        if seen is None or not self._is_ours(seen):
            self._note_loss()
            self._tell_loss()
        return not self.is_lost

    @contextmanager
    def watched(self, on_loss: Callable[[], None]) -> Iterator[None]:
        """While it is open, `on_loss` is called once, by the heartbeat's thread, at a loss.

        That is noticed when the next heartbeat is due, which is at once for a process that was
        stopped. A loss that was noticed before is not told: ask `still_held()` inside.
        """
        self._on_loss = on_loss
        try:
            yield
        finally:
            self._on_loss = None

    def release(self) -> None:
        """Give the lease up: the file is gone, unless another process has it by now."""
        if self._ended.is_set() or not self._is_own_process():
            return
        self._ended.set()
        self._heartbeat.join(timeout=_PATIENCE_S)
        outcome = remove_if(self.path, self._is_ours, patience_s=_PATIENCE_S)
        if outcome is Outcome.BUSY:
            _log.warning("lock %s could not be removed now; others take it once stale", self.path)
        elif outcome is Outcome.CHANGED:
            self._lost.set()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _beat_until_ended(self) -> None:
        # In this order: a loss that a beat has noticed waits for no other beat.
        while not self.is_lost and not self._ended.wait(self._holder.heartbeat_s):
            try:
                self._beat()
            except StorageError as error:
                # The file is still ours. Others wait `stale_after_s`; the next beat may succeed.
                self._aside.warn("heartbeat of lock %s failed: %s", self.path, error)
        on_loss = self._on_loss
        if self.is_lost and on_loss is not None:
            on_loss()
        # Words last: a log that nobody reads blocks for ever, and the disk may be away.
        self._tell_loss()

    def _beat(self) -> None:
        later = self._holder.next_beat()
        try:
            outcome = replace_if(self.path, self._is_ours, later.to_bytes(), patience_s=_PATIENCE_S)
        except StorageError as error:
            # On a full disk a live holder must not seem dead: a new file time is a beat too.
            self._aside.warn("heartbeat of lock %s only touches it: %s", self.path, error)
            outcome = touch_if(self.path, self._is_ours, patience_s=_PATIENCE_S)
        else:
            self._holder = later if outcome is Outcome.DONE else self._holder
        if outcome is Outcome.CHANGED:
            self._note_loss()

    def _note_loss(self) -> None:
        # Once ended, it may be our own release that took the file away.
        if not self._ended.is_set():
            self._lost.set()

    def _tell_loss(self) -> None:
        if self._is_loss_told or not self.is_lost:
            return
        self._is_loss_told = True
        holder = None
        with suppress(StorageError):
            holder = self.holder(self.path)
        _log.error("lock %s was lost; it is now held by %s", self.path, holder or "nobody")

    def _is_ours(self, seen: Snapshot) -> bool:
        return LeaseHolder.from_bytes(seen.content).token == self.token

    def _is_own_process(self) -> bool:
        return os.getpid() == self._holder.process.pid


def _new_holder(heartbeat_s: float) -> LeaseHolder:
    return LeaseHolder(
        token=secrets.token_hex(16),
        process=this_process(),
        acquired_at=datetime.now(UTC).isoformat(timespec="seconds"),
        beat=0,
        heartbeat_s=heartbeat_s,
    )


def _removed_if_stale(path: str, seen: Snapshot, watch: LeaseWatch) -> bool:
    if not watch.is_stale(seen):
        return False
    # Removed only if it is still exactly what was judged: a holder that woke up has changed it.
    if remove_if(path, lambda now: now == seen) is not Outcome.DONE:
        return False
    _log.warning("lock %s taken from %s", path, LeaseHolder.from_bytes(seen.content))
    return True


def _require_positive(name: str, seconds: float) -> None:
    require(
        seconds > 0,
        given=f"{name}={seconds}",
        allowed="a positive number of seconds",
        fix=f"set {name} to a few seconds",
    )


def _timed_out(path: str, holder: LeaseHolder | None, waited_s: float) -> StorageError:
    return StorageError(
        message(
            given=f"lock {path} was not free within {waited_s:.1f} s; it is held by "
            f"{holder or 'a process that has just let go'}",
            allowed="one holder at a time",
            fix="wait for that process or stop it; a dead one's lock is taken over without help",
        )
    )
