"""What is decided between two steps: alone here, by real processes in test_two_processes.py."""

import signal

import pytest

from chomp.training import Agreement, Decision, StopSignal


@pytest.mark.parametrize("must_save", [False, True])
@pytest.mark.parametrize("wants_save", [False, True])
@pytest.mark.parametrize("stop", [None, signal.SIGTERM])
def test_a_process_alone_decides_at_once_and_saves_before_it_stops(wants_save, must_save, stop):
    agreement = Agreement()
    for step in (1, 2, 3):
        decided = agreement.decided(step, wants_save=wants_save, must_save=must_save, stop=stop)
        assert decided == Decision(wants_save or must_save or stop is not None, stop)


def test_a_signal_that_another_process_received_ends_this_one_with_the_same_code():
    with StopSignal() as stop:
        pass
    error = stop.interruption("runs/a/step-3", agreed=signal.SIGTERM)
    assert error.exit_code == 75
    assert "SIGTERM in another process: the state is saved at runs/a/step-3." in str(error)
