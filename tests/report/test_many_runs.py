"""Runs read by several processes give what one process gives, and failures are told."""

import json
import os
import re
import signal

import pytest

from chomp.errors import ConfigError, StorageError
from chomp.report import run_payload
from chomp.report.run_payload import num_processes, run_payloads
from tests.report.recorded_run import RecordedRun


@pytest.fixture
def folders(tmp_path):
    return [
        RecordedRun(tmp_path / f"run-{index}").attempt(0, 10 * (index + 1)).written()
        for index in range(5)
    ]


def test_several_processes_give_what_one_gives_in_the_order_asked_for(
    folders, tmp_path, monkeypatch
):
    # A reader takes nothing from the folder that it is called in.
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    told = []
    side_by_side = run_payloads(folders, on_read=told.append, processes=2)
    assert sorted(told) == folders
    assert json.dumps(side_by_side) == json.dumps(run_payloads(folders, processes=0))


def test_what_is_no_run_is_told_whichever_process_met_it(folders, tmp_path):
    bad = [*folders, str(tmp_path / "nothing"), str(tmp_path / "nowhere")]
    with pytest.raises(ConfigError) as caught:
        run_payloads(bad, processes=1)
    assert re.search("no(thing|where)", caught.value.given)


@pytest.mark.parametrize(
    ("num_bytes", "num_runs", "cores", "processes"),
    [
        (1_000_000, 50, 64, 0),  # small pages start nothing
        (1_300_000_000, 10, 2, 2),
        (1_300_000_000, 10, 64, 10),
        (1_300_000_000, 1, 64, 0),  # one record is read by one process
        (1_300_000_000, 10, 1, 0),
    ],
)
def test_processes_are_started_where_they_pay(num_bytes, num_runs, cores, processes):
    assert num_processes(num_bytes, num_runs, cores) == processes


def test_a_process_that_is_killed_is_an_error_that_says_so(folders, monkeypatch):
    monkeypatch.setattr(run_payload, "_read_payload", kill_itself)
    with pytest.raises(StorageError) as caught:
        run_payloads(folders, processes=1)
    assert "without an answer" in caught.value.given


def kill_itself(folder: str, points: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
