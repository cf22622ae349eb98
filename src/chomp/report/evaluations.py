"""The evaluations of a run as a tree of tags, and the stages of its data mixture."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from chomp.report.record import RunRecord, Series
from chomp.tracking import metrics
from chomp.tracking.metrics import name_from
from chomp.tracking.run_files import EMA, eval_prefix_in, section_in

# What one evaluation says of one tag: the last part of a metric's name.
_CURVES = ("loss", "bpb", "macro_loss")
_LAST = (*_CURVES, "micro_loss", "macro_bpb", "loss_stderr", "bpb_stderr", "tokens", "documents")
# More rows of a table nobody reads, and no run has them but by mistake.
MAX_STAGES = 50


def eval_tags(record: RunRecord) -> list[dict[str, Any]]:
    """Every tag that was evaluated, parents before what lies below them.

    The whole is the tag `all`. Tags of the averaged weights stand under the same names behind
    `ema: `.
    """
    prefix = eval_prefix_in(record.config)
    current = _tags(record, prefix, label="")
    return [*current, *_tags(record, f"{prefix}/{EMA}", label=f"{EMA}: ")]


def _tags(record: RunRecord, prefix: str, *, label: str) -> list[dict[str, Any]]:
    inside = [
        name.removeprefix(f"{prefix}/") for name in record.names if name.startswith(f"{prefix}/")
    ]
    found = {name.rpartition("/")[0] for name in inside if name.rpartition("/")[2] in _CURVES}
    tags = sorted(tag for tag in found if tag.split("/")[0] != EMA)
    return [_tag(record, prefix, tag, tags, label) for tag in tags]


def _tag(
    record: RunRecord, prefix: str, tag: str, tags: Iterable[str], label: str
) -> dict[str, Any]:
    name = f"{prefix}/{tag}".rstrip("/")
    series = {key: f"{name}/{key}" for key in _CURVES if f"{name}/{key}" in record.names}
    # The whole has no parent, and is none: a tag that is above nothing begins a line of its own.
    above = [other for other in tags if other and tag.startswith(f"{other}/")]
    last = {}
    for key in _LAST:
        values = record.series(f"{name}/{key}").values
        if values.size and math.isfinite(values[-1]):
            last[key] = float(values[-1])
    return {
        "tag": f"{label}{tag or 'all'}",
        "parent": f"{label}{max(above, key=len)}" if above else None,
        "series": {key: series.get(key) for key in _CURVES},
        "last": last,
    }


# Axes: S stages.


def mixture(record: RunRecord) -> dict[str, Any] | None:
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
    firsts = np.array([_first_step(starts, stages, int(row)) for row in changes[: MAX_STAGES + 1]])
    ends = np.append(firsts, int(stages.steps[-1]) + 1)[1 : shown.size + 1]
    firsts = firsts[: shown.size]
    weights = {}
    for name in components:
        series, steps = record.series(f"{start}{name}"), stages.steps[shown]
        places = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
        is_logged = series.steps[places] == steps
        weights[name] = np.where(is_logged, series.values[places], np.nan)
    epochs = {name: _epochs(record, name, firsts, ends, weights[name]) for name in components}
    found = [
        {
            "first_step": int(first),
            "weights": _known(weights, number),
            "epochs": _known(epochs, number),
        }
        for number, first in enumerate(firsts)
    ]
    note = None
    if changes.size > MAX_STAGES:
        note = f"The stage changed {changes.size - 1:,} times: these are the first {MAX_STAGES}."
    return {"stages": found, "components": components, "note": note}


def _first_step(starts: Sequence[Any], stages: Series, row: int) -> int:
    number, logged = stages.values[row], int(stages.steps[row])
    before = int(stages.steps[row - 1]) if row else -1
    start = starts[int(number)] if 0 <= number < len(starts) else None
    if isinstance(start, int) and before < start <= logged:
        return start
    return 0 if row == number == 0 else logged


def _epochs(
    record: RunRecord,
    name: str,
    firsts: Int[np.ndarray, " S"],
    ends: Int[np.ndarray, " S"],
    weights: Float[np.ndarray, " S"],
) -> Float[np.ndarray, " S"]:
    """How often the steps from `firsts` up to, not including, `ends` went through a component.

    A stage may begin between two rows. What was read there is shared by the stages as their steps
    times their weights are: an epoch is as many examples in one as in the other.
    """
    series = record.series(name_from(metrics.MIXTURE_EPOCH, name))
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


def _known(values: Mapping[str, Float[np.ndarray, " S"]], number: int) -> dict[str, float]:
    """What is known of a stage, by component."""
    found = {name: float(each[number]) for name, each in values.items()}
    return {name: value for name, value in found.items() if np.isfinite(value)}
