"""What a run is and what came of it: its state, told from its folder, and facts for a page."""

import math
import os
import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from chomp.errors import StorageError
from chomp.executor.status import LOCK, read_status
from chomp.report.record import RunRecord
from chomp.report.timeline import paused_seconds, told_seconds, trained_seconds
from chomp.storage import join, killed_holder, lock_holder
from chomp.tracking import metrics
from chomp.tracking.metrics import name_from
from chomp.tracking.run_files import (
    AVERAGED,
    DERIVED,
    FINISHED,
    STOPS,
    eval_prefix_in,
    held_out_prefix,
    is_of_averaged,
)

State = Literal["finished", "running", "stopped", "failed", "empty"]

# A run may compile, evaluate or save for as long without logging a line.
FRESH_S = 600.0
# Of noisy metrics the table shows the median of the last rows, up to so many: one says little.
_LAST_ROWS = 50
# The columns of the table of runs: key, label, and which way is good.
COLUMNS: tuple[tuple[str, str, str | None], ...] = (
    (metrics.EVAL_LOSS, "eval loss", "lower"),
    (metrics.EVAL_BPB, "eval bits/byte", "lower"),
    (metrics.TRAIN_LOSS, "train loss (median)", "lower"),
    ("steps", "steps", None),
    ("tokens", "tokens processed", None),
    (metrics.TOKENS_SEEN, "tokens trained on", None),
    ("flops", "FLOPs", None),
    ("seconds", "time trained [s]", None),
    (metrics.TOKENS_PER_SECOND, "positions/s", "higher"),
    (metrics.MFU, "MFU [%]", "higher"),
    (metrics.MFU_OF_MEASURED, "MFU of measured [%]", "higher"),
    (metrics.PEAK_MEMORY_GB, "peak memory [GB]", "lower"),
    (metrics.PARAMETER_COUNT, "parameters", None),
    (metrics.SKIPPED_STEPS, "skipped steps", "lower"),
)


def run_state(record: RunRecord, *, now_s: float | None = None) -> State:
    """How the run stands at `now_s` (seconds since 1970; default: now).

    A process that is seen to run counts first: it may be an attempt that has not logged a line.
    Then what the last attempt said of its own end. One that said nothing is running while its lines
    are fresh and its process is not seen to be gone; else it was stopped from outside.
    """
    last = record.attempts[-1] if record.attempts else None
    outcome = None if last is None else last.outcome
    if _is_held(record.folder, but_own=outcome == FINISHED):
        return "running"
    if outcome is not None:
        ended: State = "stopped" if outcome in STOPS else "failed"
        return "finished" if outcome == FINISHED else ended
    now_s = time.time() if now_s is None else now_s
    if last is not None and now_s - last.last_time < FRESH_S and not is_killed(record.folder):
        return "running"
    try:
        status = read_status(record.folder)
    except StorageError:  # half-written, or of another version
        status = None
    if status is not None and status.state in ("SUCCESS", "FAILED"):
        return "finished" if status.state == "SUCCESS" else "failed"
    return "stopped" if record.columns.blocks else "empty"


def is_killed(folder: str) -> bool:
    """Whether a process of this machine held the run's lock and ended without letting go of it.

    False for one of another machine: not every shared filesystem shows its locks here.
    """
    try:
        holder = killed_holder(join(folder, LOCK))
    except StorageError:
        return False
    return holder is not None and holder.host == socket.gethostname()


def _is_held(folder: str, *, but_own: bool) -> bool:
    """Whether a process holds the run's lock.

    `but_own`: not this process, which holds the lock while it draws the page of the run that it has
    just finished.
    """
    try:
        holder = lock_holder(join(folder, LOCK))
    except StorageError:
        return False
    is_own = holder is not None and (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
    return holder is not None and not (but_own and is_own)


def numbers(record: RunRecord) -> dict[str, float | None]:
    """The run's cells of the table, by column; null where it has no such number.

    Evaluations are of the averaged weights where only those were evaluated, as `facts` says.
    """
    prefix = _evaluated(record)
    # How far the newest attempt has come, or what still stands of an earlier one.
    last = record.newest("step").steps[-1:]
    gflops = _last(record, metrics.TOTAL_GFLOPS)
    found = {
        metrics.EVAL_LOSS: _last(record, f"{prefix}/loss"),
        metrics.EVAL_BPB: _last(record, f"{prefix}/bpb"),
        metrics.TRAIN_LOSS: _settled(record, metrics.TRAIN_LOSS),
        "steps": float(last[0] + 1) if last.size else None,
        "tokens": _last(record, metrics.TOTAL_TOKENS),
        metrics.TOKENS_SEEN: _last(record, metrics.TOKENS_SEEN),
        "flops": None if gflops is None else 1e9 * gflops,
        "seconds": trained_seconds(record) or None,
        metrics.TOKENS_PER_SECOND: _settled(record, metrics.TOKENS_PER_SECOND),
        metrics.MFU: _settled(record, metrics.MFU),
        metrics.MFU_OF_MEASURED: _settled(record, metrics.MFU_OF_MEASURED),
        metrics.PEAK_MEMORY_GB: _last(record, metrics.PEAK_MEMORY_GB),
        metrics.PARAMETER_COUNT: _number(record.summary.get(metrics.PARAMETER_COUNT)),
        metrics.SKIPPED_STEPS: _last(record, metrics.SKIPPED_STEPS),
    }
    # JSON has no infinity, which a product of two large numbers is.
    return {
        key: None if value is None or not math.isfinite(value) else round(value, 9)
        for key, value in found.items()
    }


def facts(
    record: RunRecord, cells: Mapping[str, float | None], template: str | None
) -> list[tuple[str, str]]:
    """Short facts for the head of a page, `cells` among them; what is not known is left out."""
    steps, total = cells["steps"], _number(_at(record.config, "trainer", "steps"))
    progress = _count(steps)
    if steps is not None and total is not None and steps < total:
        progress = f"{steps:,.0f} of {total:,.0f}"
    first = record.attempts[0].first_time if record.attempts else math.nan
    started = None
    if math.isfinite(first):
        started = f"{datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M} UTC"
    trained, paused = cells["seconds"], paused_seconds(record)
    found: list[tuple[str, str | None]] = [
        ("template", template),
        ("parameters", _count(cells[metrics.PARAMETER_COUNT])),
        ("steps", progress),
        # All that went through the model, and those of them that a loss was asked of.
        ("tokens processed", _count(cells["tokens"])),
        ("tokens trained on", _count(cells[metrics.TOKENS_SEEN])),
        ("device", _text(record.summary.get(metrics.DEVICE_KIND))),
        ("started", started),
        ("evaluated", AVERAGED if is_of_averaged(_evaluated(record)) else None),
        ("time trained", None if trained is None else told_seconds(trained)),
        ("attempts", str(len(record.attempts)) if len(record.attempts) > 1 else None),
        ("between attempts", told_seconds(paused) if paused else None),
        ("seed", _text(_at(record.config, "trainer", "seed"))),
        ("folder", record.folder),
    ]
    return [(label, value) for label, value in found if value is not None]


def environment(record: RunRecord) -> list[tuple[str, str]]:
    """Software and hardware that the last attempt ran with, and the kernels it chose."""
    start = name_from(metrics.ENVIRONMENT, "x").removesuffix("x")
    found = [
        (name.removeprefix(start), str(value))
        for name, value in record.summary.items()
        if name.startswith(start)
    ]
    kernels = [
        (
            re.sub("[/_]", " ", name),
            f"{value:.3g}" if isinstance(value, float) else str(value),
        )
        for name, value in record.summary.items()
        if name.startswith("kernels/")
    ]
    return [*found, *kernels]


def config_leaves(config: Mapping[str, Any] | None) -> dict[str, str]:
    """Every field of the config as text, by its dotted name, sorted; without what is derived."""
    own = {key: value for key, value in (config or {}).items() if key != DERIVED}
    return dict(sorted(_leaves(own, ""))) if own else {}


def ceiling(record: RunRecord) -> dict[str, float | None]:
    """FLOPs per second that all devices could reach: by their makers, and as a product measured."""
    whole = _number(record.summary.get(metrics.THEORETICAL_FLOPS))
    each = _number(record.summary.get(metrics.THEORETICAL_FLOPS_PER_DEVICE))
    measured = _number(record.summary.get(metrics.MEASURED_FLOPS_PER_DEVICE))
    told = _number(record.summary.get(name_from(metrics.ENVIRONMENT, "devices")))
    devices = whole / each if whole and each else told
    return {
        "theoretical_flops": whole,
        "measured_flops": _number(measured * devices) if measured and devices else None,
    }


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        inner = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
        return [leaf for name, item in inner for leaf in _leaves(item, name)]
    if isinstance(value, Mapping | list | tuple) and not value:
        return [(path, "{}" if isinstance(value, Mapping) else "[]")]
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return [leaf for i, item in enumerate(value) for leaf in _leaves(item, f"{path}[{i}]")]
    return [(path, _value_text(value))]


def _value_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _last(record: RunRecord, name: str) -> float | None:
    values = record.series(name).values
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if finite.size else None


def _settled(record: RunRecord, name: str) -> float | None:
    values = record.series(name).values
    # A tenth of a short run: half of one would tell of its beginning.
    last = values[-max(1, min(_LAST_ROWS, values.size // 10)) :]
    finite = last[np.isfinite(last)]
    return float(np.median(finite)) if finite.size else None


def _evaluated(record: RunRecord) -> str:
    """What the names begin with of the evaluations that count for the run."""
    return held_out_prefix(eval_prefix_in(record.config), record.names)


def _at(config: Mapping[str, Any] | None, *path: str) -> Any:
    found: Any = config
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _count(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
