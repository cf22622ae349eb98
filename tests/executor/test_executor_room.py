"""The room itself: its public names, and what importing it costs."""

import subprocess
import sys

import chomp.executor


def test_the_public_names_are_exactly_these():
    assert chomp.executor.__all__ == [
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
    assert all(hasattr(chomp.executor, name) for name in chomp.executor.__all__)


def test_importing_the_room_brings_in_neither_jax_nor_numpy():
    code = "import sys, chomp.executor; print(*{'jax', 'jaxlib', 'numpy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
