"""Where a loop's wall-clock time goes, in phases that add up to all of it.

Everything that is not in a named phase is the step itself: on an asynchronous device the host's
waiting for results is step time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Phase = Literal["step", "loading", "hook", "eval", "checkpoint", "compile"]


class LoopClock:
    """Seconds per phase since the last reading; every instant belongs to exactly one phase."""

    def __init__(self) -> None:
        self._phase: Phase = "step"
        self._since = time.perf_counter()
        self._seconds = _no_seconds()

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Counts what happens inside under `name`; within another phase, not under that one."""
        outer = self._phase
        self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def read(self) -> dict[Phase, float]:
        """Seconds of every phase since the last reading; they sum to the time in between."""
        self._switch(self._phase)
        seconds, self._seconds = self._seconds, _no_seconds()
        return seconds

    def _switch(self, name: Phase) -> None:
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = name, now


def _no_seconds() -> dict[Phase, float]:
    return dict.fromkeys(get_args(Phase), 0.0)
