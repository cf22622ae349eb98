"""Experiments as content-addressed steps: describe, plan, run. Knows no runner of its own."""

from chomp.executor.plan import PlannedStep, is_planning, plan_steps, planning_only
from chomp.executor.run import Room, Runner, StepFailure, run_plan
from chomp.executor.status import StepState, StepStatus, read_status
from chomp.executor.step import (
    ExecutorStep,
    InputName,
    OutputName,
    Resources,
    Versioned,
    output_path_of,
    pseudo_dependency_of,
    this_output_path,
    versioned,
)

__all__ = [
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
    "is_planning",
    "output_path_of",
    "plan_steps",
    "planning_only",
    "pseudo_dependency_of",
    "read_status",
    "run_plan",
    "this_output_path",
    "versioned",
]
