"""A step whose lease another process took over: it is ended, and nothing of it is saved.

The holder slept, or its disk was away, for so long that it was taken to be dead. Whatever its step
writes from now on lands between the files of the other's, a last checkpoint too.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chomp.errors import RunInterrupted, StorageError
from chomp.executor.planned import PlannedStep
from chomp.executor.status import LOCK
from chomp.storage import Lease, LeaseHolder, join

# Ends what runs of a step, at once and without saving.
Abandon = Callable[[PlannedStep], None]

_log = logging.getLogger(__name__)
# A terminal that takes no more text must not keep alive what has to end.
_LAST_WORDS_S = 2.0


class LostLease(StorageError):
    """A step lost its lease while it ran; `holder` is who has it now, None if nobody does."""

    def __init__(
        self, given: str, *, allowed: str = "", fix: str = "", holder: LeaseHolder | None
    ) -> None:
        super().__init__(given, allowed=allowed, fix=fix)
        self.holder = holder


@contextmanager
def abandoned_at_loss(planned: PlannedStep, lease: Lease, abandon: Abandon) -> Iterator[None]:
    """While it is open, the loss of the lease ends the step by one call of `abandon`.

    What the step then raises is an echo of that, and comes out as a `LostLease`.
    """
    is_abandoned = threading.Event()

    def let_go() -> None:
        is_abandoned.set()
        try:
            abandon(planned)
        except Exception:
            # In a thread of its own, where nobody would hear of it.
            _log.exception("%s lost its lease and could not be ended", planned.title)

    with lease.watched(let_go):
        try:
            if not lease.still_held():
                raise lost_lease(planned)
            yield
        except (RunInterrupted, KeyboardInterrupt):
            raise
        except BaseException as error:
            if not is_abandoned.is_set():
                raise
            raise lost_lease(planned) from error


def end_this_process(planned: PlannedStep) -> None:
    """End this process, and those it started, without saving: for a step that runs inside of it.

    A function cannot be stopped from outside. The exit code is that of a preempted run: the same
    command, started again, waits for whoever has the step now.
    """
    last_words = threading.Thread(target=_say_loss, args=(planned,), daemon=True)
    last_words.start()
    for pid in _descendants(os.getpid()):
        with suppress(OSError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)
    last_words.join(_LAST_WORDS_S)
    # Not sys.exit: neither handlers nor other threads may write any more.
    os._exit(os.EX_TEMPFAIL)


def lost_lease(planned: PlannedStep) -> LostLease:
    """The error of a step that is not this process's any more, with whose it is."""
    holder = None
    with suppress(StorageError):
        holder = Lease.holder(join(planned.path, LOCK))
    owner = f"now held by {holder}" if holder else "held by nobody, and its lock file is gone"
    fix = (
        "leave it to the other process; the same command waits for that one, and this result is "
        "not marked as done"
        # Who finds no other must not be told to wait for one.
        if holder
        else "leave lock files of steps that run alone; the same command runs it again, in place"
    )
    return LostLease(
        f"{planned.title} lost its lease while it ran: {planned.path} is {owner}",
        allowed="one process per step",
        fix=fix,
        holder=holder,
    )


def _say_loss(planned: PlannedStep) -> None:
    with suppress(OSError, ValueError):  # closed, or nobody reads it any more
        print(f"Error: {lost_lease(planned)}", file=sys.stderr, flush=True)
    # Second, since this is what may hang: what the step has printed and nobody has taken.
    with suppress(OSError, ValueError):
        sys.stdout.flush()


def _descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they did; none where /proc is not."""
    found: list[int] = []
    with suppress(OSError):  # it has ended meanwhile
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found
