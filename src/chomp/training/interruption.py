"""Being asked to stop: Ctrl-C and SIGTERM become a wish that a run honours when it can.

That is before its first step, between two steps, and once its last state is saved. A start that was
to take only so many steps ends in the same way, without a signal.
"""

import logging
import signal
import threading
import time
from enum import Enum
from types import FrameType, TracebackType
from typing import Any

import jax

from chomp.errors import RunInterrupted

# Ctrl-C as shells report it; for SIGTERM, the code that means "preempted, run me again".
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}
_PLANNED_EXIT_CODE = 0  # all went as it was asked to
# A terminal or a scheduler may send a signal to a group and to its members: that is one wish.
_SAME_WISH_S = 1.0

_log = logging.getLogger(__name__)


class PlannedStop(Enum):
    """A stop that was planned, and that no signal asks for."""

    MAX_STEPS = "--max-steps"  # this start has taken as many as it was to take


StopCause = signal.Signals | PlannedStop


class StopSignal:
    """While entered, SIGINT and SIGTERM are noted, the first that comes.

    The same once more, a second later or after that, acts as it always did; the other kind does
    nothing more, so that the save which the first one asked for is not cut short by it.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._received_at = 0.0
        self._earlier: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is not threading.main_thread():
            _log.warning("not in the main thread: Ctrl-C and SIGTERM will not save before stopping")
            return self
        for number in EXIT_CODES:
            # None: a handler set outside of Python, which Python cannot put back.
            self._earlier[number] = signal.signal(number, self._note) or signal.SIG_DFL
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def raise_if_received(self, saved_at: str | None = None) -> None:
        """Raise the exception that ends a run outside of its steps, if it was asked to stop.

        A run of several processes goes on to where all of them decide.
        """
        if self.received is not None and jax.process_count() == 1:
            raise self.interruption(saved_at)

    def interruption(
        self, saved_at: str | None, *, agreed: StopCause | None = None
    ) -> RunInterrupted:
        """The exception that ends the run after its state was saved at `saved_at`.

        None: nothing was trained since it was started. `agreed` is what all processes stop for: a
        signal may have been received by another of them.
        """
        stopped_by = agreed or self.received
        assert stopped_by is not None, "only a run that was asked to stop is interrupted"
        state = "no step was taken yet" if saved_at is None else f"the state is saved at {saved_at}"
        if isinstance(stopped_by, PlannedStop):
            who, code = stopped_by.value, _PLANNED_EXIT_CODE
        else:
            elsewhere = "" if self.received else " in another process"
            who, code = f"{stopped_by.name}{elsewhere}", EXIT_CODES[stopped_by]
        return RunInterrupted(f"{who}: {state}. The same command continues.", exit_code=code)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = signal.Signals(number), time.monotonic()
            _log.warning("%s: saving after this step; once more stops at once", self.received.name)
        elif number == self.received and time.monotonic() - self._received_at >= _SAME_WISH_S:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}
