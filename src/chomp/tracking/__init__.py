"""Trackers: where a run's metrics go, and what they are called.

`metrics.jsonl` is the record and is always written first; the console and remote services are sinks
that may fail without hurting the run. Values are flat and plain; nothing here imports JAX. The
metric names are in `chomp.tracking.names`.
"""

from chomp.tracking.composite import CompositeTracker
from chomp.tracking.console import ConsoleTracker
from chomp.tracking.jsonl import (
    JsonlTracker,
    last_attempt,
    latest_rows,
    read_metrics,
    summary_of,
)
from chomp.tracking.lines import Row
from chomp.tracking.names import METRICS, Metric, metric_of, name_from, with_short_keys
from chomp.tracking.noop import NoopTracker
from chomp.tracking.protocol import MetricValue, PlainValue, Tracker, flat_metrics

__all__ = [
    "METRICS",
    "CompositeTracker",
    "ConsoleTracker",
    "JsonlTracker",
    "Metric",
    "MetricValue",
    "NoopTracker",
    "PlainValue",
    "Row",
    "Tracker",
    "flat_metrics",
    "last_attempt",
    "latest_rows",
    "metric_of",
    "name_from",
    "read_metrics",
    "summary_of",
    "with_short_keys",
]
