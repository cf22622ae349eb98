"""lm-eval tasks on the weights of a run, between its steps or afterwards.

Needs the extra `harness`, so it is imported only where a config names tasks.
"""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from jax.sharding import Mesh

from chomp.config import config_to_mapping
from chomp.data import LmDataConfig
from chomp.errors import require_at_most
from chomp.evaluation.harness import (
    HarnessModel,
    HarnessResults,
    RequestScorer,
    load_tasks,
    require_tasks,
    run_loaded_tasks,
    sampler,
)
from chomp.kernels.precision import Precision
from chomp.mesh import all_or_none, is_first
from chomp.storage import join, make_folder, write_json_atomic
from chomp.tokenize import Tokenizer
from chomp.tracking import Tracker
from chomp.tracking.lines import strict_json
from chomp.tracking.metrics import LM_EVAL_TOTAL_TIME
from chomp.tracking.run_files import ARTIFACTS
from chomp.training.clock import Phase
from chomp.training.harness_config import HarnessConfig
from chomp.training.open_data import TrainedModel
from chomp.training.result_header import result_header
from chomp.training.start_report import row_limits

# What services are told of the file of results.
ARTIFACT_KIND = "lm_eval_output"


def results_name(completed_steps: int) -> str:
    """What the results of a step are called: the file, without `.json`, and the artifact."""
    return f"lm_eval_harness_results.{completed_steps}"


def require_runnable_tasks(config: HarnessConfig, model: TrainedModel, *, seq_len: int) -> None:
    """Raise `ConfigError` for tasks that are not there, and rows that the model does not take."""
    _row_len(config, model, seq_len)
    require_tasks(
        config.tasks,
        include_path=config.include_path,
        include_defaults=config.include_defaults,
        allow_code=config.allow_code,
    )


class Harness:
    """The tasks of a config, loaded, for any weights of one model; compiled once."""

    def __init__(
        self,
        config: HarnessConfig,
        scores_of: Callable[[Any, Any], Any],
        *,
        model: TrainedModel,
        data: LmDataConfig,
        seq_len: int,
        mesh: Mesh,
        mp: Precision,
        tokenizer: Tokenizer,
    ) -> None:
        """`scores_of` is the template's; `model` its config and `seq_len` its rows in training.

        Everything that can be wrong with a task is, here: before hours of training.
        """
        row_len = _row_len(config, model, seq_len)
        limits = row_limits(model, data, seq_len=row_len, mp=mp, mesh=mesh)
        self._config, self._mesh, self._mp, self._tokenizer = config, mesh, mp, tokenizer
        self._scorer = RequestScorer(
            scores_of,
            mesh=mesh,
            batch_size=config.batch_size,
            row_len=row_len,
            pad_id=tokenizer.eos_id,
            counts_documents=limits.counts_documents,
        )
        self._tasks = None
        with all_or_none("loading the tasks of the harness"):
            if is_first():
                self._tasks = load_tasks(
                    config.tasks,
                    include_path=config.include_path,
                    include_defaults=config.include_defaults,
                    num_fewshot=config.num_fewshot,
                    limit=config.limit,
                    allow_code=config.allow_code,
                )

    def results(self, weights: Any) -> HarnessResults:
        """The tasks' results on these weights. Every process calls it, and gets the same."""
        config, tokenizer = self._config, self._tokenizer
        generate = sampler(
            self._mp.for_compute(weights),
            mesh=self._mesh,
            tokenizer=tokenizer,
            batch_size=config.batch_size,
        )
        model = HarnessModel(weights, self._scorer, tokenizer=tokenizer, generate=generate)
        return run_loaded_tasks(model, self._tasks)

    def about(self, step: int, weights: str) -> dict[str, Any]:
        """What a file of results begins with: of these weights after `step` steps."""
        header = result_header(
            step, weights, tokenizer=self._tokenizer, mesh=self._mesh, mp=self._mp
        )
        asked = {"harness": config_to_mapping(self._config), "lm_eval": version("lm_eval")}
        return {**header, **asked}


class HarnessTasks:
    """Runs the tasks when they are due and whenever it is called, and keeps what they gave.

    On the averaged weights, where there are any.
    """

    phase: Phase = "hook"

    def __init__(self, harness: Harness, period: int | None, tracker: Tracker, folder: str) -> None:
        self._harness, self._period = harness, period
        self._tracker, self._folder = tracker, folder
        self._last: int | None = None

    def is_due(self, completed_steps: int) -> bool:
        """Whether the period asks for the tasks now."""
        return self._period is not None and completed_steps % self._period == 0

    def __call__(self, models: Mapping[str, Any], completed_steps: int) -> None:
        """Run the tasks on the model as it is, unless that step has its results already."""
        if completed_steps == self._last:
            return
        self._last = completed_steps
        name = "params" if models["ema"] is None else "ema"
        weights = models["current"] if models["ema"] is None else models["ema"]
        start = time.perf_counter()
        results = self._harness.results(weights)
        seconds = time.perf_counter() - start
        about = {**self._harness.about(completed_steps, name), "seconds": seconds}
        keep_results(results, about, self._tracker, self._folder)


def keep_results(
    results: HarnessResults, about: Mapping[str, Any], tracker: Tracker, folder: str
) -> str:
    """Log the results at the last completed step, and write them to the file that comes back.

    `about` has the completed `step`s and the `seconds` that it took, among what the file is to
    begin with. Of several processes, the first writes.
    """
    name = results_name(about["step"])
    path = join(folder, ARTIFACTS, f"{name}.json")
    if is_first():
        make_folder(join(folder, ARTIFACTS), inside=folder)
        write_json_atomic(path, strict_json({**about, **results.as_json()}))
    log_results(results, about["seconds"], tracker, path, completed_steps=about["step"])
    return path


def log_results(
    results: HarnessResults,
    seconds: float,
    tracker: Tracker,
    path: str | None,
    *,
    completed_steps: int,
) -> None:
    """Log the results at the last completed step, and their file where they have one."""
    metrics = {**results.metrics(), LM_EVAL_TOTAL_TIME: seconds}
    tracker.log(metrics, step=completed_steps - 1)
    if path is not None:
        tracker.log_artifact(path, name=results_name(completed_steps), kind=ARTIFACT_KIND)


def _row_len(config: HarnessConfig, model: TrainedModel, seq_len: int) -> int:
    row_len = config.max_length or seq_len
    require_at_most(
        "harness.max_length (--max-length)", row_len, "model.max_seq_len", model.max_seq_len
    )
    return row_len
