"""What a tracker is, and which values a metric may have.

A tracker takes rows of flat metrics, one row per logged step, and knows nothing of models or
devices. Arrays may arrive as they come from a train step: whatever holds one number and answers to
`.item()` is turned into a plain number here, so no other file of this room needs NumPy or JAX.
"""

from collections.abc import Mapping
from os import PathLike
from typing import Protocol, TypeAlias, runtime_checkable

from chomp.errors import ConfigError


class HoldsOneValue(Protocol):
    """A NumPy or JAX scalar, or a 0-d array: anything whose `.item()` is a plain value."""

    def item(self) -> object:
        """The plain Python value; on a device array this waits for the device."""
        ...


PlainValue: TypeAlias = float | int | str | bool | None
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
    return {_checked_name(name): _plain(name, value) for name, value in metrics.items()}


def _checked_name(name: object) -> str:
    if isinstance(name, str) and name:
        return name
    raise ConfigError(
        f"a metric with the name {name!r}",
        allowed="names that are non-empty strings",
        fix="log it under a name such as 'train/loss'",
    )


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
