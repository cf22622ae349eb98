"""Trackers: where a run's metrics go, and what they are called.

`metrics.jsonl` is the record and is always written first. The console shows rows as they come; W&B
and TensorBoard are sent the record by a process of their own, which may fail without hurting the
run. Values are flat and plain; nothing here imports JAX. The
metric names are in `chomp.tracking.metrics`.
"""

from chomp.storage.secrets import redacted, without_secrets
from chomp.tracking.console import ConsoleTracker
from chomp.tracking.logging_config import LoggingConfig, TensorBoardConfig, WandbConfig, logged_to
from chomp.tracking.metrics import METRICS, Metric, metric_of, name_from, with_short_keys
from chomp.tracking.record import (
    CompositeTracker,
    JsonlTracker,
    MetricValue,
    NoopTracker,
    PlainValue,
    Row,
    Tracker,
    flat_metrics,
    last_attempt,
    latest_rows,
    read_metrics,
    recorded_summary,
    summary_of,
)
from chomp.tracking.sidecar import (
    Sidecar,
    new_wandb_id,
    require_installed,
    start_sidecar,
    wandb_start,
    wants_wandb,
)
from chomp.tracking.sinks import TensorBoardSink, WandbSink, WandbStart

__all__ = [
    "METRICS",
    "CompositeTracker",
    "ConsoleTracker",
    "JsonlTracker",
    "LoggingConfig",
    "Metric",
    "MetricValue",
    "NoopTracker",
    "PlainValue",
    "Row",
    "Sidecar",
    "TensorBoardConfig",
    "TensorBoardSink",
    "Tracker",
    "WandbConfig",
    "WandbSink",
    "WandbStart",
    "flat_metrics",
    "last_attempt",
    "latest_rows",
    "logged_to",
    "metric_of",
    "name_from",
    "new_wandb_id",
    "read_metrics",
    "recorded_summary",
    "redacted",
    "require_installed",
    "start_sidecar",
    "summary_of",
    "wandb_start",
    "wants_wandb",
    "with_short_keys",
    "without_secrets",
]
