"""One run as a page's JSON holds it: curves, times, evaluations, texts, config.

Its form is described with the page that reads it, in `chomp.report.page`. All texts are without
secrets: a page is made to be sent to somebody.
"""

import os
import shlex
from typing import Any

import numpy as np

from chomp.report import run_facts
from chomp.report.downsample import bucket_means, downsampled, straight_pieces
from chomp.report.evaluations import eval_tags
from chomp.report.mixture import mixture
from chomp.report.packed import packed_steps, packed_values
from chomp.report.record import RunRecord, Series
from chomp.report.run_state import run_state
from chomp.report.run_texts import samples, template_part
from chomp.report.spikes import spikes
from chomp.report.timeline import axes, counted, resumes, waterfall
from chomp.storage import is_local
from chomp.tracking import names, without_secrets
from chomp.tracking.run_files import eval_prefix_in

# A page of under 5 MB holds about this many points: one takes 11 characters, its bucket's mean half
# as much again. They are shared evenly by the runs of a page, and within a run by weight.
PAGE_POINTS = 220_000
# More than this no chart can show: it is three to a pixel of a wide window.
MAX_POINTS = 4000
MIN_POINTS = 100
_WEIGHTS = {names.TRAIN_LOSS: 4.0, names.GRAD_NORM: 2.0, names.LEARNING_RATE: 2.0}
# A curve of straight pieces has few corners, and costs nothing beside the others.
_MAX_CORNERS = 40

_GROUPS = (
    ("loss", ("train/loss",)),
    ("optim", ("optim/", "grad/", "params/", "updates/", "opt_state/", "train/skipped_steps")),
    ("data", ("mixture/", "data/", "packing_", "tokens_seen")),
    ("speed", ("throughput/", "tokens_per_sec", "first_step_compile", "checkpoint/")),
    ("memory", ("memory/", "peak_memory")),
)


def run_payload(record: RunRecord, *, points: int = PAGE_POINTS) -> dict[str, Any]:
    """The run's part of a page; `points` are what all of its curves may take together.

    Without `id` and `profile`, which the page as a whole gives it.
    """
    template = template_part(record.folder)
    cells = run_facts.numbers(record)
    where = _where_command(record)
    written, unread = samples(record.folder)
    texts = {
        "name": record.name,
        "folder": record.folder,
        "state": run_state(record),
        "outcome": record.attempts[-1].outcome if record.attempts else None,
        "problems": [*record.problems, *_begun_before(record), *_nonfinite(record), *unread],
        "facts": run_facts.facts(record, cells, template.name),
        "eval_tags": eval_tags(record),
        "mixture": mixture(record),
        "where_command": where,
        "samples": written,
        "config": list(run_facts.config_leaves(record.config).items()),
        "environment": run_facts.environment(record),
        "resumes": resumes(record),
        "spikes": _spikes(record, where),
    }
    others = {
        "template": template.content,  # HTML in part, made of texts without secrets
        "numbers": cells,
        "axes": axes(record),
        "series": _series(record, points),
        "waterfall": waterfall(record),
        "ceiling": run_facts.ceiling(record),
        "profile": None,
    }
    return {**without_secrets(texts), **others}


def _series(record: RunRecord, points: int) -> dict[str, Any]:
    """Every metric as a curve; short ones whole, long ones within their share of the points."""
    packed, long = {}, {}
    for name in record.names:
        series = record.series(name)
        corners = straight_pieces(series.steps, series.values, _MAX_CORNERS)
        if corners is not None:
            packed[name] = _packed(record, name, series, corners.steps, corners.values)
        elif series.values.size <= MIN_POINTS:
            packed[name] = _packed(record, name, series, series.steps, series.values)
        else:
            long[name] = series
    weight = sum(_WEIGHTS.get(name, 1.0) for name in long)
    for name, series in long.items():
        share = int(points * _WEIGHTS.get(name, 1.0) / weight)
        packed[name] = _thinned(record, name, series, min(max(share, MIN_POINTS), MAX_POINTS))
    return {name: packed[name] for name in record.names}


def _thinned(record: RunRecord, name: str, series: Series, limit: int) -> dict[str, Any]:
    curve = downsampled(series.steps, series.values, limit)
    packed = _packed(record, name, series, curve.steps, curve.values)
    if curve.steps.size == series.steps.size:
        return packed
    means = bucket_means(series.steps, series.values, limit // 2)
    return {
        **packed,
        "mean_step": packed_steps(means.steps),
        "mean": packed_values(means.values),
    }


def _packed(
    record: RunRecord, name: str, series: Series, steps: np.ndarray, values: np.ndarray
) -> dict[str, Any]:
    return {
        "group": _group(name, eval_prefix_in(record.config)),
        "step": packed_steps(steps),
        "value": packed_values(values),
        "count": int(series.steps.size),
    }


def _group(name: str, prefix: str) -> str:
    if name.startswith((f"{prefix}/", "lm_eval/")):
        return "eval"
    return next((group for group, starts in _GROUPS if name.startswith(starts)), "other")


def _nonfinite(record: RunRecord) -> list[str]:
    series = record.series(names.TRAIN_LOSS)
    bad = series.steps[~np.isfinite(series.values)]
    if not bad.size:
        return []
    steps = counted(bad.size, "logged step", "logged steps")
    first = f": {bad[0]:,}" if bad.size == 1 else f", the first of them {bad[0]:,}"
    return [f"the loss was not finite at {steps}{first}"]


def _begun_before(record: RunRecord) -> list[str]:
    first = record.attempts[0].first_step if record.attempts else None
    return (
        [f"the record begins at step {first:,}: nothing is known of those before"] if first else []
    )


def _where_command(record: RunRecord) -> str | None:
    """How to ask which documents a step was trained on; null for a run that has no config."""
    if record.config is None:
        return None
    # A page is read elsewhere than where it was asked for.
    folder = os.path.abspath(record.folder) if is_local(record.folder) else record.folder
    return f"chomp data where {shlex.quote(folder)} --step {{step}}"


def _spikes(record: RunRecord, where: str | None) -> list[dict[str, Any]]:
    series = record.series(names.TRAIN_LOSS)
    return [
        {
            "step": spike.step,
            "value": spike.value,
            "usual": spike.usual,
            # Not `format`: a folder's name may have braces of its own.
            "command": None if where is None else where.replace("{step}", str(spike.step)),
        }
        for spike in spikes(series.steps, series.values)
    ]
