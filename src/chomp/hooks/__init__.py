"""What a loop calls besides the step: clocks, evaluation, signals. Handed in, never inlined."""

from chomp.hooks.checkpoint_metadata import checkpoint_metadata
from chomp.hooks.clock import LoopClock
from chomp.hooks.environment import environment
from chomp.hooks.evaluate import EvalCallback, build_tagged_eval_callback
from chomp.hooks.interruption import StopSignal
from chomp.hooks.programs import StepPrograms
from chomp.hooks.run_folder import LoggingConfig, RunFolder, print_run_table
from chomp.hooks.samples import sample_text
from chomp.hooks.start_report import print_memory, row_limits, start_report
from chomp.hooks.step_log import TRAINED_TOKENS, StepLog
from chomp.hooks.throughput import Throughput

__all__ = [
    "TRAINED_TOKENS",
    "EvalCallback",
    "LoggingConfig",
    "LoopClock",
    "RunFolder",
    "StepLog",
    "StepPrograms",
    "StopSignal",
    "Throughput",
    "build_tagged_eval_callback",
    "checkpoint_metadata",
    "environment",
    "print_memory",
    "print_run_table",
    "row_limits",
    "sample_text",
    "start_report",
]
