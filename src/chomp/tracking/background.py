"""A sink on a thread of its own, so that nothing it does can hold up or end a run.

The run hands over plain values and goes on; a bounded queue keeps them until the sink takes them. A
sink that fails, hangs or falls behind costs rows of its own, which are counted and told, and which
the record still has.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from typing import Protocol, runtime_checkable

from chomp.tracking.protocol import MetricValue, Tracker, flat_metrics

_logger = logging.getLogger(__name__)

# Hours of rows at one a second, and some tens of megabytes at the most.
MAX_WAITING_CALLS = 10_000
# What the end of a run waits for a sink. The last rows take seconds; a minute spans a slow network,
# and is little beside the wait for the next run of somebody whose job does not end.
FINISH_TIMEOUT_S = 60.0
# A full queue stays full for many rows; one message a minute tells that it is.
_TELL_AGAIN_S = 60.0
# From here on somebody at the terminal wonders why the run does not end.
_QUIET_WAIT_S = 3.0

_Call = Callable[[Tracker], None]


@runtime_checkable
class CanAbandon(Protocol):
    """A sink that can be made to let go, by another thread, of whatever it is stuck in."""

    def abandon(self) -> None:
        """End at once, whatever is lost; returns soon."""
        ...


class BackgroundSink:
    """Hands calls to the sink that `open_sink` gives, which is opened and used on a daemon thread.

    `title` is what messages call the sink, `remedy` the command that sends a run's record to it
    again. No method raises for the sink's sake, and only `finish` waits, at most `finish_timeout_s`
    seconds.
    """

    def __init__(
        self,
        open_sink: Callable[[], Tracker],
        *,
        title: str,
        remedy: str,
        max_waiting_calls: int = MAX_WAITING_CALLS,
        finish_timeout_s: float = FINISH_TIMEOUT_S,
    ) -> None:
        self._open_sink = open_sink
        self._title = title
        self._remedy = remedy
        self._finish_timeout_s = finish_timeout_s
        self._waiting: queue.Queue[_Call | None] = queue.Queue(max_waiting_calls)  # None: the end
        self._sink: Tracker | None = None
        # Each is counted by one thread only.
        self._dropped_calls = 0
        self._failed_calls = 0
        self._has_failed = False
        self._is_finished = False
        self._is_left_behind = False
        self._told_full_s: float | None = None
        self._thread = threading.Thread(target=self._serve, name=f"sink {title}", daemon=True)
        self._thread.start()

    @property
    def lost_calls(self) -> int:
        """Rows, summaries and artifacts that the sink did not take, so far."""
        return self._dropped_calls + self._failed_calls

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Hand over the row; a full queue drops it."""
        row = flat_metrics(metrics)  # here: a device array must not outlive its step in the queue
        self._put(lambda sink: sink.log(row, step=step))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Hand over the values; a full queue drops them."""
        row = flat_metrics(metrics)
        self._put(lambda sink: sink.log_summary(row))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Hand over where the file is; it must stay there, as the files of a run folder do."""
        self._put(lambda sink: sink.log_artifact(path, name=name, kind=kind))

    def finish(self) -> None:
        """Wait for the sink to take everything, within limits, and tell what it did not take."""
        if self._is_finished:
            return
        self._is_finished = True
        self._wait_until(time.monotonic() + self._finish_timeout_s)
        if self.lost_calls:
            _logger.error(
                "%s lost %d rows of this run; the record has them all. To send them again: %s",
                self._title,
                self.lost_calls,
                self._remedy,
            )

    # ---- on the run's thread ----------------------------------------------------------------

    def _put(self, call: _Call) -> None:
        if not self._is_finished:
            try:
                self._waiting.put_nowait(call)
                return
            except queue.Full:
                pass
        self._dropped_calls += 1
        now = time.monotonic()
        if self._told_full_s is None or now - self._told_full_s >= _TELL_AGAIN_S:
            self._told_full_s = now
            _logger.error(
                "%s does not keep up: %d rows wait and %d are lost so far. The run goes on, and "
                "the record keeps every row",
                self._title,
                self._waiting.qsize(),
                self.lost_calls,
            )

    def _wait_until(self, deadline: float) -> None:
        """Wait for the thread to take all calls and end, or give it up."""
        try:
            self._waiting.put(None, timeout=_left(deadline))
        except queue.Full:
            self._give_up(end_waits=False)
            return
        self._thread.join(min(_QUIET_WAIT_S, _left(deadline)))
        if self._thread.is_alive() and _left(deadline):
            left_s = _left(deadline)
            _logger.warning(
                "waiting up to %.0f s for %s to take the last rows", left_s, self._title
            )
            self._thread.join(left_s)
        if self._thread.is_alive():
            self._give_up(end_waits=True)

    def _give_up(self, *, end_waits: bool) -> None:
        self._is_left_behind = True
        self._dropped_calls += self._waiting.unfinished_tasks - end_waits
        _logger.error(
            "%s did not finish within %.0f s and is left behind. To send the record again: %s",
            self._title,
            self._finish_timeout_s,
            self._remedy,
        )
        sink: object = self._sink
        if isinstance(sink, CanAbandon):
            sink.abandon()

    # ---- on the sink's thread ---------------------------------------------------------------

    def _serve(self) -> None:
        self._succeeds(self._open)
        while (call := self._waiting.get()) is not None:
            if not self._succeeds(partial(self._hand_over, call)) and not self._is_left_behind:
                self._failed_calls += 1
            self._waiting.task_done()
        if self._sink is not None:
            self._succeeds(self._sink.finish)

    def _hand_over(self, call: _Call) -> None:
        if self._sink is None:
            raise RuntimeError(f"{self._title} was not opened")
        call(self._sink)

    def _open(self) -> None:
        self._sink = self._open_sink()

    def _succeeds(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except BaseException:  # SystemExit too: a sink's wish to end is not the run's
            # Only the first is told in full: a service that is down fails at every row.
            if not self._has_failed and not self._is_left_behind:
                _logger.exception(
                    "%s failed. The run goes on and the record keeps every row; further failures "
                    "of this sink are only counted. To send the record again: %s",
                    self._title,
                    self._remedy,
                )
            self._has_failed = True
            return False
        return True


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
