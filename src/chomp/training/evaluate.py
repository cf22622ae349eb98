"""Tagged evaluation between steps: its config, the callback, and the hook that calls it in time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from chomp.config import Config, setting
from chomp.data import EvalDataset
from chomp.errors import require
from chomp.evaluation import TaggedEvaluator
from chomp.tokenize import Tokenizer, bytes_per_token
from chomp.tracking import METRICS, Tracker, with_short_keys
from chomp.training.clock import Phase
from chomp.training.harness_config import HarnessConfig

# What evaluation under such a prefix would write over.
_OTHER_METRICS = {key.split("/")[0] for key in METRICS} - {"eval"}

EvalCallback = Callable[[Mapping[str, Any], int], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class GrugEvalConfig(Config):
    """How held-out data is evaluated: always at the end, and every `steps_per_eval` steps."""

    # In the first chomp a period of 0 is none, so 0 under its name is null here.
    steps_per_eval: int | None = setting(
        default=None, ge=1, lt=2**31, also=("train.eval_every",), zero_is_null=True
    )
    eval_batch_size: int = setting(default=32, ge=1, le=2**20)
    # Per dataset, of `eval_batch_size` rows that are spread evenly over it; None: all of it.
    max_eval_batches: int | None = setting(default=None, ge=1, lt=2**31)
    eval_current: bool = True
    eval_ema: bool = True  # the averaged weights too, where there are any
    compute_bpb: bool = True
    prefix: str = "eval"
    harness: HarnessConfig | None = None  # lm-eval tasks, with a period of their own

    def __post_init__(self) -> None:
        words = self.prefix.split("/")
        require(
            all(word.strip() for word in words) and words[0] not in _OTHER_METRICS,
            f"eval.prefix={self.prefix!r}",
            allowed="words joined by single slashes, the first none that other metrics begin with",
            fix="leave it at `eval`, or choose a word of your own",
        )

    def prefixes(self, *, has_average: bool) -> dict[str, str]:
        """What the metrics of each evaluated model begin with, by the model's name."""
        found = {"current": self.prefix} if self.eval_current else {}
        if self.eval_ema and has_average:
            found["ema"] = f"{self.prefix}/ema"
        require(
            bool(found),
            f"eval.eval_current={self.eval_current} and eval.eval_ema={self.eval_ema} in a "
            f"run {'with' if has_average else 'without'} averaged weights",
            allowed="at least one model to evaluate",
            fix="set eval.eval_current=true, train.ema_beta=0.999, or eval=null for no evaluation",
        )
        return found


class Evaluation:
    """Evaluates the models that the config asks for, when it is due and whenever it is called."""

    phase: Phase = "eval"

    def __init__(
        self,
        config: GrugEvalConfig,
        datasets: Sequence[EvalDataset],
        losses_of: Callable[[Any, Any], Any],
        tracker: Tracker,
        *,
        mesh: Mesh,
        tokenizer: Tokenizer,
        has_average: bool,
        about_step: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._period = config.steps_per_eval
        evaluators = evaluators_of(
            config, datasets, losses_of, mesh=mesh, tokenizer=tokenizer, has_average=has_average
        )
        self._evaluate = build_tagged_eval_callback(evaluators, tracker, about_step)

    def is_due(self, completed_steps: int) -> bool:
        """Whether the period asks for an evaluation now."""
        return self._period is not None and completed_steps % self._period == 0

    def __call__(self, models: Mapping[str, Any], completed_steps: int) -> None:
        """Evaluate now, and log."""
        self._evaluate(models, completed_steps)


def evaluators_of(
    config: GrugEvalConfig,
    datasets: Sequence[EvalDataset],
    losses_of: Callable[[Any, Any], Any],
    *,
    mesh: Mesh,
    tokenizer: Tokenizer,
    has_average: bool,
) -> dict[str, TaggedEvaluator]:
    """An evaluator for each model that the config asks for, by the model's name."""
    sizes = bytes_per_token(tokenizer) if config.compute_bpb else None
    return {
        name: TaggedEvaluator(
            datasets,
            losses_of,
            mesh=mesh,
            batch_size=config.eval_batch_size,
            max_batches=config.max_eval_batches,
            bytes_per_token=sizes,
            prefix=prefix,
        )
        for name, prefix in config.prefixes(has_average=has_average).items()
    }


def build_tagged_eval_callback(
    evaluators: Mapping[str, TaggedEvaluator],
    tracker: Tracker,
    about_step: Callable[[], Mapping[str, float]] = dict,
) -> EvalCallback:
    """A function of (models by name, completed steps) that evaluates, logs and gives the metrics.

    Each evaluator takes the model of its own name, such as `current` and `ema`. A step that was
    evaluated already is not evaluated again. `about_step` gives what the row says of the step
    besides, such as its loss where no other row has it.
    """
    last: dict[str, Any] = {"steps": None, "metrics": {}}

    def evaluate(models: Mapping[str, Any], completed_steps: int) -> dict[str, float]:
        if last["steps"] == completed_steps:
            return dict(last["metrics"])
        metrics: dict[str, float] = {}
        for name, evaluator in evaluators.items():
            metrics |= evaluator.evaluate(models[name])
        tracker.log(with_short_keys({**about_step(), **metrics}), step=completed_steps - 1)
        last.update(steps=completed_steps, metrics=metrics)
        return metrics

    return evaluate
