"""lm-eval tasks on the weights of a run, between its steps or afterwards.

Needs the extra `harness`, so it is imported only where a config names tasks.
"""

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from chomp.config import config_to_mapping
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
from chomp.mesh import is_first, raise_together
from chomp.storage import join, make_folder, write_json_atomic
from chomp.tracking import Tracker
from chomp.tracking.metrics import LM_EVAL_TOTAL_TIME
from chomp.tracking.record import strict_json
from chomp.tracking.run_files import ARTIFACTS
from chomp.training.evaluation import HarnessConfig
from chomp.training.run_folder import result_header
from chomp.training.setup import row_limits

ARTIFACT_KIND = "lm_eval_output"  # what W&B is told of the file of results


def results_name(completed_steps: int) -> str:
    """The name of a step's results: the file, without `.json`, and the artifact."""
    return f"lm_eval_harness_results.{completed_steps}"


def require_runnable_tasks(config: HarnessConfig, model: Any, *, seq_len: int) -> None:
    """Raise `ConfigError` for missing tasks, and for rows longer than the model takes."""
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
        self, config: HarnessConfig, scores_of: Callable[[Any, Any], Any], run: Any
    ) -> None:
        """`scores_of` is the template's, `run` has its config, mesh, mp and tokenizer.

        Raises here what can be wrong with a task: before hours of training.
        """
        self._config, self._run = config, run
        row_len = _row_len(config, run.config.model, run.config.trainer.seq_len)
        self._scorer = RequestScorer(
            scores_of,
            mesh=run.mesh,
            batch_size=config.batch_size,
            row_len=row_len,
            pad_id=run.tokenizer.eos_id,
            counts_documents=row_limits(run.config, run.mesh, seq_len=row_len).counts_documents,
        )
        self._tasks = None
        with raise_together("loading the tasks of the harness"):
            if is_first():
                self._tasks = load_tasks(
                    config.tasks,
                    include_path=config.include_path,
                    include_defaults=config.include_defaults,
                    num_fewshot=config.num_fewshot,
                    limit=config.limit,
                    allow_code=config.allow_code,
                )

    def run(self, weights: Any, name: str, completed_steps: int) -> None:
        """Run the tasks in the loop: write their results into the run's folder, and log them."""
        start = time.perf_counter()
        results = self.results(weights)
        seconds = time.perf_counter() - start
        content = {**self.header(completed_steps, name), "seconds": seconds, **results.as_json()}
        run_folder = self._run.folder.path
        folder = join(run_folder, ARTIFACTS)
        path = join(folder, f"{results_name(completed_steps)}.json")
        if is_first():
            make_folder(folder, inside=run_folder)
            write_json_atomic(path, strict_json(content))
        log_results(results, seconds, self._run.tracker, path, completed_steps=completed_steps)

    def results(self, weights: Any) -> HarnessResults:
        """The tasks' results on these weights. Every process calls it, and gets the same."""
        run = self._run
        generate = sampler(
            run.mp.for_compute(weights),
            mesh=run.mesh,
            tokenizer=run.tokenizer,
            batch_size=self._config.batch_size,
        )
        model = HarnessModel(weights, self._scorer, tokenizer=run.tokenizer, generate=generate)
        return run_loaded_tasks(model, self._tasks)

    def header(self, step: int, weights: str) -> dict[str, Any]:
        """What a file of results begins with: `weights` (`params` or `ema`) after `step` steps."""
        return {
            **result_header(self._run, step, weights),
            "harness": config_to_mapping(self._config),
            "lm_eval": version("lm_eval"),
        }


def log_results(
    results: HarnessResults,
    seconds: float,
    tracker: Tracker,
    path: str | None,
    *,
    completed_steps: int,
) -> None:
    """Log the results at the last completed step, and their file where they have one."""
    tracker.log({**results.metrics(), LM_EVAL_TOTAL_TIME: seconds}, step=completed_steps - 1)
    if path is not None:
        tracker.log_artifact(path, name=results_name(completed_steps), kind=ARTIFACT_KIND)


def _row_len(config: HarnessConfig, model: Any, seq_len: int) -> int:
    row_len, limit = config.max_length or seq_len, model.max_seq_len
    require_at_most("harness.max_length (--max-length)", row_len, "model.max_seq_len", limit)
    return row_len
