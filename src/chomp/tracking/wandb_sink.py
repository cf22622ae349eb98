"""Weights & Biases as a tracker: one W&B run for a run folder, whatever the number of attempts.

W&B refuses a step below its newest, and a resumed run repeats steps. So rows are logged on an axis
of our own, `global_step`, with their `attempt` beside it, and the overlap shows as two lines. W&B's
own step counts rows over all attempts: offline it would begin at 0 in each, and rows of the next
one would take the place of those before it when they are sent.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from chomp.errors import LaunchError
from chomp.tracking.histogram import histograms_of
from chomp.tracking.metrics import GLOBAL_STEP, RUN_OUTCOME
from chomp.tracking.protocol import MetricValue, flat_metrics
from chomp.tracking.run_files import FINISHED, PIECE_FINISHED

# What W&B itself waits for an upload at the end, less than the run would wait for it: what is left
# then lies in W&B's own folder, and its `wandb sync` sends it.
_UPLOAD_TIMEOUT_S = 45.0
_MAX_ARTIFACT_NAME = 128


@dataclass(frozen=True, kw_only=True)
class WandbStart:
    """All that a W&B run begins with. Plain values: it travels to another process as JSON."""

    run_id: str  # W&B's key of the run: the same in every attempt
    name: str
    project: str
    entity: str | None = None
    mode: str | None = None  # None: WANDB_MODE, or online
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)  # without secrets
    attempt: int = 1
    process_id: int | None = None  # whose memory and load W&B shows
    rows_before: int = 0  # of earlier attempts


class WandbSink:
    """A W&B run, made or continued at once; raises what `wandb.init` raises.

    For a process of its own (`WandbProcess`): W&B hooks itself into the exit of the one it is in.
    """

    def __init__(self, start: WandbStart) -> None:
        import wandb  # noqa: PLC0415  # an extra, and half a second

        self._attempt, self._rows_before = start.attempt, start.rows_before
        self._outcome: object = None
        if (start.mode or os.environ.get("WANDB_MODE", "online")) == "online":
            _require_login()
        settings = wandb.Settings(console="off", silent=True, finish_timeout=_UPLOAD_TIMEOUT_S)
        if start.process_id is not None:
            settings.x_stats_pid = start.process_id
        self._run = wandb.init(
            id=start.run_id,
            name=start.name,
            project=start.project,
            entity=start.entity,
            mode=start.mode,  # type: ignore[arg-type]
            tags=start.tags,
            config=start.config,
            resume="allow",
            allow_val_change=True,  # a resumed run may have other cosmetic settings
            settings=settings,
        )
        self._run.define_metric(GLOBAL_STEP, hidden=True)
        self._run.define_metric("*", step_metric=GLOBAL_STEP)

    @property
    def url(self) -> str | None:
        """Where the run is shown; None offline."""
        return self._run.url

    def log(self, metrics: Mapping[str, MetricValue], *, step: int) -> None:
        """Log the row; an attempt in it, as in a record's row, stands."""
        import wandb  # noqa: PLC0415

        plain = flat_metrics(metrics)
        row: dict[str, Any] = {"attempt": self._attempt, **plain, GLOBAL_STEP: step}
        for name, found in histograms_of(plain).items():
            bins: Any = (found.counts, found.edges)  # lists do as well as the arrays it declares
            row[name] = wandb.Histogram(np_histogram=bins)
        number = max(self._run.step, self._rows_before)  # online, W&B may know of more
        kept = {key: value for key, value in row.items() if value is not None}
        self._run.log(kept, step=number, commit=True)

    def log_summary(self, metrics: Mapping[str, MetricValue]) -> None:
        """Set values of the run's summary."""
        values = flat_metrics(metrics)
        self._outcome = values.get(RUN_OUTCOME, self._outcome)
        self._run.summary.update(values)

    def log_artifact(self, path: str | PathLike[str], *, name: str, kind: str) -> None:
        """Upload the file as an artifact of type `kind`, under a name with the run's id in it."""
        import wandb  # noqa: PLC0415

        artifact = wandb.Artifact(_artifact_name(name, self._run.id), type=kind)
        artifact.add_file(str(Path(path)))
        self._run.log_artifact(artifact)

    def finish(self) -> None:
        """Upload what is left, and mark the run as failed unless its summary says it ended well."""
        self._run.finish(exit_code=0 if self._outcome in (FINISHED, PIECE_FINISHED) else 1)


def _require_login() -> None:
    import wandb  # noqa: PLC0415

    # W&B would ask for a key at the terminal, in the middle of a run.
    if not wandb.login(prompt=False, verify=False):
        raise LaunchError(
            "logging.wandb is enabled, but there is no W&B login",
            allowed="an API key, or mode offline",
            fix="set WANDB_API_KEY, run `wandb login`, or set logging.wandb.mode=offline",
        )


def _artifact_name(name: str, run_id: str) -> str:
    """W&B's artifacts share one namespace in a project, and take few characters in a name."""
    return re.sub(r"[^\w.-]", "-", f"{name}-{run_id}")[-_MAX_ARTIFACT_NAME:]
