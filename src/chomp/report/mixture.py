"""The stages of a run's data mixture: from which step, in which shares, and what each one read."""

from typing import Any

import numpy as np

from chomp.report.record import RunRecord, Series
from chomp.tracking import names
from chomp.tracking.names import name_from
from chomp.tracking.run_files import section_in


def mixture(record: RunRecord) -> dict[str, Any] | None:
    """The stages that were logged, with weights and epochs read; null for a run without any."""
    start = name_from(names.MIXTURE_WEIGHT, "x").removesuffix("x")
    components = [name.removeprefix(start) for name in record.names if name.startswith(start)]
    stages = record.series(names.MIXTURE_STAGE)
    if not components or not stages.steps.size:
        return None
    weights = {name: record.series(f"{start}{name}") for name in components}
    changes = [0, *(np.flatnonzero(np.diff(stages.values)) + 1)]
    firsts = [_first_step(record, stages, change) for change in changes]
    ends = [*firsts[1:], int(stages.steps[-1]) + 1]
    found = [
        {
            "first_step": first,
            "weights": _known({n: _at(s, int(stages.steps[row])) for n, s in weights.items()}),
            "epochs": _known({name: _epochs(record, name, first, end) for name in components}),
        }
        for row, first, end in zip(changes, firsts, ends, strict=True)
    ]
    return {"stages": found, "components": components}


def _first_step(record: RunRecord, stages: Series, row: int) -> int:
    """Where the stage of a row began, by the config: rows are logged only every few steps."""
    told = section_in(record.config, "data").get("stages")
    starts = [stage.get("start_step") for stage in told or [] if isinstance(stage, dict)]
    number = stages.values[row]
    start = starts[int(number)] if 0 <= number < len(starts) else None
    logged = int(stages.steps[row])
    if isinstance(start, int) and start <= logged:
        return start
    return 0 if number == 0 else logged


def _epochs(record: RunRecord, name: str, first: int, end: int) -> float | None:
    """How often the steps from `first` up to, not including, `end` went through a component."""
    series = record.series(name_from(names.MIXTURE_EPOCH, name))
    is_there = np.isfinite(series.values)
    if not is_there.any():
        return None
    # A row tells what was read once its step was done; before the first step that is nothing.
    steps, epochs = np.append(-1, series.steps[is_there]), np.append(0.0, series.values[is_there])
    before, after = np.interp([first - 1, end - 1], steps, epochs)
    return float(after - before)


def _at(series: Series, step: int) -> float | None:
    found = series.values[series.steps == step]
    return float(found[0]) if found.size and np.isfinite(found[0]) else None


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
