"""What a loop calls besides the step: clocks, evaluation, signals. Handed in, never inlined."""

from chomp.hooks.agreement import Agreement, Decision
from chomp.hooks.between_steps import Hook, between_steps
from chomp.hooks.check_run import check_run
from chomp.hooks.checkpoint_metadata import checkpoint_metadata
from chomp.hooks.clock import LoopClock
from chomp.hooks.derived import derived_values
from chomp.hooks.determinism import is_stochastic, with_sums_in_one_order
from chomp.hooks.dry_run import dry_run
from chomp.hooks.environment import environment
from chomp.hooks.evaluate import (
    EvalCallback,
    Evaluation,
    GrugEvalConfig,
    build_tagged_eval_callback,
    evaluators_of,
)
from chomp.hooks.harness_config import HarnessConfig
from chomp.hooks.interruption import StopSignal
from chomp.hooks.next_batches import next_batch_hashes
from chomp.hooks.nonfinite import NonFiniteGuard, NonFinitePolicy, are_finite, new_if_finite
from chomp.hooks.open_data import OpenData, open_data, require_rows
from chomp.hooks.profiler import Profiler, ProfilerConfig, loop_clock, run_profiler
from chomp.hooks.programs import StepPrograms
from chomp.hooks.run_folder import LoggingConfig, RunFolder, print_run_table
from chomp.hooks.samples import Samples, SamplesConfig
from chomp.hooks.start_report import row_limits, start_report
from chomp.hooks.starting_point import StartingPoint, starting_point
from chomp.hooks.step_log import TRAINED_TOKENS, StepLog
from chomp.hooks.throughput import Throughput
from chomp.hooks.watch import WatchConfig, watch_metrics

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
