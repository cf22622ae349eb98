"""Experiments as content-addressed steps: describe, plan, run. Knows no runner of its own."""

from chomp.executor.lost_lease import Abandon, end_this_process
from chomp.executor.plan import plan_steps
from chomp.executor.planned import PlannedStep
from chomp.executor.resources import Resources
from chomp.executor.run import StepFailure, run_plan
from chomp.executor.status import StepState, StepStatus, read_status
from chomp.executor.step import (
    ExecutorStep,
    InputName,
    OutputName,
    Versioned,
    output_path_of,
    pseudo_dependency_of,
    this_output_path,
    versioned,
)
from chomp.executor.step_run import Room, Runner

__all__ = [
    "Abandon",
    "ExecutorStep",
    "InputName",
    "OutputName",
    "PlannedStep",
    "Resources",
    "Room",
    "Runner",
    "StepFailure",
    "StepState",
    "StepStatus",
    "Versioned",
    "end_this_process",
    "output_path_of",
    "plan_steps",
    "pseudo_dependency_of",
    "read_status",
    "run_plan",
    "this_output_path",
    "versioned",
]
