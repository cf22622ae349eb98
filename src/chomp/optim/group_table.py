"""Which weights an optimizer treats how, as a table: said at the start of a run."""

import math
from typing import Any

from chomp.optim.config import GrugOptimizerConfig
from chomp.optim.groups import DECAYED_GROUPS, PARAM_GROUPS, grouped_weights

_HEAD = ("group", "updated by", "decay", "tensors", "weights")


def group_table(params: Any, param_groups: Any, config: GrugOptimizerConfig) -> str:
    """Groups, the optimizer of each, its decay, tensors and weights; every weight counted once.

    `params` may be shapes. A group whose weights two optimizers share has a line for each.
    """
    sizes: dict[tuple[str, str], list[int]] = {}
    for weight in grouped_weights(params, param_groups):
        key = (weight.group, config.updated_by(weight.group, len(weight.shape)))
        sizes.setdefault(key, []).append(math.prod(weight.shape))
    rows = [
        _row(group, rule, config, sizes[group, rule])
        for group in PARAM_GROUPS
        for rule in ("muon", "adamw", "none")
        if (group, rule) in sizes
    ]
    everything = [size for found in sizes.values() for size in found]
    return _aligned([_HEAD, *rows, ("all", "", "", *_counted(everything))])


def _row(group: str, rule: str, config: GrugOptimizerConfig, sizes: list[int]) -> tuple[str, ...]:
    times = config.muon.weight_decay_mult if rule == "muon" else 1.0
    decay = config.weight_decay * times if group in DECAYED_GROUPS else 0.0
    return (group, rule, f"{decay:g}" if decay else "none", *_counted(sizes))


def _counted(sizes: list[int]) -> tuple[str, str]:
    return str(len(sizes)), f"{sum(sizes):,}"


def _aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{'>' if number > 2 else '<'}{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
