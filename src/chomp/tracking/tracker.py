"""What a tracker is, which values a metric may have, and one tracker made of several.

A tracker takes rows of flat metrics, one row per logged step, and knows nothing of models or
devices. Arrays may arrive as they come from a train step: whatever holds one number and answers to
`.item()` is turned into a plain number here, so no other file of this room needs NumPy or JAX.

The record comes first: it is the run's memory, so its failure ends the run. A sink shows or sends
what the record already holds and can be replayed from it, so its failure costs a log message.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Protocol, TypeAlias, runtime_checkable

from chomp.errors import ConfigError

PlainValue: TypeAlias = float | int | str | bool | None
_logger = logging.getLogger(__name__)


class HoldsOneValue(Protocol):
    """A NumPy or JAX scalar, or a 0-d array: anything whose `.item()` is a plain value."""

    def item(self) -> object:
        """The plain Python value; on a device array this waits for the device."""
        ...


MetricValue: TypeAlias = PlainValue | HoldsOneValue


@runtime_checkable
class Tracker(Protocol):
    """Where a run's metrics go. Calls come from one thread, in the order of the run."""

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Take one row; `step` is the 0-based index of the completed step it describes."""
        ...

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Take values that describe the whole run; a later value of a name replaces an earlier."""
        ...

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Take note of a file that belongs to the run, such as its config."""
        ...

    def finish(self) -> None:
        """Hand over everything taken so far. May be called twice."""
        ...


def flat_metrics(metrics: Mapping[str, MetricValue]) -> dict[str, PlainValue]:
    """The same row with plain JSON values, non-finite floats included.

    Raises `ConfigError` for a nested value, an array of more than one number, and a name that is
    not a string.
    """
    for name in metrics:
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"a metric with the name {name!r}",
                allowed="names that are non-empty strings",
                fix="log it under a name such as 'train/loss'",
            )
    return {name: _plain(name, value) for name, value in metrics.items()}


def _plain(name: str, value: object) -> PlainValue:
    """`value` as exactly a bool, int, float, str or None."""
    if value is None or isinstance(value, bool):
        return value
    # Subclasses are cast away: np.float64 is a float and an IntEnum an int, but a row must compare
    # equal to the row read back, in type too.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)  # not str(): that of a (str, Enum) is its member's name
    # An array of shape (1,) is refused too: with another batch size it would hold more.
    shape = getattr(value, "shape", ())
    if hasattr(value, "item") and shape == ():
        inner = value.item()
        if inner is None or isinstance(inner, bool | int | float | str):
            return _plain(name, inner)
    what = f"{type(value).__name__} of shape {shape}" if shape != () else type(value).__name__
    raise ConfigError(
        f"the metric {name!r} is a {what}",
        allowed="a number, a string, a bool, None or a 0-d array of one of these",
        fix=f"log each number under its own name, such as '{name}/mean'",
    )


class CompositeTracker:
    """Hands every call to `record`, whose exceptions are raised, and then to each of `sinks`.

    Values are made plain once, so a device array is waited for once however many sinks there are.
    Nothing that a sink raises gets out; what it lost is counted, and later rows are still tried.
    """

    def __init__(self, record: Tracker, sinks: Iterable[Tracker] = ()) -> None:
        self._record = record
        self._sinks = list(sinks)
        self._lost_rows = [0] * len(self._sinks)
        self._has_failed = [False] * len(self._sinks)

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Log the row to the record, then to every sink."""
        row = flat_metrics(metrics)
        self._record.log(row, step=step)
        # A copy for each: what a sink does to its row is no other sink's business.
        self._call_sinks(lambda sink: sink.log(dict(row), step=step))

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Log the summary to the record, then to every sink."""
        row = flat_metrics(metrics)
        self._record.log_summary(row)
        self._call_sinks(lambda sink: sink.log_summary(dict(row)))

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Log the artifact to the record, then to every sink."""
        self._record.log_artifact(path, name=name, kind=kind)
        self._call_sinks(lambda sink: sink.log_artifact(path, name=name, kind=kind))

    def finish(self) -> None:
        """Finish all of them, even if the record cannot, and say what each sink has lost."""
        try:
            self._record.finish()
        finally:
            # A terminal is left clean even when the disk is full.
            self._call_sinks(lambda sink: sink.finish(), lost_rows=0)
            for index, sink in enumerate(self._sinks):
                if lost := self._lost_rows[index]:
                    name = type(sink).__name__
                    _logger.error("%s lost %d rows; the record has them", name, lost)
            self._lost_rows = [0] * len(self._sinks)

    def _call_sinks(self, action: Callable[[Tracker], None], *, lost_rows: int = 1) -> None:
        for index, sink in enumerate(self._sinks):
            try:
                action(sink)
            except Exception:
                self._lost_rows[index] += lost_rows
                # Only the first is told in full: what is broken fails at every row.
                if not self._has_failed[index]:
                    _logger.exception(
                        "%s failed. The run goes on and the record keeps every row; further "
                        "failures of this sink are only counted",
                        type(sink).__name__,
                    )
                self._has_failed[index] = True


class NoopTracker:
    """A tracker that takes everything and keeps nothing; it never waits for a device."""

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Nothing happens."""

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Nothing happens."""

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Nothing happens."""

    def finish(self) -> None:
        """Nothing happens."""
