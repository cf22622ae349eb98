"""The sinks that a config asks for, each on its own thread, and a record sent to a sink again.

The run hands over plain values and goes on; a bounded queue keeps them until the sink takes them. A
sink that fails, hangs or falls behind loses rows of its own, which are counted and reported, and
which the record still has: `replay` sends them after an outage, or to a service added later.
"""

import importlib.util
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from chomp.errors import ConfigError
from chomp.storage.files import require_links_inside
from chomp.storage.secrets import redacted, without_secrets
from chomp.tracking.logging_config import LoggingConfig, WandbConfig
from chomp.tracking.record import NONFINITE_SUFFIX, Row, read_metrics
from chomp.tracking.tensorboard_sink import TensorBoardSink
from chomp.tracking.tracker import MetricValue, Tracker, flat_metrics
from chomp.tracking.wandb_sink import WandbProcess, WandbStart

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
# What each extra of the package installs.
_MODULES = {"wandb": "wandb", "tensorboard": "tensorboardX"}
# The line's own keys. A step's row keeps `attempt` and `time`, which tell a repeated step apart.
_ROW_KEYS = ("step", "kind")
_SUMMARY_KEYS = ("kind", "attempt", "time")


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


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What sinks are told about a run besides its rows."""

    folder: str
    name: str
    attempt: int
    config: Mapping[str, Any]
    wandb_id: str | None = None  # None: not at W&B
    rows_before: int = 0  # that W&B was given by earlier attempts

    def wandb_start(self, config: LoggingConfig) -> WandbStart:
        """How the W&B run of this run begins; without secrets."""
        wandb = config.wandb
        return WandbStart(
            run_id=self.wandb_id or new_wandb_id(self.name),
            name=redacted(wandb.run_name or self.name),
            project=redacted(wandb.project or config.project),
            entity=None if wandb.entity is None else redacted(wandb.entity),
            mode=wandb.mode,
            tags=[redacted(tag) for tag in wandb.tags],
            config=without_secrets(dict(self.config)),
            attempt=self.attempt,
            process_id=os.getpid(),
            rows_before=self.rows_before,
        )


def wants_wandb(config: WandbConfig) -> bool:
    """Whether rows go to W&B. Raises `ConfigError` where it is asked for and not installed."""
    if config.mode == "disabled" or config.enabled is False:
        return False
    if config.enabled is None and not os.environ.get("WANDB_API_KEY"):
        return False
    if is_installed("wandb"):
        return True
    if config.enabled is None:
        _logger.warning(
            "WANDB_API_KEY is set, but wandb is not installed: nothing is sent to W&B. Install it "
            "with pip install 'chomp[wandb]', or set logging.wandb.enabled=false"
        )
        return False
    raise missing("wandb", "logging.wandb.enabled=true")


def require_installed(config: LoggingConfig) -> None:
    """Raise `ConfigError` for a sink that is asked for and not installed, before a run begins."""
    wants_wandb(config.wandb)
    if config.tensorboard.enabled and not is_installed("tensorboard"):
        raise missing("tensorboard", "logging.tensorboard.enabled=true")


def open_sinks(
    config: LoggingConfig, run: RunFacts, *, on_address: Callable[[str | None], None]
) -> list[Tracker]:
    """The remote sinks of a run: W&B where it has an id there, TensorBoard where it is enabled.

    `on_address` is called, from another thread, once W&B says where the run is shown.
    """
    sinks: list[Tracker] = []
    if run.wandb_id is not None:
        start = run.wandb_start(config)
        sinks.append(
            BackgroundSink(
                lambda: WandbProcess(start, on_open=on_address),
                title="W&B",
                remedy=f"chomp metrics replay {run.folder} --to wandb",
            )
        )
    if config.tensorboard.enabled:
        require_links_inside(run.folder, [config.tensorboard.folder])
        folder = Path(run.folder) / config.tensorboard.folder
        sinks.append(
            BackgroundSink(
                lambda: TensorBoardSink(folder, attempt=run.attempt),
                title="TensorBoard",
                remedy=f"chomp metrics replay {run.folder} --to tensorboard",
            )
        )
    return sinks


def new_wandb_id(name: str) -> str:
    """A key for a run at W&B that no other has, and that begins with its name."""
    readable = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
    return f"{readable[:48]}-{secrets.token_hex(4)}"


def is_installed(extra: str) -> bool:
    """Whether the package that an extra of chomp installs is there; it is not imported."""
    spec = importlib.util.find_spec(_MODULES[extra])
    # W&B's own files lie in ./wandb, which Python takes for a package without a file.
    return spec is not None and spec.origin is not None


def missing(extra: str, asked_by: str) -> ConfigError:
    """What to raise where a package is asked for that is not installed."""
    return ConfigError(
        f"{asked_by}, but {_MODULES[extra]} is not installed",
        allowed=f"an environment with chomp's extra {extra!r}",
        fix=f"pip install 'chomp[{extra}]', or uv run --extra {extra}",
    )


def replay(metrics_path: str | os.PathLike[str], sink: Tracker) -> int:
    """Hand every line of a record to the sink, in order, and finish it; gives the count of lines.

    Rows come as they were logged, with `attempt` and `time` besides, and with NaN and infinity
    where the record has null. A file that is gone is passed over with a warning.
    """
    rows = read_metrics(metrics_path)
    replay_rows(rows, sink, folder=Path(metrics_path).parent)
    return len(rows)


def replay_rows(rows: Iterable[Row], sink: Tracker, *, folder: Path) -> None:
    """The same for rows that were read already, of a record in `folder`."""
    try:
        for row in rows:
            _replay_row(row, sink, folder)
    finally:
        sink.finish()


def with_nonfinite(row: Row) -> Row:
    """The row as it was logged: `<key>/nonfinite` turned back into the value of `<key>`."""
    values = dict(row)
    for key in row:
        name = key.removesuffix(NONFINITE_SUFFIX)
        if name != key and name in row and row[name] is None:
            with suppress(ValueError, TypeError):  # somebody's own metric of that name
                values[name] = float(row[key])
                del values[key]
    return values


def _replay_row(row: Row, sink: Tracker, folder: Path) -> None:
    values = with_nonfinite(row)
    kind = row.get("kind")
    if kind == "summary":
        sink.log_summary({key: values[key] for key in values if key not in _SUMMARY_KEYS})
    elif kind == "artifact":
        path = _found(str(row.get("path")), folder)
        if path is None:
            _logger.warning("%s is not there any more and was passed over", row.get("path"))
        else:
            name, artifact_kind = str(row.get("name")), str(row.get("artifact_kind"))
            sink.log_artifact(path, name=name, kind=artifact_kind)
    elif kind is None and "step" in row:
        sink.log({key: values[key] for key in values if key not in _ROW_KEYS}, step=row["step"])


def _found(path: str, folder: Path) -> Path | None:
    """Where an artifact is now: where it was, or at the same place in a folder that was moved."""
    given = Path(path)
    below = (folder / Path(*given.parts[start:]) for start in range(1, len(given.parts)))
    return next((found for found in [given, *below] if found.is_file()), None)
