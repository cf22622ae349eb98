"""lm-eval tasks on any template: requests packed into rows, scores, generated answers, results.

Needs the extra `harness`; import this package where it is used, not at the top of a room.
"""

from importlib.util import find_spec

from chomp.errors import ConfigError

if find_spec("lm_eval") is None:
    raise ConfigError(
        "lm-eval tasks need the package lm_eval, which is not installed",
        allowed="an environment with chomp's extra 'harness'",
        fix="run pip install 'chomp[harness]'",
    )

from chomp.evaluation.harness.model import Generate, GenerationSettings, HarnessModel, sampler
from chomp.evaluation.harness.results import HarnessResults, ResultRow
from chomp.evaluation.harness.tasks import (
    LoadedTasks,
    load_tasks,
    require_tasks,
    run_loaded_tasks,
    run_tasks,
)
from chomp.evaluation.request_scores import (
    Request,
    RequestScorer,
    Score,
    ScoresOf,
    encoded_pairs,
    fitting,
    scores_from_logits,
)

__all__ = [
    "Generate",
    "GenerationSettings",
    "HarnessModel",
    "HarnessResults",
    "LoadedTasks",
    "Request",
    "RequestScorer",
    "ResultRow",
    "Score",
    "ScoresOf",
    "encoded_pairs",
    "fitting",
    "load_tasks",
    "require_tasks",
    "run_loaded_tasks",
    "run_tasks",
    "sampler",
    "scores_from_logits",
]
