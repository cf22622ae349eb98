"""lm-eval tasks on the weights of a run, between its steps or afterwards.

Needs the extra `harness`, so it is imported only where a config names tasks.
"""

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
from chomp.mesh import is_first, raise_together
from chomp.storage import join, make_folder, write_json_atomic
from chomp.tokenize import Tokenizer
from chomp.tracking import Tracker
from chomp.tracking.metrics import LM_EVAL_TOTAL_TIME
from chomp.tracking.record import strict_json
from chomp.tracking.run_files import ARTIFACTS
from chomp.training.evaluation import HarnessConfig
from chomp.training.metadata import result_header
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
        self,
        config: HarnessConfig,
        scores_of: Callable[[Any, Any], Any],
        *,
        model: Any,
        data: LmDataConfig,
        seq_len: int,
        mesh: Mesh,
        mp: Precision,
        tokenizer: Tokenizer,
    ) -> None:
        """`scores_of` is the template's, `model` its config, `seq_len` its rows in training.

        Raises here what can be wrong with a task: before hours of training.
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

    def results(self, weights: Any) -> HarnessResults:
        """The tasks' results on these weights. Every process calls it, and gets the same."""
        generate = sampler(
            self._mp.for_compute(weights),
            mesh=self._mesh,
            tokenizer=self._tokenizer,
            batch_size=self._config.batch_size,
        )
        model = HarnessModel(weights, self._scorer, tokenizer=self._tokenizer, generate=generate)
        return run_loaded_tasks(model, self._tasks)

    def header(self, step: int, weights: str) -> dict[str, Any]:
        """What a file of results begins with: `weights` (`params` or `ema`) after `step` steps."""
        return {
            **result_header(step, weights, tokenizer=self._tokenizer, mesh=self._mesh, mp=self._mp),
            "harness": config_to_mapping(self._config),
            "lm_eval": version("lm_eval"),
        }


def keep_results(
    results: HarnessResults, header: Mapping[str, Any], tracker: Tracker, folder: str
) -> str:
    """Log the results at the last completed step, and write them to a file; returns its path.

    `header` has the completed `step`s and the `seconds` that it took, among what the file begins
    with. Of several processes, process 0 writes.
    """
    path = join(folder, ARTIFACTS, f"{results_name(header['step'])}.json")
    if is_first():
        make_folder(join(folder, ARTIFACTS), inside=folder)
        write_json_atomic(path, strict_json({**header, **results.as_json()}))
    log_results(results, header["seconds"], tracker, path, completed_steps=header["step"])
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


def _row_len(config: HarnessConfig, model: Any, seq_len: int) -> int:
    row_len = config.max_length or seq_len
    require_at_most(
        "harness.max_length (--max-length)", row_len, "model.max_seq_len", model.max_seq_len
    )
    return row_len
