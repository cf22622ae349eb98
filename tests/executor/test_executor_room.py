"""The room itself: its public names."""

import chomp.executor


def test_the_public_names_are_exactly_these():
    names = """
        ExecutorStep InputName OutputName PlannedStep Resources Room Runner StepFailure StepState
        StepStatus Versioned is_planning output_path_of plan_steps planning_only
        pseudo_dependency_of read_status run_plan this_output_path versioned
    """
    assert chomp.executor.__all__ == names.split()
    assert all(hasattr(chomp.executor, name) for name in chomp.executor.__all__)
