"""`chomp report` as it is called: where pages go, what is refused, what is said."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from chomp.cli.main import exit_code
from tests.report.handmade_traces import Made, TraceMaker
from tests.report.recorded_run import CONFIG, RecordedRun


@pytest.fixture
def run(tmp_path):
    return RecordedRun(tmp_path / "run").attempt(0, 20).evaluation(19, loss=3.0).written()


def payload_of(page):
    text = page.read_text()
    found = re.search(r'id="payload"[^>]*>(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def test_the_page_of_one_run_lies_in_it_and_is_told(run, tmp_path, capsys):
    assert exit_code(["report", run]) == 0
    page = tmp_path / "run" / "report" / "index.html"
    assert str(page) in capsys.readouterr().out
    assert [part["name"] for part in payload_of(page)["runs"]] == ["by_hand"]
    assert exit_code(["report", run]) == 0  # its own page may be replaced


def test_several_runs_share_a_page_of_their_own(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = RecordedRun(tmp_path / "other", config={**CONFIG, "run_id": "other"})
    assert exit_code(["report", run, other.attempt(0, 8).written()]) == 0
    payload = payload_of(tmp_path / "report" / "index.html")
    assert [part["name"] for part in payload["runs"]] == ["by_hand", "other"]
    assert payload["notes"]


def test_configs_are_compared_with_a_run_that_is_not_drawn(run, tmp_path):
    other = {**CONFIG, "run_id": "other", "model": {"hidden_dim": 64}}
    against = RecordedRun(tmp_path / "other", config=other).written()
    assert exit_code(["report", run, "--against", against, "--out", str(tmp_path / "out")]) == 0
    payload = payload_of(tmp_path / "out" / "index.html")
    assert len(payload["runs"]) == 1
    rows = {row["key"]: row["values"] for row in payload["config_difference"]["rows"]}
    assert rows["model.hidden_dim"] == ["32", "64"]


def test_a_run_that_is_being_written_is_drawn_and_its_state_told(run, tmp_path, capsys):
    with (tmp_path / "run" / "metrics.jsonl").open("a") as record:
        record.write('{"step": 21, "attempt": 1, "ti')
    assert exit_code(["report", run]) == 0
    assert "has no end and is left out" in capsys.readouterr().out


def test_somebody_elses_page_is_left_alone(run, tmp_path, capsys):
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<h1>mine</h1>")
    assert exit_code(["report", run, "--out", str(site)]) == 2
    assert "was not written by this program" in capsys.readouterr().err
    assert (site / "index.html").read_text() == "<h1>mine</h1>"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{run}", "{run}/"], "twice"),
        (["{run}", "{run}/../run"], "twice"),
        (["{run}", "{run}/metrics.jsonl"], "twice"),
        (["{run}/nothing"], "does not exist"),
        (["{run}/.."], "which is no run folder but holds 1"),
        (["{run}", "--against", "{run}/samples"], "no config_resolved.json"),
        (["{run}", "--profile"], "has no trace"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_three_parts(run, capsys, words, said):
    assert exit_code(["report", *(word.format(run=run) for word in words)]) != 0
    told = capsys.readouterr().err
    assert said in told
    assert "Allowed:" in told
    assert "Fix:" in told


def test_a_run_without_a_trace_is_refused_before_it_is_read(run, tmp_path, capsys):
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "metrics.jsonl").mkdir()  # which nobody can read
    assert exit_code(["report", run, "--profile"]) != 0
    assert "has no trace" in capsys.readouterr().err


def test_the_tables_of_a_trace_are_printed_and_on_the_page(run, tmp_path, capsys):
    made = TraceMaker()
    operation = {"hlo_op": "dot.1", "hlo_module": "jit_train_step"}
    made.plane("/device:GPU:0", {"Stream #1": [Made("nvjet_a", 0, 4, operation)]})
    made.plane("/host:CPU", {"python": [Made("train", 0, 5, {"step_num": 7})]})
    made.write(tmp_path / "run")
    assert exit_code(["report", run, "--profile"]) == 0
    told = capsys.readouterr().out
    for words in ("step 7, 5.00 ms a step, busy 80.0%", "│ matmul", "│ nvjet_a", "│ step"):
        assert words in told, told
    profile = payload_of(tmp_path / "run" / "report" / "index.html")["runs"][0]["profile"]
    assert profile["busy_ms"] == pytest.approx(4)


def test_among_several_runs_one_without_a_trace_says_so_on_the_page(run, tmp_path):
    other = RecordedRun(tmp_path / "other").attempt(0, 4).written()
    assert exit_code(["report", run, other, "--profile", "--out", str(tmp_path / "out")]) == 0
    parts = payload_of(tmp_path / "out" / "index.html")["runs"]
    assert all("has no trace" in part["problems"][-1] for part in parts)


def test_the_recipes_python_reads_a_run(run, capsys):
    page = (Path(__file__).parents[2] / "docs/recipes/report.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {}
    exec(source.replace("outputs/grug/base-<hash>", run), found)
    assert found["losses"].steps.tolist() == list(range(1, 20, 2))
    assert "train/loss" in capsys.readouterr().out


NOT_RUNS = {
    "text": ("notes.txt", "No row of any run.\n"),
    "documents": ("docs.jsonl", '{"text": "one"}\n{"text": "two"}\n'),
    "empty file": ("empty.jsonl", ""),
    "config alone": ("config_resolved.json", "{}"),
    "step of the executor": (".executor_status", "{}"),
    "another's log": ("train.log", "loss 3.0\n"),
}


@pytest.mark.parametrize("what", NOT_RUNS)
def test_what_is_no_run_is_an_error_and_nothing_is_written(tmp_path, capsys, what):
    name, text = NOT_RUNS[what]
    (tmp_path / name).write_text(text)
    places = [tmp_path / name] if name == "config_resolved.json" else [tmp_path / name, tmp_path]
    for place in places:
        assert exit_code(["report", str(place)]) == 2
        assert "Allowed: a run folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_names_of_others_are_shown_and_not_obeyed(tmp_path, capsys):
    evil = "a\x1b[2J\x9b31m\x07\u202e[bold]b[/x]"
    config = {**CONFIG, "run_id": evil, "model": {evil: evil}}
    run = RecordedRun(tmp_path / "run\x1b[2J", config=config)
    run.attempt(0, 20).evaluation(19, **{evil: 3.0})
    path = run.written()
    with (Path(path) / "metrics.jsonl").open("a") as record:
        record.write('{"step": 21, "attempt": 1, "ti')
    for words in (
        ["report", path],
        ["metrics", "show", path],
        ["config", "show", path],
        ["watch", path, "--once"],
        ["compare", path, path],
        ["checkpoint", "list", path],
        ["eval", path],
        ["train", path],
    ):
        exit_code(words)
        told = capsys.readouterr()
        for text in (told.out, told.err):
            obeyed = set(text) & set("\x1b\x9b\x07\u202e")
            # YAML is to be read back, and has no other way to write that sign in a plain text.
            assert obeyed <= ({"\u202e"} if words[0] == "config" else set()), (words, text)
        assert "Traceback" not in told.err
        assert told.out + told.err
