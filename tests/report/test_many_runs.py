"""Runs read by several processes give what one process gives, and failures are told."""

import io
import json
import re

import pytest

from chomp.errors import ConfigError
from chomp.report.many_runs import num_readers, run_payloads, serve
from tests.report.recorded_run import RecordedRun


@pytest.fixture
def folders(tmp_path):
    return [
        RecordedRun(tmp_path / f"run-{index}").attempt(0, 10 * (index + 1)).written()
        for index in range(5)
    ]


def test_several_processes_give_what_one_gives_in_the_order_asked_for(folders):
    told = []
    side_by_side = run_payloads(folders, on_read=told.append, readers=2)
    assert sorted(told) == folders
    assert json.dumps(side_by_side) == json.dumps(run_payloads(folders, readers=0))


def test_what_is_no_run_is_told_whichever_process_met_it(folders, tmp_path):
    bad = [*folders, str(tmp_path / "nothing"), str(tmp_path / "nowhere")]
    with pytest.raises(ConfigError) as caught:
        run_payloads(bad, readers=2)
    assert re.search("no(thing|where)", caught.value.given)


@pytest.mark.parametrize(
    ("num_bytes", "num_runs", "cores", "readers"),
    [
        (1_000_000, 50, 64, 0),  # small pages start nothing
        (1_300_000_000, 10, 2, 1),
        (1_300_000_000, 10, 64, 9),
        (1_300_000_000, 1, 64, 0),  # one record is read by one process
        (1_300_000_000, 10, 1, 0),
    ],
)
def test_processes_are_started_where_they_pay(num_bytes, num_runs, cores, readers):
    assert num_readers(num_bytes, num_runs, cores) == readers


def test_a_reader_takes_nothing_from_the_folder_it_is_called_in(folders, tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert len(run_payloads(folders, readers=1)) == len(folders)


def test_a_reader_that_fails_says_why():
    answers = io.StringIO()
    serve(io.StringIO('{"folder": 17, "points": 100}\n'), answers)
    assert "TypeError" in json.loads(answers.getvalue())["crash"]
