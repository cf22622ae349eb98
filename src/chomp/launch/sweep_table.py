"""What came of a sweep: one line for each run, best first."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from chomp.errors import require
from chomp.executor import PlannedStep, read_status
from chomp.launch.sweep import Point
from chomp.storage import exists, join
from chomp.tracking import Row, latest_rows, read_metrics
from chomp.tracking.run_files import METRICS_FILE

DEFAULT_METRIC = "eval/loss"
LOWEST, HIGHEST = "lowest", "highest"  # which value of the metric is the best
_INSTEAD = "train/loss"  # of runs that evaluate nothing
_WIDTH = 1000


def require_order(best: str) -> None:
    """Raise `ConfigError` for a wish about the table's order that nothing can obey."""
    require(
        best in (LOWEST, HIGHEST),
        given=f"--sweep-best {best}",
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
    """Print the runs by their last value of `metric`, the `best` first; those without one last."""
    found = {point: _last_row(planned, metric) for point, planned in runs.items()}
    if metric == DEFAULT_METRIC and not any(metric in row for row in found.values()):
        metric = _INSTEAD
        found = {point: _last_row(planned, metric) for point, planned in runs.items()}
    fields = _fields(list(runs))
    table = Table("", *fields, title=f"sweep, by {metric}, {best} first")
    for heading in (metric, "steps"):
        table.add_column(heading, justify="right")
    table.add_column("run")
    sign = 1.0 if best == LOWEST else -1.0
    in_order = sorted(runs, key=lambda at: _order(found[at], metric, sign))
    for place, point in enumerate(in_order, start=1):
        given = dict(text.split("=", 1) for text in point)
        row = found[point]
        value = row.get(metric)
        is_there = isinstance(value, int | float)
        table.add_row(
            str(place) if is_there else "-",
            *(given.get(field, "-") for field in fields),
            f"{value:.4f}" if is_there else _why_not(runs[point]),
            f"{row['step'] + 1:,}" if is_there else "-",
            runs[point].path,
        )
    # As wide as its content: a path that is cut cannot be copied.
    (console or Console(width=_WIDTH)).print(table)


def _fields(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(text.split("=", 1)[0] for point in points for text in point))


def _last_row(planned: PlannedStep, metric: str) -> Row:
    """The newest row of a run that has the metric; empty where none has."""
    settings = getattr(planned.config, "logging", None)
    record = join(planned.path, getattr(settings, "metrics_file", METRICS_FILE))
    rows = latest_rows(read_metrics(record)) if exists(record) else []
    return next((row for row in reversed(rows) if metric in row), {})


def _order(row: Row, metric: str, sign: float) -> float:
    value = row.get(metric)
    # A loss that is not finite is null in the record; both belong to the end of the table.
    if not isinstance(value, int | float) or not math.isfinite(value):
        return math.inf
    return sign * value


def _why_not(planned: PlannedStep) -> str:
    status = read_status(planned.path)
    return "not run" if status is None else status.state.lower()
