"""What the tasks gave: rows of a table, metrics for the trackers, and everything as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chomp.evaluation.request_scores import TruncationCounts
from chomp.tracking.metrics import (
    LM_EVAL_MACRO_AVERAGE,
    LM_EVAL_METRIC,
    LM_EVAL_MICRO_AVERAGE,
    LM_EVAL_TRUNCATED,
    name_from,
)

STDERR = "_stderr"


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One metric of one task, or of a group of tasks."""

    task: str
    metric: str  # with the name of its filter after a comma, unless that is `none`
    value: float
    stderr: float | None  # None: this metric has none
    num_samples: int | None  # None: a group of tasks
    num_fewshot: int | None


@dataclass(frozen=True, kw_only=True)
class HarnessResults:
    """The results of a number of tasks, in lm-eval's order."""

    rows: tuple[ResultRow, ...]
    cuts: TruncationCounts
    versions: Mapping[str, Any]  # of the tasks

    @staticmethod
    def from_lm_eval(results: Mapping[str, Any], cuts: TruncationCounts) -> "HarnessResults":
        """The numbers in what `lm_eval.simple_evaluate` returns; everything else is left out."""
        shots = results.get("n-shot", {})
        samples = results.get("n-samples", {})
        rows = []
        for task, values in results["results"].items():
            numbers = {
                name.removesuffix(",none"): float(value)
                for name, value in values.items()
                if isinstance(value, int | float | np.number) and "," in name
            }
            for metric, value in numbers.items():
                name, comma, of_filter = metric.partition(",")
                if name.endswith(STDERR):
                    continue
                rows.append(
                    ResultRow(
                        task=task,
                        metric=metric,
                        value=value,
                        stderr=numbers.get(f"{name}{STDERR}{comma}{of_filter}"),
                        num_samples=samples.get(task, {}).get("effective"),
                        num_fewshot=shots.get(task),
                    )
                )
        return HarnessResults(rows=tuple(rows), cuts=cuts, versions=results.get("versions", {}))

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> "HarnessResults":
        """What `as_json` was made from."""
        return HarnessResults(
            rows=tuple(ResultRow(**row) for row in plain["results"]),
            cuts=TruncationCounts(**plain["requests"]),
            versions=plain["task_versions"],
        )

    def metrics(self) -> dict[str, float]:
        """`lm_eval/<task>/<metric>`, its `_stderr`, and averages over tasks.

        `lm_eval/averages/macro_avg_<metric>` counts each task once, `micro_avg_` each document.
        Groups are averages already and enter neither.
        """
        found, by_metric = dict[str, float](), dict[str, list[tuple[float, int]]]()
        for row in self.rows:
            found[name_from(LM_EVAL_METRIC, row.task, row.metric)] = row.value
            if row.stderr is not None:
                name, comma, of_filter = row.metric.partition(",")
                with_stderr = f"{name}{STDERR}{comma}{of_filter}"
                found[name_from(LM_EVAL_METRIC, row.task, with_stderr)] = row.stderr
            if row.num_samples is not None:
                by_metric.setdefault(row.metric, []).append((row.value, row.num_samples))
        for metric, pairs in by_metric.items():
            values, counts = zip(*pairs, strict=True)
            found[name_from(LM_EVAL_MACRO_AVERAGE, metric)] = float(np.mean(values))
            found[name_from(LM_EVAL_MICRO_AVERAGE, metric)] = float(
                np.average(values, weights=counts)
            )
        found[LM_EVAL_TRUNCATED] = float(self.cuts.truncated)
        return found

    def table(self) -> list[tuple[str, ...]]:
        """Header and rows as text: task, metric, value, standard error, samples, shots."""
        lines: list[tuple[str, ...]] = [("task", "metric", "value", "stderr", "samples", "shots")]
        for row in self.rows:
            stderr = "" if row.stderr is None else f"{row.stderr:.4f}"
            counts = [row.num_samples, row.num_fewshot]
            shown = ("" if count is None else str(count) for count in counts)
            lines.append((row.task, row.metric, f"{row.value:.4f}", stderr, *shown))
        return lines

    def as_json(self) -> dict[str, Any]:
        """Everything here as plain values."""
        return {
            "results": [asdict(row) for row in self.rows],
            "metrics": self.metrics(),
            "requests": asdict(self.cuts),
            "task_versions": dict(self.versions),
        }
