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
from jaxtyping import Float, Int

from chomp.errors import StorageError
from chomp.executor.status import LOCK, read_status
from chomp.report.record import Record, Series
from chomp.report.timeline import duration_text, paused_seconds, trained_seconds
from chomp.storage import join, killed_holder, lock_holder
from chomp.tracking import metrics
from chomp.tracking.metrics import name_from
from chomp.tracking.run_files import (
    AVERAGED,
    DERIVED,
    EMA,
    FINISHED,
    STOPS,
    eval_prefix_in,
    held_out_prefix,
    is_of_averaged,
    section_in,
)

# Axes: S stages.

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
# What one evaluation says of one tag: the last part of a metric's name.
_CURVES = ("loss", "bpb", "macro_loss")
_LAST = (*_CURVES, "micro_loss", "macro_bpb", "loss_stderr", "bpb_stderr", "tokens", "documents")
# More rows of a table nobody reads, and no run has them but by mistake.
MAX_STAGES = 50


# --- State ----------------------------------------------------------------------------------------


def run_state(record: Record, *, now_s: float | None = None) -> State:
    """How the run stands at `now_s` (seconds since 1970; default: now).

    A process that is seen to run counts first: it may be an attempt that has not logged a line.
    Then what the last attempt said of its own end. One that said nothing is running while its lines
    are fresh and its process is not seen to be gone; else it was stopped from outside.
    """
    last = record.attempts[-1] if record.attempts else None
    outcome = None if last is None else last.outcome
    try:
        holder = lock_holder(join(record.folder, LOCK))
    except StorageError:
        holder = None
    if holder is not None:
        # This process holds the lock while it draws the page of the run that it has just finished.
        is_own = (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
        if not (is_own and outcome == FINISHED):
            return "running"
    if outcome == FINISHED:
        return "finished"
    if outcome is not None:
        return "stopped" if outcome in STOPS else "failed"
    now_s = time.time() if now_s is None else now_s
    if last is not None and now_s - last.last_time < FRESH_S and not is_killed(record.folder):
        return "running"
    try:
        status = read_status(record.folder)
    except StorageError:  # half-written, or of another version
        status = None
    if status is not None and status.state in ("SUCCESS", "FAILED"):
        return "finished" if status.state == "SUCCESS" else "failed"
    return "stopped" if record.blocks else "empty"


def is_killed(folder: str) -> bool:
    """Whether a process of this machine held the run's lock and ended without letting go of it.

    False for one of another machine: not every shared filesystem shows its locks here.
    """
    try:
        holder = killed_holder(join(folder, LOCK))
    except StorageError:
        return False
    return holder is not None and holder.host == socket.gethostname()


# --- Numbers and texts ----------------------------------------------------------------------------


def numbers(record: Record) -> dict[str, float | None]:
    """The run's cells of the table, by column; null where it has no such number.

    Evaluations are of the averaged weights where only those were evaluated, as `facts` says.
    """

    def last(name: str) -> float | None:
        values = record.series(name).values
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if finite.size else None

    def settled(name: str) -> float | None:
        values = record.series(name).values
        # A tenth of a short run: half of one would tell of its beginning.
        ending = values[-max(1, min(_LAST_ROWS, values.size // 10)) :]
        finite = ending[np.isfinite(ending)]
        return float(np.median(finite)) if finite.size else None

    prefix = held_out_prefix(eval_prefix_in(record.config), record.names)
    # How far the newest attempt has come, or what still stands of an earlier one.
    steps = record.series("step").steps[-1:]
    gflops = last(metrics.TOTAL_GFLOPS)
    found = {
        metrics.EVAL_LOSS: last(f"{prefix}/loss"),
        metrics.EVAL_BPB: last(f"{prefix}/bpb"),
        metrics.TRAIN_LOSS: settled(metrics.TRAIN_LOSS),
        "steps": float(steps[0] + 1) if steps.size else None,
        "tokens": last(metrics.TOTAL_TOKENS),
        metrics.TOKENS_SEEN: last(metrics.TOKENS_SEEN),
        "flops": None if gflops is None else 1e9 * gflops,
        "seconds": trained_seconds(record) or None,
        metrics.TOKENS_PER_SECOND: settled(metrics.TOKENS_PER_SECOND),
        metrics.MFU: settled(metrics.MFU),
        metrics.MFU_OF_MEASURED: settled(metrics.MFU_OF_MEASURED),
        metrics.PEAK_MEMORY_GB: last(metrics.PEAK_MEMORY_GB),
        metrics.PARAMETER_COUNT: _number(record.summary.get(metrics.PARAMETER_COUNT)),
        metrics.SKIPPED_STEPS: last(metrics.SKIPPED_STEPS),
    }
    # JSON has no infinity, which a product of two large numbers is.
    return {
        key: None if value is None or not math.isfinite(value) else round(value, 9)
        for key, value in found.items()
    }


def facts(
    record: Record, cells: Mapping[str, float | None], template: str | None
) -> list[tuple[str, str]]:
    """Short facts for the head of a page, `cells` among them; what is not known is left out."""

    def count(value: float | None) -> str | None:
        return None if value is None else f"{value:,.0f}"

    trainer = section_in(record.config, "trainer")
    steps, total = cells["steps"], _number(trainer.get("steps"))
    progress = count(steps)
    if steps is not None and total is not None and steps < total:
        progress = f"{steps:,.0f} of {total:,.0f}"
    first = record.attempts[0].first_time if record.attempts else math.nan
    started = None
    if math.isfinite(first):
        started = f"{datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M} UTC"
    trained, paused = cells["seconds"], paused_seconds(record)
    prefix = held_out_prefix(eval_prefix_in(record.config), record.names)
    found: list[tuple[str, Any]] = [
        ("template", template),
        ("parameters", count(cells[metrics.PARAMETER_COUNT])),
        ("steps", progress),
        # All that went through the model, and those of them that a loss was asked of.
        ("tokens processed", count(cells["tokens"])),
        ("tokens trained on", count(cells[metrics.TOKENS_SEEN])),
        ("device", record.summary.get(metrics.DEVICE_KIND)),
        ("started", started),
        ("evaluated", AVERAGED if is_of_averaged(prefix) else None),
        ("time trained", None if trained is None else duration_text(trained)),
        ("attempts", len(record.attempts) if len(record.attempts) > 1 else None),
        ("between attempts", duration_text(paused) if paused else None),
        ("seed", trainer.get("seed")),
        ("folder", record.folder),
    ]
    return [(label, str(value)) for label, value in found if value is not None]


def environment(record: Record) -> list[tuple[str, str]]:
    """Software and hardware that the last attempt ran with, and the kernels it chose."""
    start, told = name_from(metrics.ENVIRONMENT, "x").removesuffix("x"), record.summary.items()
    found = [(key.removeprefix(start), str(value)) for key, value in told if key.startswith(start)]
    return found + [
        (re.sub("[/_]", " ", key), f"{value:.3g}" if isinstance(value, float) else str(value))
        for key, value in told
        if key.startswith("kernels/")
    ]


def ceiling(record: Record) -> dict[str, float | None]:
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


def config_leaves(config: Mapping[str, Any] | None) -> dict[str, str]:
    """Every field of the config as text, by its dotted name, sorted; without what is derived."""
    own = {key: value for key, value in (config or {}).items() if key != DERIVED}
    return dict(sorted(_leaves(own, ""))) if own else {}


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        inner = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
        return [leaf for name, item in inner for leaf in _leaves(item, name)]
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return [leaf for i, item in enumerate(value) for leaf in _leaves(item, f"{path}[{i}]")]
    return [(path, _value_text(value))]


def _value_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value_text, value))}]"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


# --- Evaluations and mixture ----------------------------------------------------------------------


def eval_tags(record: Record) -> list[dict[str, Any]]:
    """Every tag that was evaluated, parents before what lies below them.

    The whole is the tag `all`. Tags of the averaged weights stand under the same names behind
    `ema: `.
    """
    found = []
    plain = eval_prefix_in(record.config)
    for prefix, label in ((plain, ""), (f"{plain}/{EMA}", f"{EMA}: ")):
        parts = [
            name.removeprefix(f"{prefix}/").rpartition("/")
            for name in record.names
            if name.startswith(f"{prefix}/")
        ]
        tags = {tag for tag, _, last in parts if last in _CURVES and tag.split("/")[0] != EMA}
        for tag in sorted(tags):
            name = f"{prefix}/{tag}".rstrip("/")
            last = {key: record.series(f"{name}/{key}").values[-1:] for key in _LAST}
            # The whole has no parent, and is none: a tag above nothing begins a line of its own.
            above = [other for other in tags if other and tag.startswith(f"{other}/")]
            paths = {key: f"{name}/{key}" for key in _CURVES}
            found.append(
                {
                    "tag": f"{label}{tag or 'all'}",
                    "parent": f"{label}{max(above, key=len)}" if above else None,
                    "series": {
                        key: path if path in record.names else None for key, path in paths.items()
                    },
                    "last": {key: float(v[0]) for key, v in last.items() if np.isfinite(v).any()},
                }
            )
    return found


def mixture(record: Record) -> dict[str, Any] | None:
    """The stages that were logged, with weights and epochs read; null for a run without any.

    At most `MAX_STAGES`, the first; `note` says in words how many more there were.
    """
    start = name_from(metrics.MIXTURE_WEIGHT, "x").removesuffix("x")
    components = [name.removeprefix(start) for name in record.names if name.startswith(start)]
    stages = record.series(metrics.MIXTURE_STAGE)
    if not components or not stages.steps.size:
        return None
    changes = np.append(0, np.flatnonzero(np.diff(stages.values)) + 1)
    shown = changes[:MAX_STAGES]
    # Where stages began, by the config: rows are logged only every few steps.
    configured = section_in(record.config, "data").get("stages") or []
    starts = [each.get("start_step") for each in configured if isinstance(each, Mapping)]
    begins = []
    for row in changes[: MAX_STAGES + 1].tolist():
        number, logged = stages.values[row], int(stages.steps[row])
        before = int(stages.steps[row - 1]) if row else -1
        told = starts[int(number)] if 0 <= number < len(starts) else None
        if isinstance(told, int) and before < told <= logged:
            begins.append(told)
        else:
            begins.append(0 if row == number == 0 else logged)
    firsts = np.array(begins[: shown.size])
    ends = np.append(begins, int(stages.steps[-1]) + 1)[1 : shown.size + 1]
    weights, epochs = {}, {}
    for name in components:
        series, steps = record.series(f"{start}{name}"), stages.steps[shown]
        places = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
        is_logged = series.steps[places] == steps
        weights[name] = np.where(is_logged, series.values[places], np.nan)
        read = record.series(name_from(metrics.MIXTURE_EPOCH, name))
        epochs[name] = _epochs(read, firsts, ends, weights[name])

    def of_stage(number: int, values: Mapping[str, Float[np.ndarray, " S"]]) -> dict[str, float]:
        found = {name: float(each[number]) for name, each in values.items()}
        return {name: value for name, value in found.items() if np.isfinite(value)}

    note = None
    if changes.size > MAX_STAGES:
        note = f"The stage changed {changes.size - 1:,} times: these are the first {MAX_STAGES}."
    return {
        "stages": [
            {
                "first_step": int(first),
                "weights": of_stage(number, weights),
                "epochs": of_stage(number, epochs),
            }
            for number, first in enumerate(firsts)
        ],
        "components": components,
        "note": note,
    }


def _epochs(
    series: Series,
    firsts: Int[np.ndarray, " S"],
    ends: Int[np.ndarray, " S"],
    weights: Float[np.ndarray, " S"],
) -> Float[np.ndarray, " S"]:
    """How often the steps from `firsts` up to, not including, `ends` went through a component.

    A stage may begin between two rows. What was read there is shared by the stages as their steps
    times their weights are: an epoch is as many examples in one as in the other.
    """
    is_there = np.isfinite(series.values)
    if not is_there.any():
        return np.full(firsts.size, np.nan)
    # A row tells what was read once its step was done; before the first step that is nothing.
    steps, epochs = np.append(-1, series.steps[is_there]), np.append(0.0, series.values[is_there])
    edges = np.append(firsts, ends[-1])
    after = np.clip(np.searchsorted(steps, edges - 1), 1, steps.size - 1)
    left, right = steps[after - 1] + 1, steps[after] + 1
    # Of what the steps from one row to the next read, the share of those before the edge.
    weighed = np.append(0.0, np.cumsum(weights * (ends - firsts)))
    begun, at_edge, done = (np.interp(at, edges, weighed) for at in (left, edges, right))
    is_told = done > begun  # no weights, or none but zeros: then every step counts the same
    shares = np.where(is_told, at_edge - begun, edges - left) / np.where(
        is_told, done - begun, right - left
    )
    read = epochs[after - 1] + np.clip(shares, 0.0, 1.0) * (epochs[after] - epochs[after - 1])
    return np.diff(read)
