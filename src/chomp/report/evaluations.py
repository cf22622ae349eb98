"""The evaluations of a run as a tree of tags, for the averaged weights too."""

import math
from collections.abc import Iterable
from typing import Any

from chomp.report.record import RunRecord
from chomp.tracking.run_files import EMA, eval_prefix_in

# What one evaluation says of one tag: the last part of a metric's name.
_CURVES = ("loss", "bpb", "macro_loss")
_LAST = (*_CURVES, "micro_loss", "macro_bpb", "loss_stderr", "bpb_stderr", "tokens", "documents")


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
    return {
        "tag": f"{label}{tag or 'all'}",
        "parent": f"{label}{max(above, key=len)}" if above else None,
        "series": {key: series.get(key) for key in _CURVES},
        "last": _last(record, name),
    }


def _last(record: RunRecord, name: str) -> dict[str, float]:
    last = {}
    for key in _LAST:
        values = record.series(f"{name}/{key}").values
        if values.size and math.isfinite(values[-1]):
            last[key] = float(values[-1])
    return last
