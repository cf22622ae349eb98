"""Steps whose lease another process took over: they are ended, and nothing of theirs is kept."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable

import pytest
from executor_samples import step

from chomp import storage
from chomp.errors import RunInterrupted
from chomp.executor import PlannedStep, StepFailure, read_status, run_plan
from chomp.storage import Lease
from chomp.storage.guarded import Outcome, replace_if

Planned = Callable[..., list[PlannedStep]]
Start = Callable[..., subprocess.Popen[str]]

# A test that hangs fails after this; none waits for it.
LONG_S = 60.0
BEAT_S = 0.02


def steal(item: PlannedStep) -> None:
    """Leave the lock of a step as another process would that took it over."""
    lock = f"{item.path}/.executor_lock"
    theirs = {**storage.read_json(lock), "token": "theirs", "host": "elsewhere", "pid": 4242}
    # Guarded as a true takeover is: a heartbeat between look and act would undo it.
    text = json.dumps(theirs).encode()
    assert replace_if(lock, lambda seen: True, text, patience_s=LONG_S) is Outcome.DONE


class Away:
    """A runner whose steps work elsewhere: one called "lost" loses its lease, and is waited for."""

    def __init__(self, echo: BaseException | None = None) -> None:
        self.abandoned: list[tuple[str, threading.Thread]] = []
        self._echo = echo
        self._is_ended = threading.Event()

    def __call__(self, item: PlannedStep) -> None:
        if item.step.name != "lost":
            item.step.fn(item.config)
            return
        steal(item)
        assert self._is_ended.wait(LONG_S), "it runs on in the folder of another"
        if self._echo is not None:
            raise self._echo

    def abandon(self, item: PlannedStep) -> None:
        """End the step, as its lease is lost."""
        self.abandoned.append((item.step.name, threading.current_thread()))
        self._is_ended.set()


def ran(plan: list[PlannedStep], away: Away, at_once: int = 1) -> list[StepFailure]:
    return run_plan(plan, away, abandon=away.abandon, max_concurrent=at_once, heartbeat_s=BEAT_S)


@pytest.mark.parametrize("echo", [None, RuntimeError("was ended by SIGKILL")])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_lost_lease_ends_its_step_and_no_other(
    planned: Planned, echo: BaseException | None, at_once: int
):
    away = Away(echo)
    plan = planned(step("above", data=step("lost") / "x"), step("fine"))
    failures = ran(plan, away, at_once)
    [(name, thread)] = away.abandoned
    assert name == "lost"
    assert thread is not threading.current_thread()
    assert [failure.planned.step.name for failure in failures] == ["lost", "above"]
    told = str(failures[0].error)
    assert "lost its lease" in told
    assert "held by process 4242 on elsewhere" in told
    assert failures[0].error is not None
    assert failures[0].error.__cause__ is echo, "what it raised then is kept for who looks deeper"
    states = {item.step.name: read_status(item.path) for item in plan}
    assert states["lost"] is not None
    assert states["lost"].state == "RUNNING", "the folder is another process's"
    assert states["fine"] is not None
    assert states["fine"].state == "SUCCESS"
    assert storage.read_json(f"{plan[0].path}/.executor_lock")["token"] == "theirs"


def test_an_interruption_is_one_though_the_lease_was_lost(planned: Planned):
    with pytest.raises(RunInterrupted, match="stopped"):
        ran(planned(step("lost")), Away(RunInterrupted("stopped", exit_code=75)))


def test_trouble_with_ending_a_step_is_told_and_breaks_nothing(
    planned: Planned, caplog: pytest.LogCaptureFixture
):
    away = Away()

    def fail(item: PlannedStep) -> None:
        away.abandon(item)
        raise ValueError("no such process")

    [failure] = run_plan(planned(step("lost")), away, abandon=fail, heartbeat_s=BEAT_S)
    assert "lost its lease" in str(failure.error)
    assert "could not be ended" in caplog.text
    assert "no such process" in caplog.text


def test_a_step_that_lost_its_lease_before_it_began_does_not_begin(planned: Planned):
    plan = planned(step("own"))
    [failure] = run_plan(plan, pytest.fail, abandon=pytest.fail, on_start=steal)
    assert "lost its lease" in str(failure.error)
    assert read_status(plan[0].path) is None, "nothing is written without the lease"


def test_a_step_that_has_ended_is_not_abandoned(planned: Planned):
    # Its lease is lost in its last moment, long before a heartbeat is due.
    [failure] = run_plan(planned(step("own")), steal, abandon=pytest.fail)
    assert "lost its lease" in str(failure.error)


# A step in the process that plans it. It would save when it ends, and prints half a line.
LOCAL = """
import atexit, os, subprocess, sys, threading
from pathlib import Path
from chomp.executor import ExecutorStep, plan_steps, run_plan, this_output_path

def work(config):
    save = Path(config["out"], "saved").touch
    atexit.register(save)
    child = subprocess.Popen(["sh", "-c", "sleep 20 & wait"])
    print("half", end="")
    os.write(1, b"running\\n")
    try:
        threading.Event().wait()
    finally:
        save()

os.dup2(1, 2)
sys.stdout = open(1, "w", closefd=False)  # with a buffer, whatever the environment says
plan = plan_steps([ExecutorStep("own", work, {"out": this_output_path()})], prefix=sys.argv[1])
run_plan(plan, lambda item: item.step.fn(item.config), heartbeat_s=float(sys.argv[2]))
"""


def test_a_process_that_slept_through_its_takeover_ends_with_all_it_started(
    prefix: str, start: Start
):
    process = start(LOCAL, prefix, 0.3)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    [folder] = storage.list_folder(prefix)
    path = f"{prefix}/{folder}"
    before = read_status(path)
    process.send_signal(signal.SIGSTOP)
    lock = f"{path}/.executor_lock"
    with Lease.acquire(lock, timeout_s=LONG_S, stale_after_s=0.2, poll_s=0.01) as taken:
        process.send_signal(signal.SIGCONT)
        # Its children hold the pipe, too, for longer than this waits: it is the end of all.
        told, _ = process.communicate(timeout=15)
        assert process.returncode == 75
        assert taken.still_held()
    assert "half" in told, "what was printed before is not lost"
    assert f"Error: own-{folder[4:]} lost its lease while it ran" in told
    assert f"held by process {os.getpid()}" in told
    assert "Fix: leave it to the other process" in told
    assert read_status(path) == before
    assert not storage.exists(f"{path}/saved")
