"""What the tasks gave: rows of a table, metrics for the trackers, and everything as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chomp.evaluation.harness.requests import Cuts

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
    cuts: Cuts
    versions: Mapping[str, Any]  # of the tasks

    @staticmethod
    def from_lm_eval(results: Mapping[str, Any], cuts: Cuts) -> "HarnessResults":
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
            cuts=Cuts(**plain["requests"]),
            versions=plain["task_versions"],
        )

    def metrics(self) -> dict[str, float]:
        """`lm_eval/<task>/<metric>`, its `_stderr`, and `lm_eval/averages/<metric>`.

        An average is over tasks alone, each counting once: groups are averages already.
        """
        found, by_metric = dict[str, float](), dict[str, list[float]]()
        for row in self.rows:
            found[f"lm_eval/{row.task}/{row.metric}"] = row.value
            if row.stderr is not None:
                name, comma, of_filter = row.metric.partition(",")
                found[f"lm_eval/{row.task}/{name}{STDERR}{comma}{of_filter}"] = row.stderr
            if row.num_samples is not None:
                by_metric.setdefault(row.metric, []).append(row.value)
        for metric, values in by_metric.items():
            found[f"lm_eval/averages/{metric}"] = float(np.mean(values))
        found["lm_eval/truncated_requests"] = float(self.cuts.truncated)
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
