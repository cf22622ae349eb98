"""Being asked to stop: Ctrl-C and SIGTERM become a wish that the loop honours between two steps."""

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from chomp.errors import RunInterrupted

# Ctrl-C as shells report it; for SIGTERM, the code that means "preempted, run me again".
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75}

_log = logging.getLogger(__name__)


class StopSignal:
    """While entered, the first SIGINT or SIGTERM is noted; a second one acts as it always did."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
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

    def interruption(self, saved_at: str) -> RunInterrupted:
        """The exception that ends the run after its state was saved at `saved_at`."""
        assert self.received is not None, "only a run that was asked to stop is interrupted"
        return RunInterrupted(
            f"{self.received.name}: the state is saved at {saved_at}. The same command continues.",
            exit_code=EXIT_CODES[self.received],
        )

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()
        _log.warning("%s: saving after this step; once more stops at once", self.received.name)

    def _restore(self) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}
