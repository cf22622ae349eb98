"""When a run saves and stops: real signals, and what is decided between two steps.

Several real processes decide in test_two_processes.py.
"""

import os
import signal
import threading
import time

import pytest

from chomp.errors import RunInterrupted
from chomp.training import SaveStopSync, StopSignal
from chomp.training.stopping import Decision


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def heard():
    """Signals that reach the handler which was there before."""
    calls: list[int] = []
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGTERM, earlier)


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)], ids=["Ctrl-C", "SIGTERM"]
)
def test_the_first_signal_is_a_wish_that_tells_who_asked(number, exit_code, caplog):
    with StopSignal() as stop:
        assert stop.received is None
        send(number)
        assert stop.received == number
    error = stop.interruption("runs/a/step-3", number)
    assert error.exit_code == exit_code
    assert number.name in str(error)
    assert "runs/a/step-3" in str(error)
    assert "once more stops at once" in caplog.text


@pytest.fixture
def _heeds_ctrl_c():
    # A shell starts its background jobs deaf to Ctrl-C.
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


def send_again(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same signal, when the time has passed in which it would count as the same wish."""
    later = time.monotonic() + 5
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: later)
        send(number)


@pytest.mark.usefixtures("_heeds_ctrl_c")
def test_a_second_ctrl_c_interrupts_at_once(monkeypatch):
    with StopSignal():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send_again(signal.SIGINT, monkeypatch)


def test_a_second_sigterm_reaches_the_handler_that_was_there_before(heard, monkeypatch):
    with StopSignal() as stop:
        send(signal.SIGTERM)
        assert heard == []
        send_again(signal.SIGTERM, monkeypatch)
        assert heard == [signal.SIGTERM]
    assert stop.received is signal.SIGTERM


def test_the_same_signal_sent_twice_at_once_is_one_wish(heard):
    with StopSignal() as stop:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
    assert stop.received is signal.SIGTERM
    assert heard == []


def test_a_signal_of_the_other_kind_does_not_cut_the_save_short(heard, monkeypatch):
    with StopSignal() as stop:
        send(signal.SIGINT)
        send(signal.SIGTERM)
        send_again(signal.SIGTERM, monkeypatch)
    assert stop.received is signal.SIGINT
    assert heard == []


def test_before_the_first_step_a_wish_ends_the_run_at_once():
    with StopSignal() as stop:
        stop.raise_if_received()
        send(signal.SIGTERM)
        with pytest.raises(RunInterrupted, match="SIGTERM: no step was taken") as interrupted:
            stop.raise_if_received()
    assert interrupted.value.exit_code == 75


def test_afterwards_signals_act_as_before(heard):
    interrupted = signal.getsignal(signal.SIGINT)
    with StopSignal() as stop:
        pass
    send(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert stop.received is None
    assert signal.getsignal(signal.SIGINT) is interrupted


def test_an_error_inside_puts_the_handlers_back(heard):
    with pytest.raises(ZeroDivisionError), StopSignal():
        _ = 1 / 0
    send(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_in_another_thread_signals_are_left_alone_with_a_warning(caplog):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during = []

    def enter() -> None:
        with StopSignal():
            during.extend(signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert during == before
    assert "not in the main thread" in caplog.text


@pytest.mark.parametrize("must_save", [False, True])
@pytest.mark.parametrize("wants_save", [False, True])
@pytest.mark.parametrize("stop", [None, signal.SIGTERM])
def test_a_process_alone_decides_at_once_and_saves_before_it_stops(wants_save, must_save, stop):
    sync = SaveStopSync()
    for step in (1, 2, 3):
        decision = sync.decide(step, wants_save=wants_save, must_save=must_save, stop=stop)
        assert decision == Decision(wants_save or must_save or stop is not None, stop)


def test_a_signal_that_another_process_received_ends_this_one_with_the_same_code():
    with StopSignal() as stop:
        pass
    error = stop.interruption("runs/a/step-3", signal.SIGTERM)
    assert error.exit_code == 75
    assert "SIGTERM in another process" in error.given
    assert "runs/a/step-3" in error.given
