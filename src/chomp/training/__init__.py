"""What a loop calls besides the step: clocks, evaluation, signals. Handed in, never inlined."""

from chomp.training.agreement import Agreement, Decision
from chomp.training.between_steps import Hook, between_steps
from chomp.training.check_run import check_run
from chomp.training.checkpoint_metadata import checkpoint_metadata
from chomp.training.clock import LoopClock
from chomp.training.derived import derived_values
from chomp.training.determinism import is_stochastic, with_sums_in_one_order
from chomp.training.dry_run import dry_run
from chomp.training.environment import environment
from chomp.training.evaluate import (
    EvalCallback,
    Evaluation,
    GrugEvalConfig,
    build_tagged_eval_callback,
    evaluators_of,
)
from chomp.training.harness_config import HarnessConfig
from chomp.training.interruption import StopSignal
from chomp.training.next_batches import next_batch_hashes
from chomp.training.nonfinite import NonFiniteGuard, NonFinitePolicy, are_finite, new_if_finite
from chomp.training.open_data import OpenData, open_data, require_rows
from chomp.training.profiler import Profiler, ProfilerConfig, loop_clock, run_profiler
from chomp.training.programs import StepPrograms
from chomp.training.run_folder import LoggingConfig, RunFolder, print_run_table
from chomp.training.samples import Samples, SamplesConfig
from chomp.training.start_report import row_limits, start_report
from chomp.training.starting_point import StartingPoint, starting_point
from chomp.training.step_log import TRAINED_TOKENS, StepLog
from chomp.training.throughput import Throughput
from chomp.training.watch import WatchConfig, watch_metrics

__all__ = [
    "TRAINED_TOKENS",
    "Agreement",
    "Decision",
    "EvalCallback",
    "Evaluation",
    "GrugEvalConfig",
    "HarnessConfig",
    "Hook",
    "LoggingConfig",
    "LoopClock",
    "NonFiniteGuard",
    "NonFinitePolicy",
    "OpenData",
    "Profiler",
    "ProfilerConfig",
    "RunFolder",
    "Samples",
    "SamplesConfig",
    "StartingPoint",
    "StepLog",
    "StepPrograms",
    "StopSignal",
    "Throughput",
    "WatchConfig",
    "are_finite",
    "between_steps",
    "build_tagged_eval_callback",
    "check_run",
    "checkpoint_metadata",
    "derived_values",
    "dry_run",
    "environment",
    "evaluators_of",
    "is_stochastic",
    "loop_clock",
    "new_if_finite",
    "next_batch_hashes",
    "open_data",
    "print_run_table",
    "require_rows",
    "row_limits",
    "run_profiler",
    "start_report",
    "starting_point",
    "watch_metrics",
    "with_sums_in_one_order",
]
