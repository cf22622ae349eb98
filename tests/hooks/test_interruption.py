"""Real signals: the first is noted, the second acts as it always did."""

import os
import signal
import threading

import pytest

from chomp.hooks import StopSignal


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
    error = stop.interruption("runs/a/step-3")
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


@pytest.mark.usefixtures("_heeds_ctrl_c")
def test_a_second_ctrl_c_interrupts_at_once():
    with StopSignal():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_second_sigterm_reaches_the_handler_that_was_there_before(heard):
    with StopSignal() as stop:
        send(signal.SIGTERM)
        assert heard == []
        send(signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert stop.received is signal.SIGTERM


def test_a_second_signal_of_the_other_kind_acts_as_before_too(heard):
    with StopSignal() as stop:
        send(signal.SIGINT)
        send(signal.SIGTERM)
    assert stop.received is signal.SIGINT
    assert heard == [signal.SIGTERM]


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
