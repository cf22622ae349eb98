"""One run as a page's JSON holds it: curves, times, evaluations, texts, config.

Its form is described with the page that reads it, in `chomp.report.page`. All texts are without
secrets: a page is made to be sent to somebody.
"""

import os
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from chomp.report import run_facts
from chomp.report.columns import LARGEST, packed_steps, packed_values
from chomp.report.downsample import Curve, bucket_means, downsampled, straight_pieces
from chomp.report.evaluations import eval_tags, mixture
from chomp.report.record import RunRecord, Series
from chomp.report.run_facts import run_state
from chomp.report.run_texts import samples, template_part
from chomp.report.spikes import spikes
from chomp.report.timeline import axes, counted, resumes, waterfall
from chomp.storage import exists, is_local
from chomp.tracking import metrics, without_secrets
from chomp.tracking.run_files import eval_prefix_in, is_relative, path_above, section_in

# A page of under 5 MB holds about this many points: one takes 11 characters, its bucket's mean half
# as much again. They are shared evenly by the runs of a page, and within a run by weight.
PAGE_POINTS = 220_000
# More than this no chart can show: it is three to a pixel of a wide window.
MAX_POINTS = 4000
MIN_POINTS = 100
_WEIGHTS = {metrics.TRAIN_LOSS: 4.0, metrics.GRAD_NORM: 2.0, metrics.LEARNING_RATE: 2.0}
# What a schedule or a counter made is of straight pieces: the corners and a few rows in between are
# all there is to see of it, as of what never changes. What was measured may look so for a while,
# but each of its rows is news.
_DRAWN_BY_CORNERS = (metrics.LEARNING_RATE, metrics.TOTAL_TOKENS, metrics.TOTAL_GFLOPS, "mixture/")
_MAX_CORNERS = 40
_MAX_NAMED = 5  # metrics, in one sentence

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
    all_series = {name: record.series(name) for name in record.names}
    losses = all_series.get(metrics.TRAIN_LOSS, record.series(metrics.TRAIN_LOSS))
    template = template_part(record.folder)
    cells = run_facts.numbers(record)
    where = _where_command(record)
    written, unread = samples(record.folder)
    texts = {
        "name": record.name,
        "folder": record.folder,
        "state": run_state(record),
        "outcome": record.attempts[-1].outcome if record.attempts else None,
        "problems": [
            *record.problems,
            *_begun_before(record),
            *_nonfinite(losses),
            *_beyond(all_series),
            *unread,
        ],
        "facts": run_facts.facts(record, cells, template.name),
        "eval_tags": eval_tags(record),
        "mixture": mixture(record),
        "where_command": where,
        "samples": written,
        "config": list(run_facts.config_leaves(record.config).items()),
        "environment": run_facts.environment(record),
        "resumes": resumes(record),
        "spikes": _spikes(losses, where),
    }
    others = {
        "template": template.content,  # HTML in part, made of texts without secrets
        "numbers": cells,
        "axes": axes(record),
        "series": _series(all_series, eval_prefix_in(record.config), points),
        "waterfall": waterfall(record),
        "ceiling": run_facts.ceiling(record),
        "profile": None,
    }
    return {**without_secrets(texts), **others}


def _series(all_series: Mapping[str, Series], eval_prefix: str, points: int) -> dict[str, Any]:
    """Every metric as a curve: whole if all of them fit, else the long ones within their shares."""
    curves = _curves(all_series, points)
    return {name: {"group": _group(name, eval_prefix), **curves[name]} for name in all_series}


def _curves(all_series: Mapping[str, Series], points: int) -> dict[str, dict[str, Any]]:
    sizes = [series.values.size for series in all_series.values()]
    if sum(sizes) <= points and max(sizes, default=0) <= MAX_POINTS:
        return {name: _whole(series) for name, series in all_series.items()}
    packed, long = {}, {}
    for name, series in all_series.items():
        if series.values.size <= MIN_POINTS:
            packed[name] = _whole(series)
        elif (corners := _corners(name, series)) is not None:
            packed[name] = _thinned(series, corners, MIN_POINTS)
        else:
            long[name] = series
    weight = sum(_WEIGHTS.get(name, 1.0) for name in long)
    for name, series in long.items():
        share = int(points * _WEIGHTS.get(name, 1.0) / weight)
        limit = min(max(share, MIN_POINTS), MAX_POINTS)
        curve = downsampled(series.steps, series.values, limit)
        packed[name] = _thinned(series, curve, limit // 2)
    return packed


def _corners(name: str, series: Series) -> Curve | None:
    """The corners of a curve of straight pieces, with rows in between for whoever points at it.

    None where that would not be all of it.
    """
    is_level = bool(np.all(series.values == series.values[0]))
    if not is_level and not name.startswith(_DRAWN_BY_CORNERS):
        return None
    corners = straight_pieces(series.steps, series.values, _MAX_CORNERS)
    if corners is None:
        return None
    spread = np.linspace(0, series.steps.size - 1, MIN_POINTS).round().astype(np.int64)
    kept = np.union1d(spread, np.searchsorted(series.steps, corners.steps))
    return Curve(series.steps[kept], series.values[kept])


def _whole(series: Series) -> dict[str, Any]:
    return _packed(series, Curve(series.steps, series.values))


def _thinned(series: Series, curve: Curve, buckets: int) -> dict[str, Any]:
    """Some points of a series, with the means of all its rows for a smoothed curve."""
    packed = _packed(series, curve)
    if curve.steps.size == series.steps.size:
        return packed
    means = bucket_means(series.steps, series.values, buckets)
    return {**packed, "mean_step": packed_steps(means.steps), "mean": packed_values(means.values)}


def _packed(series: Series, curve: Curve) -> dict[str, Any]:
    return {
        "step": packed_steps(curve.steps),
        "value": packed_values(curve.values),
        "count": int(series.steps.size),
    }


def _group(name: str, prefix: str) -> str:
    if name.startswith((f"{prefix}/", "lm_eval/")):
        return "eval"
    return next((group for group, starts in _GROUPS if name.startswith(starts)), "other")


def _nonfinite(losses: Series) -> list[str]:
    bad = losses.steps[~np.isfinite(losses.values)]
    if not bad.size:
        return []
    steps = counted(bad.size, "logged step", "logged steps")
    first = f": {bad[0]:,}" if bad.size == 1 else f", the first of them {bad[0]:,}"
    return [f"the loss was not finite at {steps}{first}"]


def _beyond(all_series: Mapping[str, Series]) -> list[str]:
    """Which metrics have values that are larger than a page can draw, and the first of each."""
    found = []
    for name, series in all_series.items():
        is_beyond = np.abs(series.values) > LARGEST
        if is_beyond.any():
            at = int(np.argmax(is_beyond))
            steps = counted(int(is_beyond.sum()), "logged step", "logged steps")
            found.append(f"{name} at {steps} ({series.values[at]:g} at step {series.steps[at]:,})")
    if not found:
        return []
    more = f" and {len(found) - _MAX_NAMED:,} more metrics" if len(found) > _MAX_NAMED else ""
    told = f"{', '.join(found[:_MAX_NAMED])}{more}"
    return [f"larger than the {LARGEST:.1e} that it is drawn as: {told}"]


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
    command = f"chomp data where {shlex.quote(folder)} --step {{step}}"
    return f"cd {shlex.quote(os.getcwd())} && {command}" if _is_only_found_here(record) else command


def _is_only_found_here(record: RunRecord) -> bool:
    """Whether a store of the run is found from here, and would not be found from elsewhere."""
    components = section_in(section_in(record.config, "data"), "components")
    stores = [section_in(components, name).get("train_store") for name in components]
    relative = [store for store in stores if isinstance(store, str) and is_relative(store)]
    return any(exists(path) and path_above(path, record.folder) is None for path in relative)


def _spikes(losses: Series, where: str | None) -> list[dict[str, Any]]:
    values = np.clip(losses.values, -LARGEST, LARGEST)  # as high as the curve is drawn
    return [
        {
            "step": spike.step,
            "value": spike.value,
            "usual": spike.usual,
            # Not `format`: a folder's name may have braces of its own.
            "command": None if where is None else where.replace("{step}", str(spike.step)),
        }
        for spike in spikes(losses.steps, values)
    ]
