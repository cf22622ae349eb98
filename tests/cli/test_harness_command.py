"""`chomp harness`: lm-eval tasks on a checkpoint, shown, kept and logged at its step."""

import json
import logging
from pathlib import Path

import datasets
import pytest

from chomp.tracking import read_metrics
from tests.cli.conftest import Chomp, assert_refused

# The first choice is the right one of each; the model has learnt a little of sums.
QUESTIONS = [
    {"question": f"{a} + {a} =", "choices": [f" {2 * a}", f" {2 * a + 7}"], "answer": 0}
    for a in range(6)
]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(autouse=True)
def _quiet_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what `datasets` makes of local files in this test's folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    datasets.disable_progress_bars()


def write_task(folder: Path, name: str = "doubles") -> Path:
    """A folder with one task, its questions beside it."""
    folder.mkdir(exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=data))
    return folder


def test_results_are_shown_kept_and_logged_at_the_checkpoints_step(chomp: Chomp, trained: Path):
    tasks = write_task(trained.parent / "tasks")
    told = chomp("harness", "run", "--tasks", "doubles", "--include-path", str(tasks))
    assert told.code == 0, told.err
    assert "averaged weights of step 12" in told.out
    kept = json.loads((trained / "artifacts/lm_eval_harness_results.12.json").read_text())
    (result,) = kept["results"]
    assert (result["task"], result["metric"], result["num_samples"]) == ("doubles", "acc", 6)
    assert f"{result['value']:.4f}" in told.out
    assert (kept["step"], kept["weights"]) == (12, "ema")
    row, artifact = read_metrics(trained / "metrics.jsonl")[-2:]
    assert (row["step"], row["attempt"]) == (11, 1)
    assert row["lm_eval/doubles/acc"] == result["value"]
    assert row["lm_eval/averages/macro_avg_acc"] == result["value"]
    assert artifact["artifact_kind"] == "lm_eval_output"


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (["--weights", "params"], "other weights than in the loop"),
        (["--limit", "2"], "limit=2"),
    ],
)
def test_results_of_other_weights_or_a_part_of_the_questions_are_not_in_the_record(
    chomp: Chomp, trained: Path, option: list[str], why: str
):
    tasks = write_task(trained.parent / "tasks")
    # Of an earlier time and half written: nothing is lost by it, and it is left as it is.
    artifact = trained / "artifacts/lm_eval_harness_results.12.json"
    artifact.parent.mkdir()
    artifact.write_text('{"step": 12')
    record = (trained / "metrics.jsonl").read_text()
    asked = ["--tasks", "doubles", "--include-path", str(tasks), "--max-length", "48"]
    told = chomp("harness", "run", *asked, *option, "--json")
    assert told.code == 0, told.err
    found = json.loads(told.out)
    assert (found["differs_from_run"], found["harness"]["max_length"]) == ([why], 48)
    assert [row["num_samples"] for row in found["results"]] == [2 if "--limit" in option else 6]
    assert (trained / "metrics.jsonl").read_text() == record
    (other,) = set(artifact.parent.iterdir()) - {artifact}
    assert other.name.startswith("lm_eval_harness_results.12-")
    assert artifact.read_text() == '{"step": 12'


def test_the_tasks_of_the_runs_own_config_need_not_be_named(chomp: Chomp, trained: Path):
    tasks = write_task(trained.parent / "tasks")
    path = trained / "config_resolved.json"
    content = json.loads(path.read_text())
    content["eval"]["harness"] = {"tasks": ["doubles"], "include_path": str(tasks), "limit": 3}
    path.write_text(json.dumps(content))
    told = chomp("harness", "run", "--out", "results.json", "--json")
    assert told.code == 0, told.err
    assert [row["num_samples"] for row in json.loads(told.out)["results"]] == [3]
    assert json.loads(Path("results.json").read_text()) == json.loads(told.out)
    # As the loop asks it is the run's own; with another number of examples it is not.
    record = read_metrics(trained / "metrics.jsonl")
    assert record[-2]["lm_eval/doubles/acc"] == json.loads(told.out)["results"][0]["value"]
    told = chomp("harness", "run", "--num-fewshot", "1", "--batch-size", "8")
    assert told.code == 0, told.err
    assert "record      left as it is: another num_fewshot" in told.out
    assert read_metrics(trained / "metrics.jsonl") == record
    off = chomp("harness", "run", "-o", "eval.harness=null")
    assert_refused(off, "eval.harness=None, which has no effect")


def test_what_cannot_be_run_is_refused(
    chomp: Chomp, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    tasks = str(write_task(trained.parent / "tasks"))
    asked: list[tuple[list[str], list[str]]] = [
        (["--tasks", "doubels", "--include-path", tasks], ["did you mean doubles?"]),
        (
            ["--tasks", "doubles", "--include-path", "nowhere"],
            ["nowhere, where there is no folder"],
        ),
        (["--tasks", "doubles"], ["without a place", "--include-path", "--with-defaults"]),
        (["--tasks", ","], ["--tasks with no name"]),
        ([], ["no tasks, and run has none"]),
        (["--tasks", "doubles", "--include-path", tasks, "--out", "."], ["is a folder"]),
    ]
    for arguments, faults in asked:
        assert_refused(chomp("harness", "run", *arguments), *faults)
    Path(tasks, "doubles.jsonl").write_text("")
    empty = chomp("harness", "run", "--tasks", "doubles", "--include-path", tasks)
    assert_refused(empty, "its test split is empty", "doubles.jsonl")
    Path(tasks, "doubles.yaml").write_text("task: [doubles")
    broken = chomp("harness", "run", "--tasks", "doubles", "--include-path", tasks)
    assert_refused(broken, "doubles.yaml could not be read: while parsing", "--include-path")


def test_a_task_whose_data_is_on_a_hub_that_cannot_be_reached_is_told(
    chomp: Chomp, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    tasks = write_task(trained.parent / "tasks")
    # As without a network, at once and not after five tries.
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    text = (tasks / "doubles.yaml").read_text().replace("dataset_path: json", "dataset_path: a/b")
    (tasks / "doubles.yaml").write_text(text)
    logging.getLogger("datasets").setLevel(logging.ERROR)
    told = chomp("harness", "run", "--tasks", "doubles", "--include-path", str(tasks))
    assert_refused(told, "the data or definition of the task doubles could not be loaded", "a hub")
