"""One tracker out of several: the record first, then the sinks, which may fail without harm.

The record is the run's memory, so its failure ends the run. A sink shows or sends what the record
already holds and can be replayed from it, so its failure costs a log message and nothing else.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from os import PathLike

from chomp.tracking.protocol import MetricValue, Tracker, flat_metrics

_logger = logging.getLogger(__name__)


class CompositeTracker:
    """Hands every call to `record`, whose exceptions are raised, and then to each of `sinks`.

    Values are made plain once, so a device array is waited for once however many sinks there are.
    """

    def __init__(self, record: Tracker, sinks: Iterable[Tracker] = ()) -> None:
        self._record = record
        self._sinks = [_GuardedSink(sink) for sink in sinks]

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Log the row to the record, then to every sink."""
        row = flat_metrics(metrics)
        self._record.log(row, step=step)
        for guarded in self._sinks:
            # A copy for each: what a sink does to its row is no other sink's business.
            guarded.call(lambda sink: sink.log(dict(row), step=step))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Log the summary to the record, then to every sink."""
        row = flat_metrics(metrics)
        self._record.log_summary(row)
        for guarded in self._sinks:
            guarded.call(lambda sink: sink.log_summary(dict(row)))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Log the artifact to the record, then to every sink."""
        self._record.log_artifact(path, name=name, kind=kind)
        for guarded in self._sinks:
            guarded.call(lambda sink: sink.log_artifact(path, name=name, kind=kind))

    def finish(self) -> None:
        """Finish all of them, even if the record cannot, and say what each sink has lost."""
        try:
            self._record.finish()
        finally:
            # A terminal is left clean and an upload completed even when the disk is full.
            for guarded in self._sinks:
                guarded.finish()


class _GuardedSink:
    """A sink behind a wall: nothing it raises gets out, and what it lost is counted."""

    def __init__(self, sink: Tracker) -> None:
        self._sink = sink
        self._has_failed = False
        self._lost_rows = 0

    def call(self, action: Callable[[Tracker], None]) -> None:
        """Run `action` on the sink; a failure is one lost row, and later rows are still tried."""
        if not self._succeeds(action):
            self._lost_rows += 1

    def finish(self) -> None:
        """Finish the sink, then report its losses, once."""
        self._succeeds(lambda sink: sink.finish())
        if self._lost_rows:
            _logger.error("%s lost %d rows; the record has them", self._name, self._lost_rows)
            self._lost_rows = 0

    def _succeeds(self, action: Callable[[Tracker], None]) -> bool:
        try:
            action(self._sink)
        except Exception:
            # Only the first is told in full: a service that is down fails at every row.
            if not self._has_failed:
                _logger.exception(
                    "%s failed. The run goes on and the record keeps every row; further failures "
                    "of this sink are only counted",
                    self._name,
                )
            self._has_failed = True
            return False
        return True

    @property
    def _name(self) -> str:
        return type(self._sink).__name__
