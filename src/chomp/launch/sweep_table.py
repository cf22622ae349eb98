"""What came of a sweep: one line for each run, best first."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from chomp.errors import require
from chomp.executor import PlannedStep, read_status
from chomp.launch.sweep import Point
from chomp.storage import exists
from chomp.storage.printable import PlainConsole
from chomp.tracking import Row, latest_rows, read_metrics
from chomp.tracking.run_files import (
    AVERAGED,
    eval_prefix_in,
    held_out_prefix,
    is_of_averaged,
    record_in,
    resolved_config,
)

DEFAULT_METRIC = "eval/loss"
LOWEST, HIGHEST = "lowest", "highest"  # which value of the metric is the best
_INSTEAD = "train/loss"  # of runs that evaluate nothing
_WIDTH = 1000


def require_order(best: str) -> None:
    """Raise `ConfigError` for a wish about the table's order that nothing can obey."""
    require(
        best in (LOWEST, HIGHEST),
        f"--sweep-best {best}",
        allowed=f"{LOWEST}, which is the default and right for a loss, or {HIGHEST}",
        fix=f"leave it out, or write --sweep-best {HIGHEST} for a metric such as an accuracy",
    )


def tell_sweep(
    runs: Mapping[Point, PlannedStep],
    metric: str,
    *,
    best: str = LOWEST,
    console: Console | None = None,
) -> None:
    """Print the runs by their last value of `metric`, the `best` first; those without one last.

    The default metric is each run's held-out loss, which is of the averaged weights where the run
    evaluated nothing else, and the training loss where no run was evaluated.
    """
    found = {point: _last_row(planned, metric) for point, planned in runs.items()}
    if metric == DEFAULT_METRIC and not any(row for _, row in found.values()):
        metric = _INSTEAD
        found = {point: _last_row(planned, metric) for point, planned in runs.items()}
    fields = _fields(list(runs))
    shown = " or ".join(sorted({name for name, row in found.values() if row})) or metric
    table = Table("", *fields, title=f"sweep, by {shown}, {best} first")
    for heading in (shown, "steps"):
        table.add_column(heading, justify="right")
    table.add_column("run")
    sign = 1.0 if best == LOWEST else -1.0
    in_order = sorted(runs, key=lambda at: _order(*found[at], sign))
    for place, point in enumerate(in_order, start=1):
        given = dict(text.split("=", 1) for text in point)
        name, row = found[point]
        value = row.get(name)
        weights = f" ({AVERAGED})" if is_of_averaged(name) else ""
        is_there = isinstance(value, int | float)
        table.add_row(
            str(place) if is_there else "-",
            *(given.get(field, "-") for field in fields),
            f"{value:.4f}{weights}" if is_there else _why_not(runs[point]),
            f"{row['step'] + 1:,}" if is_there else "-",
            runs[point].path,
        )
    # As wide as its content: a path that is cut cannot be copied.
    (console or PlainConsole(width=_WIDTH)).print(table)


def _fields(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(text.split("=", 1)[0] for point in points for text in point))


def _last_row(planned: PlannedStep, metric: str) -> tuple[str, Row]:
    """The metric by its name in a run, and the newest row that has it; empty where none has."""
    config = resolved_config(planned.path)
    record = record_in(planned.path, config)
    rows = latest_rows(read_metrics(record)) if exists(record) else []
    if metric == DEFAULT_METRIC:
        metric = f"{held_out_prefix(eval_prefix_in(config), set().union(*rows))}/loss"
    return metric, next((row for row in reversed(rows) if metric in row), {})


def _order(metric: str, row: Row, sign: float) -> float:
    value = row.get(metric)
    # A loss that is not finite is null in the record; both belong to the end of the table.
    if not isinstance(value, int | float) or not math.isfinite(value):
        return math.inf
    return sign * value


def _why_not(planned: PlannedStep) -> str:
    status = read_status(planned.path)
    return "not run" if status is None else status.state.lower()
