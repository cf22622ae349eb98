"""The run around a template's loop: open it, log, evaluate, save, stop, finish. See `run.Run`."""

from chomp.training.config import GrugTrainerConfig
from chomp.training.dry_run import check_run, dry_run
from chomp.training.evaluation import (
    EvalCallback,
    GrugEvalConfig,
    HarnessConfig,
    build_evaluators,
    build_tagged_eval_callback,
)
from chomp.training.profiler import ProfilerConfig
from chomp.training.run import Hook, Run, open_run
from chomp.training.run_folder import RunFolder, default_run_id, derived_values, environment
from chomp.training.samples import SamplesConfig
from chomp.training.setup import (
    is_stochastic,
    open_data,
    require_consistent,
    require_no_output_path,
    require_vocabulary,
    row_limits,
    run_config,
)
from chomp.training.step_log import TRAINED_TOKENS, LoopClock, StepLog
from chomp.training.stopping import (
    NonFiniteGuard,
    NonFinitePolicy,
    SaveStopSync,
    StopSignal,
    are_finite,
    new_if_finite,
)
from chomp.training.watch import WatchConfig, watch_metrics

__all__ = [
    "TRAINED_TOKENS",
    "EvalCallback",
    "GrugEvalConfig",
    "GrugTrainerConfig",
    "HarnessConfig",
    "Hook",
    "LoopClock",
    "NonFiniteGuard",
    "NonFinitePolicy",
    "ProfilerConfig",
    "Run",
    "RunFolder",
    "SamplesConfig",
    "SaveStopSync",
    "StepLog",
    "StopSignal",
    "WatchConfig",
    "are_finite",
    "build_evaluators",
    "build_tagged_eval_callback",
    "check_run",
    "default_run_id",
    "derived_values",
    "dry_run",
    "environment",
    "is_stochastic",
    "new_if_finite",
    "open_data",
    "open_run",
    "require_consistent",
    "require_no_output_path",
    "require_vocabulary",
    "row_limits",
    "run_config",
    "watch_metrics",
]
