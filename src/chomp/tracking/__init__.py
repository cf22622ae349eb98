"""Trackers: where a run's metrics go, and what they are called.

`metrics.jsonl` is the record and is always written first; the console and remote services are sinks
that may fail without hurting the run. Values are flat and plain; nothing here imports JAX. The
metric names are in `chomp.tracking.metrics`.
"""

from chomp.storage.secrets import redacted, without_secrets
from chomp.tracking.console import ConsoleTracker
from chomp.tracking.logging_config import LoggingConfig, TensorBoardConfig, WandbConfig, logged_to
from chomp.tracking.metrics import METRICS, Metric, metric_of, name_from, with_short_keys
from chomp.tracking.record import (
    JsonlTracker,
    Row,
    last_attempt,
    latest_rows,
    read_metrics,
    recorded_rows,
    recorded_summary,
    summary_of,
)
from chomp.tracking.sinks import (
    BackgroundSink,
    RunFacts,
    new_wandb_id,
    open_sinks,
    replay,
    replay_rows,
    require_installed,
    wants_wandb,
)
from chomp.tracking.tensorboard_sink import TensorBoardSink
from chomp.tracking.tracker import (
    CompositeTracker,
    MetricValue,
    NoopTracker,
    PlainValue,
    Tracker,
    flat_metrics,
)
from chomp.tracking.wandb_sink import WandbProcess, WandbSink, WandbStart

__all__ = [
    "METRICS",
    "BackgroundSink",
    "CompositeTracker",
    "ConsoleTracker",
    "JsonlTracker",
    "LoggingConfig",
    "Metric",
    "MetricValue",
    "NoopTracker",
    "PlainValue",
    "Row",
    "RunFacts",
    "TensorBoardConfig",
    "TensorBoardSink",
    "Tracker",
    "WandbConfig",
    "WandbProcess",
    "WandbSink",
    "WandbStart",
    "flat_metrics",
    "last_attempt",
    "latest_rows",
    "logged_to",
    "metric_of",
    "name_from",
    "new_wandb_id",
    "open_sinks",
    "read_metrics",
    "recorded_rows",
    "recorded_summary",
    "redacted",
    "replay",
    "replay_rows",
    "require_installed",
    "summary_of",
    "wants_wandb",
    "with_short_keys",
    "without_secrets",
]
