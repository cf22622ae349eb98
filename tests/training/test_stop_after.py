"""A start that may take only so many steps saves and ends there, as if it had been asked to."""

import os
from pathlib import Path

import pytest

from chomp.checkpoint import CheckpointConfig, Checkpointer
from chomp.errors import ConfigError
from chomp.training import Agreement, StopSignal
from chomp.training.interruption import PlannedStop
from chomp.training.stop_after import VARIABLE, steps_of_this_start, stopping_after
from tests.checkpoint.checkpoint_samples import about


@pytest.mark.parametrize("start", [0, 7])
def test_after_so_many_steps_the_state_is_saved_and_the_run_stops_wherever_it_began(
    tmp_path: Path, start: int
):
    saver = Checkpointer(str(tmp_path), CheckpointConfig(save_interval_s=None), about())
    with stopping_after(3), StopSignal() as stop:
        agreement = Agreement()
        decided = [agreement.after(start + step, saver, stop) for step in (1, 2, 3)]
    assert [each.is_save_due for each in decided] == [False, False, True]
    assert [each.stop_signal for each in decided] == [None, None, PlannedStop.MAX_STEPS]


def test_it_ends_well_and_says_that_the_same_command_continues():
    with StopSignal() as stop:
        ended = stop.interruption("runs/a/step-3", agreed=PlannedStop.MAX_STEPS)
    assert ended.exit_code == 0
    assert str(ended) == (
        "--max-steps: the state is saved at runs/a/step-3. The same command continues."
    )


def test_the_wish_holds_inside_of_its_context_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert steps_of_this_start() is None
    with stopping_after(4):
        assert steps_of_this_start() == 4
        with stopping_after(None):
            assert steps_of_this_start() == 4
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("text", ["0", "-2", "many", "1.5"])
def test_what_is_no_number_of_steps_is_refused(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ConfigError, match=rf"{VARIABLE}={text}\. Allowed: .*Fix: "):
        steps_of_this_start()
