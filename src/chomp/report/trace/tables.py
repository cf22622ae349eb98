"""The summary of a trace as tables for a terminal."""

from rich.table import Table

from chomp.report.trace.summary import Share, TraceSummary

_LONGEST_NAME = 72  # up to where kernels' names differ; the page has the whole of it


def summary_tables(summary: TraceSummary, *, num_operations: int = 20) -> list[Table]:
    """Where the time went, the host's phases, the longest operations and the longest gaps."""
    tables = [_categories(summary)]
    if len(summary.programs) > 1:
        tables.append(_shares(summary, "program", summary.programs))
    if summary.phases:
        tables.append(_shares(summary, "host", summary.phases))
    return [*tables, _operations(summary, num_operations), _gaps(summary)]


def headline(summary: TraceSummary) -> str:
    """One line: the device, the steps, and how long one took."""
    busy = f"busy {summary.busy_ms / summary.total_ms:.1%} of the time"
    if summary.step_ms is None:
        return f"{summary.device}: {summary.total_ms:.2f} ms, {busy}"
    first, last = summary.steps[0], summary.steps[-1]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{summary.device}: {steps}, {summary.step_ms:.2f} ms a step, {busy}"


def _categories(summary: TraceSummary) -> Table:
    idle_ms = summary.total_ms - summary.busy_ms
    idle = Share("gaps (idle)", idle_ms, idle_ms / summary.total_ms)
    return _shares(summary, "device", [*(row for row in summary.categories if row.ms), idle])


def _shares(summary: TraceSummary, title: str, rows: "list[Share] | tuple[Share, ...]") -> Table:
    table = _table(title, "ms a step", "share")
    for row in rows:
        table.add_row(row.name, _per_step(summary, row.ms), f"{row.share:.1%}")
    return table


def _operations(summary: TraceSummary, limit: int) -> Table:
    table = _table("operation", "ms a step", "share", "ms", "runs")
    table.add_column("category")
    shown = summary.operations[:limit]
    has_places = any(row.place for row in shown)  # in CUDA graphs nobody knows
    if has_places:
        table.add_column("where in the program")
    for row in shown:
        table.add_row(
            _cut(row.name),
            _per_step(summary, row.ms),
            f"{row.share:.1%}",
            f"{row.ms:.3f}",
            f"{row.count:,}",
            row.category,
            *([_cut(row.place)] if has_places else []),
        )
    return table


def _gaps(summary: TraceSummary, limit: int = 5) -> Table:
    table = _table("idle after", "ms a step", "ms", "times", "longest ms")
    for row in summary.gaps[:limit]:
        table.add_row(
            _cut(row.after),
            _per_step(summary, row.ms),
            f"{row.ms:.3f}",
            f"{row.count:,}",
            f"{row.longest_ms:.3f}",
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _per_step(summary: TraceSummary, ms: float) -> str:
    return f"{ms / len(summary.steps):.3f}" if summary.steps else "-"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…"
