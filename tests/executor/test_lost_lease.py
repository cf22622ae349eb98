"""Steps whose lease another process took over: they are ended, and nothing of theirs is kept."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from executor_samples import step

from chomp import storage
from chomp.errors import RunInterrupted
from chomp.executor import PlannedStep, StepFailure, read_status, run_plan
from chomp.executor.status import started_status, write_status
from chomp.storage import Lease
from chomp.storage.guarded import Outcome, replace_if

Planned = Callable[..., list[PlannedStep]]
Start = Callable[..., subprocess.Popen[str]]

# A test that hangs fails after this; none waits for it.
LONG_S = 60.0
BEAT_S = 0.02


def steal(item: PlannedStep) -> None:
    """Leave the lock of a step as another process would that took it over."""
    taken_over(f"{item.path}/.executor_lock")


def taken_over(lock: str) -> None:
    """Let a lock be that of another process."""
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


def finish(item: PlannedStep, holder: object = None) -> None:
    """Make the step in place of the process that took it over, and let go of its lock."""
    began = read_status(item.path) or started_status(None, item.identity.hash)
    write_status(item.path, replace(began, state="SUCCESS", host="elsewhere"))
    storage.remove_tree(f"{item.path}/.executor_lock")


def ran(plan: list[PlannedStep], away: Away, at_once: int = 1, **hooks: Any) -> list[StepFailure]:
    return run_plan(
        plan, away, abandon=away.abandon, max_concurrent=at_once, heartbeat_s=BEAT_S, **hooks
    )


@pytest.mark.parametrize("echo", [None, RuntimeError("was ended by SIGKILL")])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_step_that_another_took_over_is_ended_and_waited_for_as_that_ones(
    planned: Planned, echo: BaseException | None, at_once: int
):
    away = Away(echo)
    plan = planned(step("above", data=step("lost") / "x"), step("fine"))
    waits: list[str] = []

    def on_wait(item: PlannedStep, holder: object) -> None:
        status = read_status(item.path)
        assert status is not None
        assert status.state == "RUNNING", "the folder is another process's"
        waits.append(f"{item.step.name} for {holder}")
        finish(item)

    assert ran(plan, away, at_once, on_wait=on_wait) == []
    [(name, thread)] = away.abandoned
    assert name == "lost"
    assert thread is not threading.current_thread()
    [told] = waits
    assert told.startswith("lost for process 4242 on elsewhere")
    states = {item.step.name: read_status(item.path) for item in plan}
    assert [each.state for each in states.values() if each] == ["SUCCESS"] * 3
    assert states["lost"] is not None
    assert states["lost"].host == "elsewhere"


def test_a_step_that_another_took_over_and_has_made_by_now_is_done(planned: Planned):
    plan = planned(step("above", data=step("own") / "x"))

    def taken(item: PlannedStep) -> None:
        if item.step.name == "own":
            finish(item)

    assert run_plan(plan, taken, abandon=pytest.fail) == []
    made = read_status(plan[0].path)
    assert made is not None
    assert made.host == "elsewhere"


def test_a_step_whose_lock_is_gone_fails_and_waits_for_nobody(planned: Planned):
    plan = planned(step("above", data=step("own") / "x"))

    def unlocked(item: PlannedStep) -> None:
        storage.remove_tree(f"{item.path}/.executor_lock")

    failures = run_plan(plan, unlocked, abandon=pytest.fail, on_wait=pytest.fail)
    assert [failure.planned.step.name for failure in failures] == ["own", "above"]
    told = str(failures[0].error)
    assert "lost its lease while it ran" in told
    assert "is held by nobody" in told
    assert "other process" not in told
    assert "the same command runs it again" in told


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

    plan = planned(step("lost"))
    assert run_plan(plan, away, abandon=fail, heartbeat_s=BEAT_S, on_wait=finish) == []
    assert "was taken over by another process" in caplog.text
    assert "could not be ended" in caplog.text
    assert "no such process" in caplog.text


def test_a_step_that_lost_its_lease_before_it_began_does_not_begin(planned: Planned):
    plan = planned(step("own"))

    def on_wait(item: PlannedStep, holder: object) -> None:
        assert read_status(item.path) is None, "nothing is written without the lease"
        finish(item)

    assert run_plan(plan, pytest.fail, abandon=pytest.fail, on_start=steal, on_wait=on_wait) == []


def test_a_step_that_has_ended_is_not_abandoned_and_does_not_say_that_it_is_done(
    planned: Planned, caplog: pytest.LogCaptureFixture
):
    def on_wait(item: PlannedStep, holder: object) -> None:
        status = read_status(item.path)
        assert status is not None
        assert status.state == "RUNNING"
        finish(item)

    # Its lease is lost in its last moment, long before a heartbeat is due.
    assert run_plan(planned(step("own")), steal, abandon=pytest.fail, on_wait=on_wait) == []
    assert "was lost; it is now held by process 4242" in caplog.text


# A step in the process that plans it. It would save when it ends, and prints half a line.
LOCAL = """
import atexit, os, subprocess, sys, threading
from pathlib import Path
from chomp.executor import ExecutorStep, plan_steps, run_plan, this_output_path

def work(config):
    save = Path(config["out"], "saved").touch
    atexit.register(save)
    child = subprocess.Popen(["sh", "-c", "sleep 200 & wait"])
    print("half", end="")
    os.write(1, b"running\\n")
    try:
        threading.Event().wait()
    finally:
        save()

if sys.argv[3:] == ["nobody reads errors"]:
    _kept, full = os.pipe()
    os.set_blocking(full, False)
    try:
        while os.write(full, bytes(4096)):
            pass
    except BlockingIOError:
        os.set_blocking(full, True)
    os.dup2(full, 2)
else:
    os.dup2(1, 2)
sys.stdout = open(1, "w", closefd=False)  # with a buffer, whatever the environment says
plan = plan_steps([ExecutorStep("own", work, {"out": this_output_path()})], prefix=sys.argv[1])
run_plan(plan, lambda item: item.step.fn(item.config), heartbeat_s=float(sys.argv[2]))
"""


@pytest.mark.usefixtures("waited_clock")
def test_a_process_that_slept_through_its_takeover_ends_with_all_it_started(
    prefix: str, start: Start
):
    # Stopped long before its first beat: within one, it would keep the guard of the lock.
    process = start(LOCAL, prefix, 2.0)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    [folder] = storage.list_folder(prefix)
    path = f"{prefix}/{folder}"
    before = read_status(path)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    lock = f"{path}/.executor_lock"
    with Lease.acquire(lock, timeout_s=LONG_S, stale_after_s=0.2, poll_s=1.0) as taken:
        process.send_signal(signal.SIGCONT)
        # Its children hold the pipe, too, for longer than this waits: it is the end of all.
        told, _ = process.communicate(timeout=LONG_S)
        assert process.returncode == 75
        assert taken.still_held()
    assert "half" in told, "what was printed before is not lost"
    assert f"Error: own-{folder[4:]} lost its lease while it ran" in told
    assert f"held by process {os.getpid()}" in told
    assert "Fix: leave it to the other process" in told
    assert read_status(path) == before
    assert not storage.exists(f"{path}/saved")


def test_a_process_whose_errors_nobody_reads_ends_at_a_loss_as_any_other(prefix: str, start: Start):
    process = start(LOCAL, prefix, 0.05, "nobody reads errors")
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    [folder] = storage.list_folder(prefix)
    taken_over(f"{prefix}/{folder}/.executor_lock")
    process.communicate(timeout=LONG_S)
    assert process.returncode == 75
    assert not storage.exists(f"{prefix}/{folder}/saved")
