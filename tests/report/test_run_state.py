"""The state of a run, told from its folder: every way in which runs end or do not."""

import json
import os
import subprocess
import sys

import pytest

from chomp.executor.status import LOCK
from chomp.report.record import read_record
from chomp.report.run_facts import FRESH_S, run_state
from chomp.storage import FileLock
from tests.report.recorded_run import RecordedRun


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("finished", "finished"),
        ("RunInterrupted", "stopped"),
        ("KeyboardInterrupt", "stopped"),
        ("NonFiniteError", "failed"),
    ],
)
def test_an_attempt_that_told_its_end_is_believed(tmp_path, outcome, state):
    run = RecordedRun(tmp_path).attempt(0, 4, outcome=outcome)
    assert run_state(read_record(run.written()), now_s=run.now) == state


def test_a_silent_run_is_running_while_its_lines_are_fresh(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 4, outcome=None)
    record = read_record(run.written())
    assert run_state(record, now_s=run.now + FRESH_S - 1) == "running"
    assert run_state(record, now_s=run.now + FRESH_S + 1) == "stopped"


def test_a_lock_that_a_live_process_holds_means_running_however_old_the_lines(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 4, outcome="RunInterrupted").written()
    with FileLock.acquire(tmp_path / LOCK, timeout_s=0.0):
        assert run_state(read_record(run)) == "running"
    assert run_state(read_record(run)) == "stopped"


def test_a_finished_run_is_running_again_once_another_process_holds_it(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 4).written()
    with FileLock.acquire(tmp_path / LOCK, timeout_s=0.0):
        assert run_state(read_record(run)) == "finished"  # this process draws what it has ended
        program = (
            "import sys; from chomp.report.record import read_record; "
            "from chomp.report.run_facts import run_state; "
            "print(run_state(read_record(sys.argv[1])))"
        )
        asked = [sys.executable, "-c", program, run]
        told = subprocess.run(asked, env=os.environ, capture_output=True, text=True)
    assert told.stdout.strip() == "running"


def test_a_lock_left_by_a_killed_process_is_no_sign_of_life(tmp_path):
    run = RecordedRun(tmp_path).attempt(0, 4, outcome=None)
    folder = run.written()
    program = (
        "import os, sys; from chomp.storage import FileLock; "
        "FileLock.acquire(sys.argv[1], timeout_s=0.0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / LOCK)], env=os.environ)
    assert (tmp_path / LOCK).exists()
    assert run_state(read_record(folder)) == "stopped"
    assert run_state(read_record(folder), now_s=run.now + 1) == "stopped"  # fresh as its lines are


def test_a_run_that_logged_nothing_is_empty_unless_it_failed(tmp_path):
    folder = RecordedRun(tmp_path).written()
    assert run_state(read_record(folder)) == "empty"
    status = {"state": "FAILED", "identity": "a", "attempt": 1, "host": "h", "pid": 1}
    (tmp_path / ".executor_status").write_text(
        json.dumps({**status, "started": 1.0, "finished": 2.0, "error": "no"})
    )
    assert run_state(read_record(folder)) == "failed"


def test_a_status_that_cannot_be_read_is_passed_over(tmp_path):
    folder = RecordedRun(tmp_path).attempt(0, 4, outcome=None).written()
    (tmp_path / ".executor_status").write_text('{"state": "SUC')
    assert run_state(read_record(folder)) == "stopped"
