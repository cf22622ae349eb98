"""The tracker of a process that does not log: a dry run, or any host but the first."""

from collections.abc import Mapping
from os import PathLike

from chomp.tracking.protocol import MetricValue


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
