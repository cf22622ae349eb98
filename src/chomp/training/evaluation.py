"""Held-out loss between steps: configs, evaluators, and the callback that logs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chomp.config import Config, setting
from chomp.data import EvalDataset
from chomp.errors import require
from chomp.evaluation import TaggedEvaluator
from chomp.tokenize import bytes_per_token
from chomp.tracking import METRICS, Tracker, with_short_keys

EvalCallback = Callable[[Mapping[str, Any], int], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class HarnessConfig(Config):
    """lm-eval tasks that are run at the end of a run, and every `every` steps."""

    tasks: tuple[str, ...]
    every: int | None = setting(default=None, ge=1, lt=2**31)
    include_path: str | None = None  # a folder of task files (YAML)
    include_defaults: bool = False  # lm-eval's own tasks too, whose data is mostly on a hub
    # Examples in each prompt; None: as each task says.
    num_fewshot: int | None = setting(default=None, ge=0, le=1000)
    limit: int | None = setting(default=None, ge=1, lt=2**31)  # documents of each task; None: all
    # Rows of packed requests, each of `max_length` tokens.
    batch_size: int = setting(default=32, ge=1, le=2**20)
    # None: train.seq_len, the rows the model was trained on.
    max_length: int | None = setting(default=None, ge=1, le=2**20)
    allow_code: bool = False  # tasks may bring Python, or run a model's answers as programs

    def __post_init__(self) -> None:
        require(
            len(self.tasks) > 0,
            f"harness.tasks={list(self.tasks)}",
            allowed="at least one task",
            fix="name a task, or set eval.harness=null for none",
        )
        require(
            self.include_path is not None or self.include_defaults,
            f"harness.tasks={list(self.tasks)} and no folder of tasks",
            allowed="a folder of task files, or lm-eval's own tasks",
            fix="set harness.include_path, or harness.include_defaults=true",
        )


@dataclass(frozen=True, kw_only=True)
class GrugEvalConfig(Config):
    """How held-out data is evaluated: always at the end, and every `steps_per_eval` steps."""

    # Seed 004's train.eval_every uses 0 for none.
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
        other_metrics = {key.split("/")[0] for key in METRICS} - {"eval"}
        require(
            all(word.strip() for word in words) and words[0] not in other_metrics,
            f"eval.prefix={self.prefix!r}",
            allowed="words joined by single slashes, the first none that other metrics begin with",
            fix="leave it at `eval`, or choose a word of your own",
        )

    def prefixes(self, *, has_average: bool) -> dict[str, str]:
        """The prefix of the metrics of each evaluated model, by the model's name."""
        prefixes = {"current": self.prefix} if self.eval_current else {}
        if self.eval_ema and has_average:
            prefixes["ema"] = f"{self.prefix}/ema"
        require(
            bool(prefixes),
            f"eval.eval_current={self.eval_current} and eval.eval_ema={self.eval_ema} in a "
            f"run {'with' if has_average else 'without'} averaged weights",
            allowed="at least one model to evaluate",
            fix="set eval.eval_current=true, train.ema_beta=0.999, or eval=null for no evaluation",
        )
        return prefixes


def build_evaluators(
    config: GrugEvalConfig,
    run: Any,
    losses_of: Callable[[Any, Any], Any],
    *,
    has_average: bool,
    datasets: Sequence[EvalDataset] | None = None,
) -> dict[str, TaggedEvaluator]:
    """An evaluator for each model that the config asks for, by the model's name.

    `run` has a mesh, a tokenizer and, unless they are given, `eval_datasets`.
    `losses_of(params, batch)` is the template's loss of every position.
    """
    sizes = bytes_per_token(run.tokenizer) if config.compute_bpb else None
    return {
        name: TaggedEvaluator(
            run.eval_datasets if datasets is None else datasets,
            losses_of,
            mesh=run.mesh,
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
    """A function of (models by name, completed steps) that evaluates, logs and returns the metrics.

    Each evaluator takes the model of its own name, such as `current` and `ema`. `about_step` gives
    what the row says of the step besides, such as its loss where no other row has it.
    """

    def evaluate(models: Mapping[str, Any], completed_steps: int) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, evaluator in evaluators.items():
            metrics |= evaluator.evaluate(models[name])
        tracker.log(with_short_keys({**about_step(), **metrics}), step=completed_steps - 1)
        return metrics

    return evaluate
