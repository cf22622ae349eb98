"""Ctrl-C and SIGTERM while other processes work: noted here, and handed on by who watches them.

Handlers can only be set by the main thread, while processes may be watched by several others. So
one object notes the signals, and all of them look at it. While nobody does, a signal ends whatever
the main thread is about, as it always did.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from chomp.errors import RunInterrupted
from chomp.launch.outcome import INTERRUPTED_EXIT_CODE, PREEMPTED_EXIT_CODE

_PATIENCE = "Asked to stop: waiting for the processes to save. A third signal kills them.\n"
_EXIT_CODES = {signal.SIGINT: INTERRUPTED_EXIT_CODE, signal.SIGTERM: PREEMPTED_EXIT_CODE}


class StopWish:
    """While entered (by the main thread), SIGINT and SIGTERM are counted for those that watch.

    Without a watcher they raise `RunInterrupted` there and then.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None  # the first that came
        self.times = 0
        self._watchers = 0
        self._counting = threading.Lock()
        self._earlier: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopWish":
        if threading.current_thread() is threading.main_thread():
            for number in _EXIT_CODES:
                # None: a handler set outside of Python, which Python cannot put back.
                self._earlier[number] = signal.signal(number, self._note) or signal.SIG_DFL
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While it is open, somebody looks at `times` and hands the wish on. From any thread."""
        with self._counting:
            self._watchers += 1
        try:
            yield
        finally:
            with self._counting:
                self._watchers -= 1

    def ask(self) -> None:
        """Make the wish without a signal, unless it was made: twice would mean at once."""
        if self.signal is None:
            self.signal, self.times = signal.SIGTERM, 1

    def raise_if_made(self) -> None:
        """Raise the exception that ends the command, if it was asked to stop."""
        if self.signal is not None:
            raise self.interruption()

    def interruption(self, saved: str = "The same command continues.") -> RunInterrupted:
        """The exception that ends the command. `saved` is what the processes said about it."""
        assert self.signal is not None, "only a command that was asked to stop is interrupted"
        # By what was asked here: the processes are asked by SIGTERM, whatever it was.
        return RunInterrupted(f"{self.signal.name}: {saved}", exit_code=_EXIT_CODES[self.signal])

    def exit_code(self) -> int | None:
        """What a command ends with that was asked to stop; None if it was not."""
        return None if self.signal is None else _EXIT_CODES[self.signal]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)
        self.times += 1
        if self._watchers == 0:
            raise self.interruption()
        if self.times == 1:
            # Past Python's streams: the signal may have come in the middle of a line to one.
            os.write(2, _PATIENCE.encode())
