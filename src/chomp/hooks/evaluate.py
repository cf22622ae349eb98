"""Tagged evaluation as a callback of the loop."""

from collections.abc import Callable, Mapping
from typing import Any

from chomp.evaluation import TaggedEvaluator
from chomp.tracking import Tracker, with_short_keys

EvalCallback = Callable[[Mapping[str, Any], int], dict[str, float]]


def build_tagged_eval_callback(
    evaluators: Mapping[str, TaggedEvaluator], tracker: Tracker
) -> EvalCallback:
    """A function of (models by name, completed steps) that evaluates, logs and gives the metrics.

    Each evaluator takes the model of its own name, such as `current` and `ema`. A step that was
    evaluated already is not evaluated again.
    """
    last: dict[str, Any] = {"steps": None, "metrics": {}}

    def evaluate(models: Mapping[str, Any], completed_steps: int) -> dict[str, float]:
        if last["steps"] == completed_steps:
            return dict(last["metrics"])
        metrics: dict[str, float] = {}
        for name, evaluator in evaluators.items():
            metrics |= evaluator.evaluate(models[name])
        tracker.log(with_short_keys(metrics), step=completed_steps - 1)
        last.update(steps=completed_steps, metrics=metrics)
        return metrics

    return evaluate
